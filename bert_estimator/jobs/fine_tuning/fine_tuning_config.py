"""What the configurations of fine-tuning share: run_classifier.py's and run_squad.py's.

This module does not import TensorFlow, so wrong flags are reported before it is loaded.
"""

import glob
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from bert_estimator.command_line import flags, provenance
from bert_estimator.command_line.choices import (
    EXPORT_FORMATS,
    EXPORT_INPUTS,
    ONNX_INT8,
    SAVED_MODEL,
)
from bert_estimator.jobs.groups import (
    BATCH_CHECKS,
    SHARE,
    DataFlags,
    EvaluationFlags,
    OptimizerFlag,
    TrainingFlags,
)
from bert_estimator.jobs.job_config import JobConfig
from bert_estimator.recipes import embedded
from bert_estimator.storage import remote
from bert_estimator.storage.mirror import RESULTS
from bert_estimator.system import paths
from bert_estimator.system.errors import GREATEST


@flags.group(flags.COMMON, may_differ=flags.EVALUATING)
class TextFlags(DataFlags):
    """Says which files a run reads, and how it makes tokens of their text."""

    train_file: str | None = flags.field(None, "Train on this file.", flags.check_file)
    eval_file: str | None = flags.field(
        None, "Evaluate on such a file.", flags.check_file, may_differ=True
    )
    predict_file: str | None = flags.field(
        None,
        "Predict for such a file; it needs no labels and no answers.",
        flags.check_file,
        may_differ=True,
    )
    vocab_file: str | None = flags.field(
        None,
        "Tokenize with this vocabulary: WordPiece, or SentencePiece if it ends in .model.",
        flags.check_file,
    )
    do_lower_case: bool | None = flags.field(
        None,
        "Lower-case the text. By default, do as the network's files say, or else its vocabulary.",
        heading=flags.DATA,
        may_differ=True,  # `facts.check_kept` compares it with what the run recorded
    )
    strip_accents: bool | None = flags.field(
        None,
        "Strip accents from the text, with the same default.",
        heading=flags.DATA,
        may_differ=True,
    )
    pack: bool = flags.field(
        True,
        "Put several examples into a row, so that less padding is computed.",
        heading=flags.TRAINING,
    )


@flags.group(flags.TRAINING, may_differ=flags.EVALUATING)
class EpochFlags(TrainingFlags):
    """Says how weights are updated, and how long."""

    OPTIMIZER_FLAGS: ClassVar[dict[str, OptimizerFlag]] = {
        **TrainingFlags.OPTIMIZER_FLAGS,
        "adam_bias_correction": OptimizerFlag("bias_correction", ("adamw",)),
    }

    num_train_epochs: float = flags.field(
        3.0,
        "Pass this many times over the training examples.",
        flags.positive,
        heading=flags.COMMON,
        may_differ=True,
    )
    adam_bias_correction: bool = flags.field(
        True,
        "Correct the bias of AdamW's moments, which google-research/bert does not.",
    )
    warmup_proportion: float = flags.field(
        0.1, "Warm up linearly for this share of the training.", SHARE
    )

    def num_train_steps(self, num_examples: int) -> int:
        """Returns the steps of a training, as google-research/bert counts them: rounded down."""
        steps = num_examples / self.train_batch_size * self.num_train_epochs
        rule = f"gives {steps:g} steps, more than {GREATEST}"
        flags.check(steps <= GREATEST, "num_train_epochs", self.num_train_epochs, rule)
        return int(steps)

    def schedule(self, num_examples: int) -> Any:
        """Returns the `WarmupPolynomialDecay` of the learning rate."""
        from bert_estimator import optimization

        steps = self.num_train_steps(num_examples)
        rule = (
            f"the {num_examples} examples do not make a step of --train_batch_size="
            f"{self.train_batch_size}; give a smaller batch, more epochs or more examples"
        )
        flags.check(steps > 0, "num_train_epochs", self.num_train_epochs, rule)
        # A step must be left after the warm-up, even if all of the training is to be warm-up.
        num_warmup_steps = min(int(steps * self.warmup_proportion), steps - 1)
        return optimization.WarmupPolynomialDecay(self.learning_rate, steps, num_warmup_steps)


