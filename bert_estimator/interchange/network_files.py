"""What lies beside a TF1 checkpoint: the network, the vocabulary, and the task it was trained on.

google-research/bert publishes bert_config.json and vocab.txt. This project adds task.json, with the
keys `kind`, `labels`, `do_lower_case` and `max_seq_length` of `Source`; a key whose value is not
known is null, or missing. Earlier versions of this project did not write it: for their runs, the
same is read from labels.txt (a label a line) and from the flags in the run's config.json.
"""

import json
import os
import shutil
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange.source import KINDS, MULTI_LABEL, Source

CONFIG, VOCABULARY, TASK, LABELS = "bert_config.json", "vocab.txt", "task.json", "labels.txt"
SENTENCE_PIECE = "vocab.model"
_RUN, _BEST = "config.json", "best.json"  # best.json lies in the directory best/ of a run


def read(folder: str) -> dict[str, Any]:
    """Returns what a directory says of its checkpoints: a dict of fields of `Source`.

    Raises:
      ValueError: bert_config.json or task.json is damaged.
    """
    config = os.path.join(folder, CONFIG)
    vocabularies = [os.path.join(folder, name) for name in (VOCABULARY, SENTENCE_PIECE)]
    return {
        "config": BertConfig.from_json_file(config) if tf.io.gfile.exists(config) else None,
        "vocab_file": next((path for path in vocabularies if tf.io.gfile.exists(path)), None),
        **_read_task(folder),
    }


def write(folder: str, source: Source) -> None:
    """Writes the files of a model into a directory."""
    with open(os.path.join(folder, CONFIG), "w", encoding="utf-8") as writer:
        writer.write(source.config.to_json_string())
    if source.vocab_file is not None:
        name = SENTENCE_PIECE if source.vocab_file.endswith(".model") else VOCABULARY
        shutil.copyfile(source.vocab_file, os.path.join(folder, name))
    task = {
        "kind": source.kind,
        "labels": list(source.labels),
        "do_lower_case": source.do_lower_case,
        "max_seq_length": source.max_seq_length,
    }
    with open(os.path.join(folder, TASK), "w", encoding="utf-8") as writer:
        writer.write(json.dumps(task, indent=2) + "\n")


def _read_task(folder):
    """Returns `kind`, `labels`, `do_lower_case` and `max_seq_length`, as fields of `Source`."""
    path = os.path.join(folder, TASK)
    if tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path, "r") as reader:
            try:
                task = json.load(reader)
                labels = tuple(task.get("labels") or ())
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}: cannot be read: {error!r}") from None
    else:
        task, labels = _flags(folder), _read_labels(os.path.join(folder, LABELS))
    lower, length, kind = (task.get(k) for k in ("do_lower_case", "max_seq_length", "kind"))
    return {
        "labels": labels,
        "kind": kind if kind in KINDS else None,
        "do_lower_case": lower if isinstance(lower, bool) else None,
        "max_seq_length": length if type(length) is int and length > 0 else None,
    }


def _read_labels(path):
    if not tf.io.gfile.exists(path):
        return ()
    with tf.io.gfile.GFile(path, "r") as reader:
        return tuple(reader.read().removesuffix("\n").split("\n"))


def _flags(folder):
    """Returns the flags that say how the run of a directory was trained, by the keys of task.json;
    an empty dict if the directory is not a run's."""
    is_best = tf.io.gfile.exists(os.path.join(folder, _BEST))
    path = os.path.join(folder, os.pardir if is_best else "", _RUN)
    try:
        with tf.io.gfile.GFile(path, "r") as reader:
            flags = {name: each["value"] for name, each in json.load(reader)["flags"].items()}
    except (tf.errors.OpError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # config.json is missing, or another program's
    # --task_kind is for one's own files. Of the named tasks, none has several labels for a text.
    kind = flags.get("task_kind")
    return {**flags, "kind": kind if kind == MULTI_LABEL else None}
