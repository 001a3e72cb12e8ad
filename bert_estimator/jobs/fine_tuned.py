"""Networks that are used without training: they must belong to the task of the flags.

A head is a matrix: it fits every task with the same number of labels, whatever they mean.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator import interchange
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags, provenance
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.interchange import Source
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.interchange.network_variables import ANSWER, CLASSIFIER, POOLER
from bert_estimator.jobs.estimator import differences
from bert_estimator.jobs.fine_tuning.fine_tuning_config import FineTuningConfig
from bert_estimator.storage import remote, staging
from bert_estimator.system import json_files
from bert_estimator.tpu import checkpoints

# What a network learns in training; other lengths than in training are allowed.
_LEARNED = ("kind", "labels", "is_pair", "do_lower_case")
_STEP = "global_step"
_WHAT_TO_DO = "Give the files and flags of its training, or add --do_train to train it for these"


def is_restorable(source: Source) -> bool:
    """Returns whether an estimator can restore a network's checkpoint: if it has a global step, and
    the variables have the names and the type that they have here."""
    if not source.checkpoint:
        return False
    types = tf.train.load_checkpoint(source.checkpoint).get_variable_to_dtype_map()
    return _STEP in types and all(types.get(name) == tf.float32 for name in source.shapes)


def with_length(config: FineTuningConfig) -> FineTuningConfig:
    """Returns the configuration of a run, which without training has the network's own length."""
    start = config.network.init_checkpoint
    # A run's own network counts, whatever the run started from.
    is_run = RunDirectory(config.output_dir).holds_checkpoint()
    if config.do_train or config.is_given("max_seq_length") or not (is_run or start):
        return config
    with flags.named("output_dir" if is_run else "init_checkpoint"):
        source = interchange.open_source(config.output_dir if is_run else start)
    # A network that does not record a length gets the default, but never more than its positions.
    length = source.max_seq_length or config.data.max_seq_length
    if source.config is not None:
        length = min(length, source.config.max_position_embeddings)
    return config.of_length(length)


def with_rules_of_answers(config: Any) -> Any:
    """Returns the configuration of a run for answers, which without training has the network's own
    --version_2_with_negative."""
    name, start = "version_2_with_negative", config.network.init_checkpoint
    is_said = config.sources[name] in (provenance.FLAG, provenance.RUN)
    is_run = RunDirectory(config.output_dir).holds_checkpoint()
    if config.do_train or config.embedded or is_said or not (is_run or start):
        return config
    flag, path = ("output_dir", config.output_dir) if is_run else ("init_checkpoint", start)
    with flags.named(flag):
        says = interchange.open_source(path).version_2_with_negative
    files = [flags.values_of(config)[file] for file in config.DATA_FLAGS]
    flags.check(
        says is not None or any(files),
        flag,
        path,
        "nothing beside this network says whether it may leave questions without an answer, as for "
        f"SQuAD 2.0; add --{name}, or --no{name} if it answers all",
    )
    return flags.changed(config, **{name: bool(says)})


def checkpoint_of(source: Source) -> str | None:
    """Returns the path of a checkpoint that an estimator can restore, if need be of a copy that
    lasts as long as the process; None if the network lacks the head of a fine-tuning, too."""
    if is_restorable(source):
        return source.checkpoint
    # Converted and published networks lack the step, have other projects' names of the variables,
    # or are in float16, and Hugging Face's files are not a checkpoint. These are copied.
    heads = [name for name in (CLASSIFIER, f"{ANSWER}/output_weights") if name in source.shapes]
    if not heads:
        return None
    step = checkpoints.global_step_of(source.checkpoint)
    prefix = os.path.join(staging.temporary_folder(), f"model.ckpt-{step}")
    hidden_size = source.shapes[heads[0]][1]
    # Hugging Face's networks for tags and for answers lack the pooler, which these do not use: in
    # the copy it is zero.
    pooler = {
        f"{POOLER}dense/kernel": np.zeros([hidden_size, hidden_size], np.float32),
        f"{POOLER}dense/bias": np.zeros([hidden_size], np.float32),
    }
    weights = {name: np.float32(source.read(name)) for name in source.shapes}
    values = {**pooler, **weights, _STEP: np.int64(step)}
    tf1_checkpoint.save(prefix, values)
    remote.show(prefix, source.path)
    return prefix


