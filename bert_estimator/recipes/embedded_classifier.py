"""The plan of `python run_classifier.py` without a task: a task from texts in every CPython.

Command   python run_classifier.py --use_tpu --precision=bfloat16
Cost      half a minute of training on two CPU cores (`python -m benchmarks.classifier`)
Start     the main job's checkpoint in runs/pretraining if it exists; else from scratch

The network is the main job's network, which the checkpoint needs. The optimizer and the rate were
chosen by trials: so small a rate keeps the checkpoint's weights nearly as they are, and the score
was better than with LAMB at 1e-2 or with a rate of 1e-3.
"""

import os
import re

from bert_estimator.recipes import embedded

MAIN_JOB = os.path.join("runs", "pretraining")

BERT_CONFIG = embedded.BERT_CONFIG
VOCAB_SIZE = embedded.DATA["vocab_size"]

FLAGS = dict(
    task_name="word_order",
    optimizer="adamw",
    max_seq_length=32,
    train_batch_size=64,
    eval_batch_size=64,
    predict_batch_size=64,
    learning_rate=3e-4,
    num_train_epochs=2.0,
    save_checkpoints_steps=250,
    iterations_per_loop=50,
)

# What differs for the task about words, which has a tenth of the examples.
TAGGING_FLAGS = dict(
    task_name="code_words",
    task_kind="tagging",
    max_seq_length=64,
    train_batch_size=32,
    learning_rate=1e-3,
    num_train_epochs=20.0,
)


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
