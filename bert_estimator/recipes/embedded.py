"""The plan of `python run_pretraining.py` with no data given: the embedded English corpus.

Command   python run_pretraining.py --use_tpu --precision=bfloat16
Cost      about two minutes of training on two CPU cores (`python -m benchmarks.main_job`)
Score     held-out masked-LM loss about half a nat below the unigram baseline

Chosen by measurement: of the vocabularies, lengths, depths, widths, batches and rates tried, these
got furthest below the baseline in two minutes. Short sequences and a narrow network give more steps
in that time, and the steps are what it takes to leave the unigram plateau; weights of 0.05 rather
than 0.02 suit a network this narrow, since LAMB's steps are proportional to them.
"""

BERT_CONFIG = dict(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=256,
    max_position_embeddings=128,
    initializer_range=0.05,
)

DATA = dict(vocab_size=2000, dupe_factor=5, seed=1)

FLAGS = dict(
    optimizer="lamb",
    max_seq_length=32,
    max_predictions_per_seq=5,
    train_batch_size=64,
    eval_batch_size=64,
    learning_rate=1e-2,
    num_train_steps=1000,
    num_warmup_steps=60,
    save_checkpoints_steps=250,
    iterations_per_loop=50,
)
