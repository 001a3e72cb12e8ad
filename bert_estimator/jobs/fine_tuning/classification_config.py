"""The configuration of run_classifier.py: its flags, and their checks.

This module does not import TensorFlow, so wrong flags are reported before it is loaded.
"""

import os
import re
from collections.abc import Callable
from typing import ClassVar

from bert_estimator.command_line import flags, provenance
from bert_estimator.command_line.choices import (
    EMBEDDED_TAGGING_TASKS,
    EMBEDDED_TASKS,
    LEAST_TOKENS,
    LONG_TEXTS,
    TASK_KINDS,
)
from bert_estimator.command_line.provenance import read_command_line
from bert_estimator.jobs import used_network
from bert_estimator.jobs.fine_tuning.fine_tuning_config import (
    FineTuningConfig,
    TextFlags,
    plan_of_embedded,
)
from bert_estimator.jobs.job_config import find_output_dir
from bert_estimator.recipes import embedded
from bert_estimator.system import paths
from input_pipelines.tasks import table_files
from input_pipelines.tasks.task_table import TASK_NAMES

_EMBEDDED = (*EMBEDDED_TASKS, *EMBEDDED_TAGGING_TASKS)
# `tag_files.FORMATS`, whose module loads numpy.
TAG_FORMATS = (
    ".conll", ".conllu", ".txt", ".tsv", ".bio", ".iob", ".iob2", *table_files.OBJECT_FORMATS,
)  # fmt: skip
# The flags that only a user's own files need.
_OWN_FLAGS = (
    "train_file", "eval_file", "predict_file", "text_a_column", "text_b_column", "label_column",
    "encoding", "task_kind",
)  # fmt: skip


def _check_encoding(name, value):
    try:
        "".encode(value)
    except (LookupError, ValueError):
        rule = "is not an encoding of text that Python knows; give one such as utf-8 or cp1252"
        flags.check(False, name, value, rule)


def _check_weights(name, value):
    weights = value.split(",") if value else ("1",)
    are_numbers = all(re.fullmatch(r"[0-9]{0,20}\.?[0-9]{1,20}", weight) for weight in weights)
    rule = "must be numbers, not below 0 and not all 0, with commas between them"
    flags.check(are_numbers and any(map(float, weights)), name, value, rule)


def _one_of(endings):
    return f"{', '.join(endings[:-1])} or {endings[-1]}"