@flags.group(flags.CHECKPOINTS, may_differ=True)
class ResultFlags(EvaluationFlags):
    """Says how a run evaluates and predicts, and what it exports."""

    predict_batch_size: int = flags.field(
        8, "Predict global batches of this many examples.", *BATCH_CHECKS
    )
    export_inputs: str | None = flags.field(
        None,
        "Export a model that takes text or ids; the default is text, but ids for tags, for a "
        "SentencePiece vocabulary, and for --long_texts other than cut.",
        flags.one_of(EXPORT_INPUTS),
    )
    export_format: str = flags.field(
        SAVED_MODEL,
        "Export a SavedModel, or an ONNX model for onnxruntime, in float32 or with the products of "
        f"weights in int8: {', '.join(EXPORT_FORMATS)}.",
        flags.one_of(EXPORT_FORMATS),
    )


@flags.group(flags.TASKS, may_differ=True)
class FineTuningConfig(JobConfig):
    """Holds the flags of a run that fine-tunes, with one seed."""

    VERBS: ClassVar[tuple[str, ...]] = ("do_train", "do_eval", "do_predict", "do_export")
    # Any of these flags gives the run data of its own.
    DATA_FLAGS: ClassVar[tuple[str, ...]] = ("train_file", "eval_file", "predict_file")

    data: TextFlags = flags.member(TextFlags)
    training: EpochFlags = flags.member(EpochFlags)
    evaluation: ResultFlags = flags.member(ResultFlags)
    do_predict: bool = flags.field(False, "Predict.")
    do_export: bool = flags.field(False, "Export a SavedModel, into export/.")
    num_seeds: int = flags.field(
        1,
        "Run this many seeds, from --random_seed on; print median and spread.",
        flags.positive,
        flags.at_most(1000),
    )

    def evaluates(self) -> bool:
        """Returns whether the run evaluates, at its end, on the way or when it exports."""
        return self.do_eval or self.evaluates_while_training() or self.exports_int8()

    def exports_int8(self) -> bool:
        """Returns whether the run exports a model that computes with rounded numbers, whose loss is
        measured by an evaluation."""
        return self.do_export and self.evaluation.export_format == ONNX_INT8

    def check(self) -> None:
        """Checks all but the data's own flags, as far as TensorFlow is not needed."""
        super().check()
        self._check_results_are_not_read()
        last = self.training.random_seed + self.num_seeds - 1
        rule = f"would use the seed {last} last; --random_seed can be at most {GREATEST}"
        flags.check(last <= GREATEST, "num_seeds", self.num_seeds, rule)
        inputs, rule = (
            self.evaluation.export_inputs,
            "is for --do_export; add it, or leave this out",
        )
        # --nodo_export may override the --config of an earlier run that exported.
        is_meant = self.do_export or self.is_given("do_export")
        flags.check(inputs is None or is_meant, "export_inputs", inputs, rule)
        kind = self.evaluation.export_format
        flags.check(kind == SAVED_MODEL or is_meant, "export_format", kind, rule)
        rule = f"is for SavedModels; with --export_format={kind}, which takes ids, leave this out"
        flags.check(inputs is None or kind == SAVED_MODEL, "export_inputs", inputs, rule)

    def _check_results_are_not_read(self):
        """Raises FlagError if predictions would replace a file of examples."""
        output_dir = paths.place(remote.shown(self.output_dir))
        for name in ("train_file", "eval_file", "predict_file") if self.do_predict else ():
            path = getattr(self.data, name)
            folder, file = os.path.split(paths.place(path or ""))
            is_within = os.path.commonpath([folder, output_dir]) == output_dir
            rule = "would be replaced by what --do_predict writes; give another --output_dir"
            flags.check(not (path and is_within and RESULTS.fullmatch(file)), name, path, rule)

    def check_network_and_hosts(self) -> None:
        """Checks what comes last: the files of the network, and that there is one host."""
        if not self.embedded:
            start = self.network.init_checkpoint
            for name, value in (
                ("vocab_file", self.data.vocab_file),
                ("bert_config_file", self.network.bert_config_file),
            ):
                rule = "is needed, unless there is one beside --init_checkpoint"
                is_beside = start or (not self.do_train and self.holds_network())
                flags.check(value or is_beside, name, None, rule)
            self.check_data_flags()
        if flags.find_hosts().number > 1:
            raise flags.FlagError(
                "TF_CONFIG names several hosts; this script runs on one: unset it"
            )

    def holds_network(self) -> bool:
        """Returns whether there is a checkpoint in the run's directory, or may be one, since a
        remote directory is read later."""
        # The mirror may not have copied a remote directory yet.
        seed = f"seed-{self.training.random_seed}" if self.num_seeds > 1 else ""
        pattern = os.path.join(glob.escape(self.output_dir), seed, "model.ckpt-*.index")
        is_there = self.mirror is not None or bool(glob.glob(pattern))
        return not self.plan.compile_only and is_there

    def check_data_flags(self) -> None:
        """Checks that a flag names the file that each verb needs; raises FlagError if not."""
        if self.plan.compile_only:
            needed = {"compile_only": "train_file"}
        else:
            verbs = [("do_train", "train_file"), ("do_eval", "eval_file")]
            needed = {verb: file for verb, file in verbs if getattr(self, verb)}
            if self.do_train:
                needed |= dict.fromkeys(self.evaluation.while_training(), "eval_file")
            if self.do_predict:
                needed["do_predict"] = "predict_file"
            if self.exports_int8():
                needed["export_format=onnx_int8"] = "eval_file"
        for verb, name in needed.items():
            rule = f"is needed for --{verb}; or turn it off"
            flags.check(getattr(self.data, name), name, None, rule)

    def of_length(self, max_seq_length: int) -> "FineTuningConfig":
        """Returns the configuration with a --max_seq_length that no flag gives."""
        return flags.changed(self, max_seq_length=max_seq_length)

    def settings_to_go_on(self) -> dict[str, Any]:
        """Returns the settings that a run must share with the run that it resumes or evaluates."""
        settings = super().settings_to_go_on()
        if not self.do_train and not self.is_given("max_seq_length"):
            settings.pop("max_seq_length", None)  # the network says it
        return settings

    def runs(self) -> list["FineTuningConfig"]:
        """Returns the configurations of the runs: one, or one for each of --num_seeds, in a
        directory of its own."""
        if self.plan.compile_only or self.num_seeds == 1:
            return [self]
        first = self.training.random_seed
        return [
            flags.changed(
                self,
                random_seed=seed,
                output_dir=os.path.join(self.output_dir, f"seed-{seed}"),
                num_seeds=1,
                # --config of this run's config.json repeats this seed.
                sources={**self.sources, "random_seed": provenance.FLAG},
            )
            for seed in range(first, first + self.num_seeds)
        ]


def plan_of_embedded(
    plan: Mapping[str, Any], settings: dict[str, Any], sources: dict[str, provenance.Provenance]
) -> dict[str, Any]:
    """Returns the plan of an embedded task, with the start of the main job if it has run."""
    is_start_named = sources["init_checkpoint"] == provenance.FLAG
    # A checkpoint and its vocabulary belong together: the vocabulary beside the named checkpoint
    # counts, which `opened_network.completed` finds. So do the script's own batch, rate and epochs,
    # by which published networks are fine-tuned.
    if is_start_named and settings["init_checkpoint"]:
        return {n: v for n, v in plan.items() if n not in embedded.FOR_SMALL_NETWORKS}
    # Networks of other sizes start from scratch, and without training, the run's own network
    # counts.
    is_other = provenance.FLAG in (sources["vocab_file"], sources["bert_config_file"])
    if is_other or not settings["do_train"]:
        return dict(plan)
    checkpoint, vocab_file = embedded.main_job_checkpoint()
    start = {} if is_start_named else {"init_checkpoint": checkpoint}
    return {**plan, "vocab_file": vocab_file, **start}