def check(
    source: Source,
    head: Sequence[str],
    task: Mapping[str, Any],
    vocab_file: str,
    bert_config: BertConfig,
    flag: str,
) -> None:
    """Checks that a network was fine-tuned for a task, as far as the files beside it say for which.

    Args:
      head: names of the variables that the task needs besides the encoder; the first of them is
        [number of outputs, hidden].
      task: what task.json would say of the flags and files.
      flag: the flag that names the network.
    """
    flags.check(
        all(name in source.shapes for name in head),
        flag,
        source.path,
        "holds a network that was not fine-tuned for a task of this script; add --do_train",
    )
    with flags.named(flag):
        source.check_network(bert_config)
        theirs = source.config or bert_config
        for name, was, value in differences(theirs, bert_config, do_train=False):
            raise ValueError(
                f"{source.path}: is a network with {name}={was!r}, but --bert_config_file has "
                f"{value!r}. Give its own file"
            )
        for key in _LEARNED:
            learned, asked = getattr(source, key), task.get(key)
            if key == "labels" and asked is not None:
                # The labels of a network are empty if they are not known.
                learned, asked = list(learned) or None, list(asked)
            if None not in (learned, asked) and learned != asked:
                raise ValueError(
                    f"{source.path}: the network was trained for {key} "
                    f"{json_files.shown(learned)}, but the flags and files ask for "
                    f"{json_files.shown(asked)}. {_WHAT_TO_DO}"
                )
        # None is a value here, the default, and not a sign that nothing is known.
        strips = source.strip_accents, task.get("strip_accents", source.strip_accents)
        if source.do_lower_case is not None and strips[0] != strips[1]:
            learned, asked = ("its default" if strip is None else str(strip) for strip in strips)
            raise ValueError(
                f"{source.path}: the network was trained with strip_accents={learned}, but the "
                f"flags ask for {asked}. {_WHAT_TO_DO}"
            )
        if source.version_2_with_negative and task.get("version_2_with_negative") is False:
            raise ValueError(
                f"{source.path}: the network was trained with --version_2_with_negative, to leave "
                "questions without an answer. Add that flag; with a large "
                "--null_score_diff_threshold, every question is answered all the same"
            )
        outputs = source.shapes[head[0]][0]
        number = len(task["labels"]) or 1 if "labels" in task else outputs  # 1 for regression
        if number != outputs:
            raise ValueError(
                f"{source.path}: the network has {outputs} outputs, but the flags and files ask "
                f"for {number}. {_WHAT_TO_DO}"
            )
        beside = source.vocab_file
        if beside is not None and _bytes_of(beside) != _bytes_of(vocab_file):
            raise ValueError(
                f"{source.path}: the network was trained with the vocabulary {beside}, and "
                f"{vocab_file} is another one. {_WHAT_TO_DO}"
            )


def warn_of_another_task(source: Source, head: Sequence[str], task: Mapping[str, Any]) -> None:
    """Warns if training starts from a head that has learned something else, of the same size."""
    labels = list(task.get("labels") or ())
    if source.shapes.get(head[0], [0])[0] != (len(labels) or 1):
        return
    learned = {"kind": source.kind, "labels": list(source.labels)}
    for key, value in (("kind", task.get("kind")), ("labels", labels)):
        if learned[key] and value and learned[key] != value:
            tf.logging.warning(
                "--init_checkpoint: the head of %s has learned the %s %s; training goes on from it "
                "with the %s %s.",
                source.path,
                key,
                json_files.shown(learned[key]),
                key,
                json_files.shown(value),
            )


def _bytes_of(path):
    with tf.io.gfile.GFile(path, "rb") as reader:
        return reader.read()
