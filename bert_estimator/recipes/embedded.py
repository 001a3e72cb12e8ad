"""The plan of `python run_pretraining.py` without data flags: the embedded English corpus.

Command   python run_pretraining.py --use_tpu --precision=bfloat16
Cost      half a minute of training on two CPU cores (`python -m benchmarks.main_job`)
Score     held-out masked-LM loss about half a nat below the unigram baseline

These values were chosen by measurement. Of the vocabularies, lengths, depths, widths, batches and
rates that were tried, they got furthest below the baseline in two minutes. Short sequences and a
narrow network allow more steps in that time, and many steps are needed to leave the unigram
plateau. Initial weights of 0.05 rather than 0.02 suit so narrow a network, since LAMB's steps are
proportional to the weights.
"""

BERT_CONFIG = dict(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=256,
    max_position_embeddings=128,
    initializer_range=0.05,
)

# Masks are drawn while training, and so differ between epochs; five passes over the text have
# different pairs of segments.
DATA = dict(vocab_size=2000, dupe_factor=5, seed=1, masking="dynamic")

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
