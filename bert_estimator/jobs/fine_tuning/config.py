"""What the configurations of fine-tuning share: run_classifier.py's and run_squad.py's.

This module does not import TensorFlow, so wrong flags are reported before it is loaded.
"""

import dataclasses
import glob
import os
from typing import Any, ClassVar, TypeVar

from bert_estimator.command_line import flags, provenance
from bert_estimator.command_line.choices import EXPORT_INPUTS
from bert_estimator.jobs.config import JobConfig
from bert_estimator.recipes import embedded_classifier
from bert_estimator.system.errors import GREATEST

_MOST_SEEDS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningConfig(JobConfig):
    """A run that fine-tunes, with one seed.

    Attributes:
      DATA_FLAGS: the flags of which any gives the run data of its own.
    """

    VERBS: ClassVar[tuple[str, ...]] = ("do_train", "do_eval", "do_predict", "do_export")
    BATCH_SIZES: ClassVar[tuple[str, ...]] = (*JobConfig.BATCH_SIZES, "predict_batch_size")
    DATA_FLAGS: ClassVar[tuple[str, ...]] = ("train_file", "eval_file", "predict_file")

    train_file: str | None = flags.field(None, "Train on this file.", eval_may_differ=True)
    eval_file: str | None = flags.field(None, "Evaluate on this file.", may_differ=True)
    predict_file: str | None = flags.field(None, "Predict for this file.", may_differ=True)
    vocab_file: str | None = flags.field(
        None,
        "Tokenize with this vocabulary: WordPiece, or SentencePiece if it ends in .model.",
        eval_may_differ=True,
    )
    do_lower_case: bool = flags.field(
        True,
        "Lower-case the text, if the vocabulary was made of lower-cased text.",
        eval_may_differ=True,
    )
    strip_accents: bool | None = flags.field(
        None,
        "Strip accents from the text. By default, do so if it is lower-cased, and always for "
        "SentencePiece.",
        eval_may_differ=True,
    )
    predict_batch_size: int = flags.field(
        8, "Predict global batches of this many examples.", may_differ=True
    )
    num_train_epochs: float = flags.field(
        3.0, "Pass this many times over the training examples.", may_differ=True
    )
    warmup_proportion: float = flags.field(
        0.1, "Warm up linearly for this share of the training.", eval_may_differ=True
    )
    layerwise_lr_decay: float = flags.field(
        1.0,
        "Multiply the learning rate by this factor from each layer to the layer below it.",
        eval_may_differ=True,
    )
    pack: bool = flags.field(
        True,
        "Put several examples into a row, so that less padding is computed.",
        eval_may_differ=True,
    )
    do_predict: bool = flags.field(False, "Predict.", may_differ=True)
    do_export: bool = flags.field(False, "Export a SavedModel, into export/.", may_differ=True)
    export_inputs: str | None = flags.field(
        None, "Export a model that takes text or ids.", may_differ=True
    )
    num_seeds: int = flags.field(
        1, "Run this many seeds, from --random_seed on; print median and spread.", may_differ=True
    )

    def evaluates(self) -> bool:
        """Returns whether the run evaluates, at its end or on the way."""
        return self.do_eval or self.evaluates_while_training()

    def check(self) -> None:
        """Checks what can be checked before TensorFlow is loaded, except for the data's own flags.

        Raises:
          FlagError: it names the flag, what is allowed, and what to do.
        """
        super().check()
        for name in ("num_train_epochs", "num_seeds"):
            flags.check_positive(name, getattr(self, name))
        rule = f"must be at most {_MOST_SEEDS}"
        flags.check(self.num_seeds <= _MOST_SEEDS, "num_seeds", self.num_seeds, rule)
        last = self.random_seed + self.num_seeds - 1
        rule = f"would use the seed {last} last; --random_seed can be at most {GREATEST}"
        flags.check(last <= GREATEST, "num_seeds", self.num_seeds, rule)
        if self.export_inputs is not None:
            flags.check_choice("export_inputs", self.export_inputs, EXPORT_INPUTS)
            rule = "is for --do_export; add it, or leave this out"
            # --nodo_export may override the --config of an earlier run that exported.
            is_meant = self.do_export or self.is_given("do_export")
            flags.check(is_meant, "export_inputs", self.export_inputs, rule)
        for name in ("layerwise_lr_decay", "warmup_proportion"):
            value = getattr(self, name)
            flags.check(0 <= value <= 1, name, value, "must be from 0 to 1")
        for name in ("train_file", "eval_file", "predict_file", "vocab_file"):
            flags.check_file(name, getattr(self, name))

    def check_network_and_directory(self) -> None:
        """Checks what comes last: the files of the network, the hosts, and the directory.

        Raises:
          FlagError: a file is missing, there are several hosts, or the directory is not writable.
        """
        if not self.embedded:
            for name in ("vocab_file", "bert_config_file"):
                value = getattr(self, name)
                rule = "is needed, unless there is one beside --init_checkpoint"
                is_beside = self.init_checkpoint or (not self.do_train and self.holds_network())
                flags.check(value or is_beside, name, None, rule)
            self.check_data_flags()
        if flags.find_hosts().number > 1:
            raise flags.FlagError(
                "TF_CONFIG names several hosts; this script runs on one: unset it"
            )
        flags.check_writable_directory("output_dir", self.output_dir)

    def holds_network(self) -> bool:
        """Returns whether there is a checkpoint in the run's directory, or may be one, since a
        remote directory is read later."""
        seed = f"seed-{self.random_seed}" if self.num_seeds > 1 else ""
        pattern = os.path.join(glob.escape(self.output_dir), seed, "model.ckpt-*.index")
        return not self.compile_only and (self.mirror is not None or bool(glob.glob(pattern)))

    def check_data_flags(self) -> None:
        """Checks that a flag names the file that each verb needs; raises FlagError if not."""
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


