"""The configuration of run_classifier.py: its flags, and their checks.

This module does not import TensorFlow, so wrong flags are reported before it is loaded.
"""

import dataclasses
import os
import re
from typing import Any, ClassVar

from bert_estimator import provenance
from bert_estimator.choices import EMBEDDED_TAGGING_TASKS, EMBEDDED_TASKS, TASK_KINDS
from bert_estimator.command_line import flags
from bert_estimator.jobs.config import JobConfig, read_command_line
from bert_estimator.recipes import embedded_classifier
from input_pipelines.tasks import TASK_NAMES

_EMBEDDED = (*EMBEDDED_TASKS, *EMBEDDED_TAGGING_TASKS)
_DATA_FLAGS = ("task_name", "data_dir", "train_file", "eval_file", "predict_file")
# The flags that only a user's own files need.
_OWN_FLAGS = (
    "train_file", "eval_file", "predict_file", "text_a_column", "text_b_column", "label_column",
    "task_kind",
)  # fmt: skip
_MOST_SEEDS = 1000
_LEAST_TOKENS = 5  # of a pair: [CLS], a token, [SEP], a token, [SEP]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationConfig(JobConfig):
    """A run of run_classifier.py, with one seed."""

    VERBS: ClassVar[tuple[str, ...]] = ("do_train", "do_eval", "do_predict", "do_export")
    BATCH_SIZES: ClassVar[tuple[str, ...]] = (*JobConfig.BATCH_SIZES, "predict_batch_size")

    output_dir: str = flags.field(
        "runs/classifier",
        "Write checkpoints, events, metrics and curves into this directory.",
        may_differ=True,
    )
    task_name: str | None = flags.field(
        None, f"Choose one of {', '.join((*TASK_NAMES, *_EMBEDDED))}."
    )
    data_dir: str | None = flags.field(
        None, "Read the task's files, as they are distributed, from this directory."
    )
    language: str = flags.field("zh", "Choose the language of XNLI.")
    train_file: str | None = flags.field(
        None,
        "Train on your own examples: a .tsv, .csv or .jsonl file, or for tagging a .conll, .txt or "
        ".jsonl file.",
    )
    eval_file: str | None = flags.field(
        None, "Evaluate on the examples of such a file.", may_differ=True
    )
    predict_file: str | None = flags.field(
        None, "Predict for the examples of such a file; it needs no labels.", may_differ=True
    )
    text_a_column: str | None = flags.field(
        None, "Name the column of the text or the words, or give its number from 1 (no header)."
    )
    text_b_column: str | None = flags.field(None, "Name the column of the second text.")
    label_column: str | None = flags.field(None, "Name the column of the label or the tags.")
    task_kind: str = flags.field("classification", f"Say what labels are: {', '.join(TASK_KINDS)}.")
    vocab_file: str | None = flags.field(
        None, "Tokenize with this vocabulary: WordPiece, or SentencePiece if it ends in .model."
    )
    do_lower_case: bool = flags.field(
        True, "Lower-case the text, if the vocabulary was made of lower-cased text."
    )
    max_seq_length: int = flags.field(128, "Cut examples to this many tokens.")
    class_weights: str | None = flags.field(
        None, "Weight the labels in the loss: numbers, comma-separated."
    )
    predict_batch_size: int = flags.field(
        8, "Predict global batches of this many examples.", may_differ=True
    )
    num_train_epochs: float = flags.field(
        3.0, "Pass this many times over the training examples.", may_differ=True
    )
    warmup_proportion: float = flags.field(0.1, "Warm up linearly for this share of the training.")
    layerwise_lr_decay: float = flags.field(
        1.0, "Multiply the learning rate by this factor from each layer to the layer below it."
    )
    do_predict: bool = flags.field(
        False,
        "Predict, into test_results.tsv, or for tagging in the format of --predict_file.",
        may_differ=True,
    )
    do_export: bool = flags.field(False, "Export a SavedModel, into export/.", may_differ=True)
    num_seeds: int = flags.field(
        1, "Run this many seeds, from --random_seed on; print median and spread.", may_differ=True
    )

    def evaluates(self) -> bool:
        """Returns whether the run evaluates, at its end or on the way."""
        return self.do_eval or self.evaluates_while_training()

    def check(self) -> None:
        """Checks all that can be checked before TensorFlow is loaded.

        Raises:
          FlagError: it names the flag, what is allowed, and what to do.
        """
        self._check_flags_that_are_read()
        super().check()
        for name in ("num_train_epochs", "num_seeds"):
            flags.check_positive(name, getattr(self, name))
        rule = f"must be at most {_MOST_SEEDS}"
        flags.check(self.num_seeds <= _MOST_SEEDS, "num_seeds", self.num_seeds, rule)
        flags.check(
            self.max_seq_length >= _LEAST_TOKENS,
            "max_seq_length",
            self.max_seq_length,
            f"must be at least {_LEAST_TOKENS}: a pair of texts has three tokens besides its words",
        )
        for name in ("layerwise_lr_decay", "warmup_proportion"):
            value = getattr(self, name)
            flags.check(0 <= value <= 1, name, value, "must be from 0 to 1")
        flags.check_choice("task_kind", self.task_kind, TASK_KINDS)
        for name in ("train_file", "eval_file", "predict_file", "vocab_file"):
            flags.check_file(name, getattr(self, name))
        weights = self.class_weights.split(",") if self.class_weights else ("1",)
        are_numbers = all(re.fullmatch(r"[0-9]{0,20}\.?[0-9]{1,20}", weight) for weight in weights)
        flags.check(
            are_numbers and any(map(float, weights)),
            "class_weights",
            self.class_weights,
            "must be numbers, not below 0 and not all 0, with commas between them",
        )
        if not self.embedded:
            for name in ("vocab_file", "bert_config_file"):
                value = getattr(self, name)
                flags.check(value, name, None, "is needed, unless the task is embedded")
            self._check_data_flags()
        if flags.find_hosts().number > 1:
            raise flags.FlagError(
                "TF_CONFIG names several hosts; this script runs on one: unset it"
            )
        flags.check_writable_directory("output_dir", self.output_dir)

    def _check_flags_that_are_read(self):
        """Raises FlagError if a flag is given that the task does not read."""
        if self.embedded:
            rule = f"--task_name={self.task_name} has texts and a network of its own"
            unread = (*_OWN_FLAGS, "data_dir", "language", "bert_config_file")
        elif self.task_name:
            rule = f"--task_name={self.task_name} has its files in --data_dir"
            unread = (*_OWN_FLAGS, *(() if self.task_name == "xnli" else ("language",)))
        else:
            rule, unread = "is for XNLI; your own files have any", ("language",)
            rule_of_pairs = "--task_kind=tagging has no second texts; leave it out"
            is_pair = self.task_kind == "tagging" and self.is_given("text_b_column")
            flags.check(not is_pair, "text_b_column", self.text_b_column, rule_of_pairs)
        for name in unread:
            value = getattr(self, name)
            flags.check(not self.is_given(name), name, value, f"{rule}; leave it out")

    def _check_data_flags(self):
        """Checks that --task_name and --data_dir name the task's files, or a flag names each."""
        if self.task_name or self.data_dir:
            flags.check_choice("task_name", self.task_name, (*TASK_NAMES, *_EMBEDDED))
            flags.check(self.data_dir, "data_dir", None, "is needed: it holds the task's files")
            is_directory = os.path.isdir(self.data_dir)
            flags.check(is_directory, "data_dir", self.data_dir, "is not a directory")
            return
        if self.compile_only:
            needed = {"compile_only": "train_file"}
        else:
            needed = {"do_train": "train_file", "do_eval": "eval_file"}
            if self.do_train:
                needed |= dict.fromkeys(self.EVALUATE_WHILE_TRAINING, "eval_file")
            needed["do_predict"] = "predict_file"
        for verb, name in needed.items():
            flags.check(
                not getattr(self, verb) or getattr(self, name),
                name,
                None,
                f"is needed for --{verb}; or turn it off",
            )
        flags.check(
            self.train_file or self.task_kind == "regression",
            "train_file",
            None,
            "is needed also to evaluate and to predict: the labels are discovered in it",
        )