@flags.group(flags.COMMON, may_differ=flags.EVALUATING)
class ExampleFlags(TextFlags):
    """Says which examples a run reads, and what their labels are."""

    task_name: str | None = flags.field(
        None, f"Choose one of {', '.join((*TASK_NAMES, *_EMBEDDED))}."
    )
    data_dir: str | None = flags.field(
        None,
        "Read the task's files, as they are distributed, from this directory.",
    )
    train_file: str | None = flags.field(
        None,
        f"Train on your own examples: a {_one_of(table_files.FORMATS)} file, or for tagging a "
        f"{_one_of(TAG_FORMATS)} file. It may be compressed, as .gz.",
        flags.check_file,
    )
    encoding: str = flags.field(
        "utf-8",
        "Read your own files in this encoding, such as cp1252 (Windows) or utf-16.",
        _check_encoding,
        heading=flags.DATA,
    )
    task_kind: str = flags.field(
        "classification",
        f"Say what labels are: {', '.join(TASK_KINDS)}.",
        flags.one_of(TASK_KINDS),
        heading=flags.DATA,
    )
    language: str = flags.field(
        "zh", "Choose the language of XNLI.", heading=flags.DATA, may_differ=False
    )
    text_a_column: str | None = flags.field(
        None,
        "Name the column of the text or the words, or give its number from 1 (no header).",
        heading=flags.DATA,
        may_differ=False,
    )
    text_b_column: str | None = flags.field(
        None, "Name the column of the second text.", heading=flags.DATA, may_differ=False
    )
    label_column: str | None = flags.field(
        None, "Name the column of the label or the tags.", heading=flags.DATA, may_differ=False
    )
    class_weights: str | None = flags.field(
        None,
        "Weight the labels in the loss: numbers, comma-separated.",
        _check_weights,
        heading=flags.DATA,
        may_differ=False,
    )
    label_smoothing: float = flags.field(
        0.0,
        "Share this part of a label's weight evenly among all labels, in the loss of training.",
        flags.rule(lambda share: 0 <= share < 1, "must be at least 0 and below 1"),
        heading=flags.TRAINING,
    )
    max_seq_length: int = flags.field(
        128,
        "Cut examples to this many tokens.",
        flags.rule(
            lambda length: length >= LEAST_TOKENS,
            f"must be at least {LEAST_TOKENS}: a pair of texts has three tokens besides its words",
        ),
        may_differ=False,
    )
    long_texts: str = flags.field(
        "cut",
        "Read of a text that is longer its beginning (cut), its beginning and end (head_tail), or "
        "all of it in windows, whose logits are averaged (windows).",
        flags.one_of(LONG_TEXTS),
        heading=flags.DATA,
    )
    doc_stride: int | None = flags.field(
        None,
        "Start each window so many tokens of the text after the window before it; the default is "
        "half of a window.",
        flags.positive,
        heading=flags.DATA,
    )

    def check_long_texts(self, is_given: Callable[[str], bool]) -> None:
        """Raises FlagError if a task does not have long texts, or --doc_stride is not used."""
        is_tagging = self.task_kind == "tagging" or self.task_name in EMBEDDED_TAGGING_TASKS
        rule = (
            "is for texts; a long sentence of tagged words is split, and none of its words is lost"
        )
        flags.check(not is_tagging or self.long_texts == "cut", "long_texts", self.long_texts, rule)
        # A run's own stride, which no flag gives, is not used for another choice.
        is_used, stride = self.long_texts == "windows", self.doc_stride
        rule = "is for --long_texts=windows; add it, or leave this out"
        flags.check(is_used or not is_given("doc_stride"), "doc_stride", stride, rule)

    def check_stride(self) -> None:
        """Raises FlagError if windows would not overlap; max_seq_length is the network's."""
        room, stride = self.max_seq_length - 2, self.doc_stride
        rule = f"must be at most {room}, the tokens of a window: windows would not overlap"
        overlap = self.long_texts != "windows" or (stride or 0) <= room
        flags.check(overlap, "doc_stride", stride, rule)