Config = TypeVar("Config", bound=FineTuningConfig)


def with_plan(
    settings: dict[str, Any],
    sources: dict[str, provenance.Source],
    values: dict[str, Any],
    source: provenance.Source = provenance.EMBEDDED,
) -> None:
    """Puts the values of a plan into settings, except for flags that the command line gives."""
    for name, value in values.items():
        if sources[name] != provenance.FLAG:
            settings[name], sources[name] = value, source


def start_of_main_job(
    settings: dict[str, Any], sources: dict[str, provenance.Source]
) -> dict[str, Any]:
    """Returns the flags of the main job's vocabulary and checkpoint, if it has run.

    A checkpoint and its vocabulary belong together: if a flag names another checkpoint, the
    vocabulary beside that one counts.

    Raises:
      FlagError: a flag names a checkpoint that cannot be read, or that lacks a vocabulary.
    """
    if sources["vocab_file"] == provenance.FLAG:
        return {}
    checkpoint, vocab_file = embedded_classifier.main_job_checkpoint()
    if sources["init_checkpoint"] != provenance.FLAG:
        return {"vocab_file": vocab_file, "init_checkpoint": checkpoint}
    if settings["init_checkpoint"]:
        vocab_file = _vocabulary_beside(settings["init_checkpoint"])
    return {"vocab_file": vocab_file}


def _vocabulary_beside(checkpoint):
    # Reading a checkpoint takes TensorFlow.
    from bert_estimator import interchange

    with flags.named("init_checkpoint"):
        vocab_file = interchange.open_source(checkpoint).vocab_file
    rule = f"is needed, since there is no vocabulary beside --init_checkpoint={checkpoint}"
    flags.check(vocab_file is not None, "vocab_file", None, rule)
    return vocab_file


def runs_of(config: Config) -> list[Config]:
    """Checks a configuration, and opens the directories of its runs.

    Returns:
      The configurations of the runs: one, or one for each of --num_seeds in a directory of its own.

    Raises:
      FlagError: a flag cannot work, or a directory holds another run.
    """
    config.check()
    if config.compile_only:
        return [config]
    configs = [config]
    if config.num_seeds > 1:
        configs = [
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
    for run_config in configs:
        run_config.open_directory()
    return configs
