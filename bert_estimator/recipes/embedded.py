"""The plans of the scripts without data flags, on English text that every CPython carries.

Each is run with --use_tpu --precision=bfloat16. run_pretraining.py, the main job, takes half a
minute of training on two CPU cores (`python -m benchmarks.main_job`), run_classifier.py as much
(`python -m benchmarks.classifier`), and run_squad.py two to three minutes. The last two start from
the main job's checkpoint in runs/pretraining if it exists, which needs the main job's network; else
from scratch.
"""

import os
import re

MAIN_JOB = os.path.join("runs", "pretraining")

# The values of the main job were chosen by measurement. Of the vocabularies, lengths, depths,
# widths, batches and rates that were tried, they got furthest below the unigram baseline in two
# minutes; the held-out masked-LM loss gets about half a nat below it. Short sequences and a narrow
# network allow more steps in that time, and many steps are needed to leave the unigram plateau.
BERT_CONFIG = dict(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=256,
    max_position_embeddings=128,
    # 0.05 rather than 0.02 suits so narrow a network: LAMB's steps are proportional to the weights.
    initializer_range=0.05,
)
VOCAB_SIZE = 2000
NETWORK = dict(vocab_size=VOCAB_SIZE, **BERT_CONFIG)

# Masks are drawn while training, and so differ between epochs; five passes over the text have
# different pairs of segments.
DATA = dict(vocab_size=VOCAB_SIZE, dupe_factor=5, seed=1, masking="dynamic")

_COMMON = dict(eval_batch_size=64, save_checkpoints_steps=250, iterations_per_loop=50)

PRETRAINING_FLAGS = dict(
    _COMMON,
    optimizer="lamb",
    max_seq_length=32,
    max_predictions_per_seq=5,
    train_batch_size=64,
    learning_rate=1e-2,
    num_train_steps=1000,
    num_warmup_steps=60,
)

_FINE_TUNING = dict(_COMMON, optimizer="adamw", train_batch_size=64, predict_batch_size=64)

# The optimizer and the rate were chosen by trials: so small a rate keeps the checkpoint's weights
# nearly as they are, and the score was better than with LAMB at 1e-2 or with a rate of 1e-3.
CLASSIFIER_FLAGS = dict(
    _FINE_TUNING,
    task_name="word_order",
    max_seq_length=32,
    learning_rate=3e-4,
    num_train_epochs=2.0,
)

# The task about words has a tenth of the examples.
TAGGING_FLAGS = CLASSIFIER_FLAGS | dict(
    task_name="code_words",
    task_kind="tagging",
    max_seq_length=64,
    train_batch_size=32,
    learning_rate=1e-3,
    num_train_epochs=20.0,
)

# The rate and the length of the training were not tuned.
ANSWER_FLAGS = dict(
    _FINE_TUNING,
    version_2_with_negative=True,
    max_seq_length=64,
    doc_stride=24,
    max_query_length=16,
    max_answer_length=30,
    learning_rate=1e-3,
    num_train_epochs=8.0,
)

# What the plans of fine-tuning set for so small a network. A network that --init_checkpoint names
# may be a published one, which learns nothing at such rates: the scripts' defaults are for it.
FOR_SMALL_NETWORKS = ("train_batch_size", "learning_rate", "num_train_epochs")


def main_job_checkpoint() -> tuple[str, str] | tuple[None, None]:
    """Returns (checkpoint, vocabulary) of the main job, or (None, None) if it has not run yet."""
    vocab_file = os.path.join(MAIN_JOB, "data", "vocab.txt")
    try:
        with open(os.path.join(MAIN_JOB, "checkpoint"), encoding="utf-8") as reader:
            newest = re.search(r'^model_checkpoint_path: "(.*)"', reader.read(), re.MULTILINE)
    except OSError:
        return None, None
    if newest is None or not os.path.exists(vocab_file):
        return None, None
    return os.path.join(MAIN_JOB, newest[1]), vocab_file