@flags.group(flags.TASKS, may_differ=True)
class ClassificationConfig(FineTuningConfig):
    """Holds the flags of a run of run_classifier.py, with one seed."""

    DATA_FLAGS: ClassVar[tuple[str, ...]] = ("data_dir", *FineTuningConfig.DATA_FLAGS, "task_name")

    output_dir: str = flags.field(
        "runs/classifier",
        "Write checkpoints, events, metrics and curves into this directory.",
        heading=flags.COMMON,
    )
    data: ExampleFlags = flags.member(ExampleFlags)
    do_predict: bool = flags.field(
        False,
        "Predict, into test_results.tsv, or for tagging in the format of --predict_file.",
    )

    def check(self) -> None:
        """Checks all that can be checked before TensorFlow is loaded."""
        self._check_choices()
        self._check_flags_that_are_read()
        super().check()
        self.data.check_long_texts(self.is_given)
        # Without training, the network may say the length, and is opened later.
        if self.do_train or self.plan.compile_only or self.is_given("max_seq_length"):
            self.data.check_stride()
        self.check_network_and_hosts()

    def _check_choices(self):
        """Checks what is chosen by name; other checks would misread a misspelt name."""
        data, names = self.data, (*TASK_NAMES, *_EMBEDDED)
        flags.check_choice("task_kind", data.task_kind, TASK_KINDS)
        _check_encoding("encoding", data.encoding)
        if data.task_name:
            flags.check_choice("task_name", data.task_name, names)
        rule = f"is needed with --data_dir: one of {', '.join(TASK_NAMES)}"
        flags.check(data.task_name or not data.data_dir, "task_name", None, rule)

    def _check_flags_that_are_read(self):
        """Raises FlagError if a flag is given that the task does not read."""
        data = self.data
        if self.embedded:
            rule = f"--task_name={data.task_name} has texts of its own"
            unread = (*_OWN_FLAGS, "data_dir", "language")
            if data.task_kind == "tagging" and data.task_name in EMBEDDED_TAGGING_TASKS:
                unread = [name for name in unread if name != "task_kind"]
        elif data.task_name:
            rule = f"--task_name={data.task_name} has its files in --data_dir"
            unread = (*_OWN_FLAGS, *(() if data.task_name == "xnli" else ("language",)))
        else:
            rule, unread = "is for XNLI; your own files have any", ("language",)
            rule_of_pairs = "--task_kind=tagging has no second texts; leave it out"
            is_pair = data.task_kind == "tagging" and self.is_given("text_b_column")
            flags.check(not is_pair, "text_b_column", data.text_b_column, rule_of_pairs)
        for name in unread:
            value = flags.values_of(self)[name]
            flags.check(not self.is_given(name), name, value, f"{rule}; leave it out")

    def check_data_flags(self) -> None:
        """Checks that --task_name and --data_dir name the task's files, or a flag names each."""
        data = self.data
        if data.task_name:
            flags.check(data.data_dir, "data_dir", None, "is needed: it holds the task's files")
            is_directory = paths.is_remote(data.data_dir) or os.path.isdir(data.data_dir)
            flags.check(is_directory, "data_dir", data.data_dir, "is not a directory")
            return
        super().check_data_flags()
        flags.check(
            data.train_file
            or self.network.init_checkpoint
            or self.holds_network()
            or data.task_kind == "regression",
            "train_file",
            None,
            "is needed also to evaluate and to predict, unless --output_dir or --init_checkpoint "
            "has a network, which says its labels: without one they are discovered in this file",
        )


def resolve(argv: list[str]) -> list[ClassificationConfig]:
    """Parses and checks a command line; returns the configurations of the seeds."""
    settings, sources = read_command_line(ClassificationConfig, argv)
    settings["output_dir"], mirror = find_output_dir(settings["output_dir"])
    settings["task_name"] = settings["task_name"] and settings["task_name"].lower()
    # A remote run is on this machine from here on, so its recorded flags can be read.
    used = used_network.recall(ClassificationConfig, settings, sources, "task_name")
    # Without a name, the embedded task is meant if a command names neither data nor a run's
    # network; for networks of others, `check_data` refuses it.
    verbs = [name for name in ClassificationConfig.VERBS if settings[name]]
    is_embedded = settings["task_name"] in _EMBEDDED or not (
        any(sources[name] == provenance.FLAG for name in ClassificationConfig.DATA_FLAGS)
        # An export alone needs no examples.
        or (used and (used.recorded or verbs == ["do_export"]))
    )
    if is_embedded and settings["task_name"] is None:
        used_network.check_data(
            used,
            "give --eval_file to evaluate, --predict_file to predict, or --task_name and "
            f"--data_dir; for the embedded task, add --task_name={EMBEDDED_TASKS[0]}",
        )
    if is_embedded:
        is_tagging = settings["task_name"] in EMBEDDED_TAGGING_TASKS or (
            settings["task_name"] is None and settings["task_kind"] == "tagging"
        )
        plan = embedded.TAGGING_FLAGS if is_tagging else embedded.CLASSIFIER_FLAGS
        plan = plan_of_embedded(plan, settings, sources)
        provenance.apply(plan, provenance.EMBEDDED, settings, sources)
    fields = {"embedded": is_embedded, "sources": sources, "mirror": mirror}
    run = flags.build(ClassificationConfig, settings, **fields)
    run.check()
    return run.runs()
