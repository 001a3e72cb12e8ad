"""The plan of `python run_pretraining.py` with no data given: the embedded English corpus.

Command   python run_pretraining.py --use_tpu --precision=bfloat16
Cost      about two minutes of training on two CPU cores
Expect    see README.md, "What to expect"
"""

BERT_CONFIG = dict(
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=512,
    max_position_embeddings=128,
)

DATA = dict(vocab_size=2000, dupe_factor=5, seed=1)

FLAGS = dict(
    optimizer="lamb",
    max_seq_length=64,
    max_predictions_per_seq=10,
    train_batch_size=64,
    eval_batch_size=64,
    learning_rate=5e-3,
    num_train_steps=1500,
    num_warmup_steps=150,
    save_checkpoints_steps=500,
    iterations_per_loop=50,
)
