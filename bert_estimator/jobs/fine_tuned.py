"""Checks that weights which are used without training belong to the task of the flags.

A head is a matrix: it fits every task with the same number of labels, whatever they mean.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator import json_files
from bert_estimator.command_line import flags

_TASK = "task.json"
# What a network learns in training; other lengths than in training are allowed.
_LEARNED = ("kind", "labels", "is_pair", "do_lower_case")
# transformers gives a classifier these names if nobody named its labels.
_PLACEHOLDER = re.compile(r"LABEL_\d+")


def check_head(checkpoint: str, head: str, init_checkpoint: str) -> None:
    """Checks that a checkpoint holds the head of the task; raises FlagError otherwise.

    Args:
      checkpoint: its path.
      head: the name of a variable of the head.
      init_checkpoint: the value of the flag that names the checkpoint.
    """
    flags.check(
        tf.train.load_checkpoint(checkpoint).has_tensor(head),
        "init_checkpoint",
        init_checkpoint,
        "holds a network that was not fine-tuned for a task of this script; add --do_train",
    )


def check_task(checkpoint: str, task: Mapping[str, Any], flag: str) -> None:
    """Checks that a checkpoint was trained for a task, if task.json beside it says for which.

    Args:
      checkpoint: its path.
      task: what task.json would say of the flags and files.
      flag: the flag that names the checkpoint's directory.

    Raises:
      FlagError: it was trained for another task, for other labels, or for the same labels in
        another order; or task.json is damaged.
    """
    path = os.path.join(os.path.dirname(checkpoint), _TASK)
    if not tf.io.gfile.exists(path):
        return
    with flags.named(flag):
        trained = json_files.read(path)
        for key in _LEARNED:
            learned, asked = trained.get(key), task.get(key)
            if learned is None or asked is None or _are_equal(learned, asked):
                continue
            raise ValueError(
                f"{path}: the network was trained for {key} {json_files.shown(learned)}, but the "
                f"flags and files ask for {json_files.shown(asked)}. Give the files and flags of "
                "its training, or add --do_train to train it for these"
            )


def _are_equal(learned, asked):
    if not isinstance(learned, list):
        return learned == asked
    is_named = not all(isinstance(name, str) and _PLACEHOLDER.fullmatch(name) for name in learned)
    return list(asked) == learned if is_named else len(asked) == len(learned)