def resolve(argv: list[str]) -> list[ClassificationConfig]:
    """Parses and checks a command line.

    Returns:
      The configurations of the runs, one for each seed.

    Raises:
      FlagError: it names the flag, what is allowed, and what to do.
    """
    settings, sources = read_command_line(ClassificationConfig, argv)
    settings["task_name"] = settings["task_name"] and settings["task_name"].lower()
    is_embedded = settings["task_name"] in _EMBEDDED or not any(
        sources[name] == provenance.FLAG for name in _DATA_FLAGS
    )
    if is_embedded:
        for name, value in _embedded_plan(settings["task_name"], sources).items():
            if sources[name] != provenance.FLAG:
                settings[name], sources[name] = value, provenance.EMBEDDED
    settings["optimizer"] = settings["optimizer"] or "adamw"
    config = ClassificationConfig(**settings, embedded=is_embedded, sources=sources)
    config.check()
    if config.compile_only:
        return [config]
    configs = [config] if config.num_seeds == 1 else _seeds(config)
    for config in configs:
        config.open_directory()
    return configs


def _embedded_plan(task_name: str | None, sources: dict[str, provenance.Source]) -> dict[str, Any]:
    """Returns flag name -> value, for a task that has text and a network of its own."""
    checkpoint, vocab_file = embedded_classifier.main_job_checkpoint()
    plan = {"vocab_file": vocab_file, **embedded_classifier.FLAGS}
    if task_name in EMBEDDED_TAGGING_TASKS:
        plan.update(embedded_classifier.TAGGING_FLAGS)
    # A checkpoint and its vocabulary belong together.
    if provenance.FLAG not in (sources["vocab_file"], sources["init_checkpoint"]):
        plan["init_checkpoint"] = checkpoint
    return plan


def _seeds(config):
    """Returns the configurations of the runs of --num_seeds, each in a directory of its own."""
    return [
        dataclasses.replace(
            config,
            random_seed=seed,
            output_dir=os.path.join(config.output_dir, f"seed-{seed}"),
            num_seeds=1,
            # --config of this run's config.json repeats this seed.
            sources={**config.sources, "random_seed": provenance.FLAG},
        )
        for seed in range(config.random_seed, config.random_seed + config.num_seeds)
    ]
