"""The configuration of run_pretraining.py: its flags, the stages of a recipe, and their checks.

This module does not import TensorFlow, so wrong flags are reported before it is loaded.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any, ClassVar

from bert_estimator.command_line import flags, own_directory, provenance, run_directory
from bert_estimator.command_line.choices import MLM, OBJECTIVES
from bert_estimator.command_line.provenance import Origin, Provenance, read_command_line
from bert_estimator.jobs import used_network
from bert_estimator.jobs.groups import DataFlags, EvaluationFlags, OptimizerFlag, TrainingFlags
from bert_estimator.jobs.job_config import JobConfig, find_output_dir
from bert_estimator.recipes import embedded, plans
from bert_estimator.recipes.plans import RECIPES

_PACKED_LENGTH, _FULL = 512, 0.9  # rows at least as long, and less full, are packed by default
_INPUT_FLAGS = ("input_file", "bert_config_file")


@flags.group(flags.COMMON)
class RecordFlags(DataFlags):
    """Says which records a run reads."""

    input_file: str | None = flags.field(
        None,
        "Train on these records: TFRecord files, patterns or directories, comma-separated. With a "
        "weight after each pattern, as in a*.tfrecord:0.7,b*.tfrecord:0.3, they are mixed. With a "
        "recipe, {max_seq_length} in a name stands for the length of the stage.",
        may_differ=flags.EVALUATING,
    )
    eval_input_file: str | None = flags.field(
        None,
        "Evaluate on these records. By default, evaluate on the held-out records that "
        "create_pretraining_data --eval_fraction writes beside the records of --input_file; "
        "without them, evaluate on the records of --input_file.",
        may_differ=True,
    )
    vocab_file: str | None = flags.field(
        None,
        "Keep this vocabulary with the run; by default the vocabulary beside the records, which "
        "records made by google-research/bert do not have.",
        may_differ=True,
    )
    objective: str | None = flags.field(
        None,
        f"Train for one of {', '.join(OBJECTIVES)}: masked words alone, with next sentence (BERT), "
        "or with sentence order (ALBERT). By default, train for what the records were made for; "
        "records of any kind can be read for masked words alone.",
        flags.one_of(OBJECTIVES),
        may_differ=flags.EVALUATING,
    )
    max_seq_length: int = flags.field(128, "Set the length of sequences in tokens.", flags.positive)
    max_predictions_per_seq: int = flags.field(
        20,
        "Predict at most this many masked positions of a sequence.",
        flags.positive,
        heading=flags.DATA,
    )
    max_bad_records: int = flags.field(
        0,
        "Leave out at most this many records that are damaged or not what they should be, with a "
        "warning for each; 0 ends the run at the first of them. Each host counts its own.",
        flags.not_negative,
        may_differ=True,
        heading=flags.DATA,
    )
    pack: bool | None = flags.field(
        None,
        "Put several examples into a row, so that less padding is computed. By default, do so in "
        "stages of a recipe with 512 tokens or more whose records are less than 90 % full.",
        heading=flags.TRAINING,
        may_differ=flags.EVALUATING,
    )

    @property
    def has_sentences(self) -> bool:
        """Whether labels of sentences are read, besides masked words."""
        return self.objective != MLM

    def check(self) -> None:
        """Raises FlagError if --max_predictions_per_seq is more than --max_seq_length."""
        number = self.max_predictions_per_seq
        rule = f"cannot be more than --max_seq_length={self.max_seq_length}"
        flags.check(number <= self.max_seq_length, "max_predictions_per_seq", number, rule)

    def check_files(self, is_embedded: bool) -> None:
        """Raises FlagError if a file is missing, or named that the embedded corpus has itself."""
        own = {"eval_input_file": "held-out text", "vocab_file": "vocabulary"}
        for name, what in own.items() if is_embedded else ():
            rule = (
                f"needs --input_file and --bert_config_file: the embedded corpus has its own {what}"
            )
            flags.check(getattr(self, name) is None, name, getattr(self, name), rule)
        flags.check_file("vocab_file", self.vocab_file)
        for name in ("input_file", "eval_input_file"):
            flags.check_patterns(name, getattr(self, name))


@flags.group(flags.TRAINING, may_differ=flags.EVALUATING)
class ScheduleFlags(TrainingFlags):
    """Says how weights are updated, how long, and at which rate."""

    OPTIMIZER_FLAGS: ClassVar[dict[str, OptimizerFlag]] = {
        **TrainingFlags.OPTIMIZER_FLAGS,
        "adam_bias_correction": OptimizerFlag("bias_correction", ("adamw",)),
        "lamb_bias_correction": OptimizerFlag("bias_correction", ("lamb",)),
        "bfloat16_first_moments": OptimizerFlag("bfloat16_first_moments", ("lamb", "adamw")),
    }

    num_train_steps: int = flags.field(
        100000,
        "End training at this global step.",
        flags.positive,
        heading=flags.COMMON,
        may_differ=True,
    )
    num_warmup_steps: int = flags.field(10000, "Warm up linearly over this many steps.")
    learning_rate_decay_power: float = flags.field(
        1.0,
        "Decay the learning rate with this power; 1 is linear.",
        flags.rule(lambda power: 0 < power < float("inf"), "must be positive"),
    )
    legacy_schedule_jump: bool = flags.field(
        False,
        "Follow google-research/bert's schedule, which decays from step 0 and drops at the end of "
        "warm-up.",
    )
    adam_bias_correction: bool = flags.field(False, "Correct the bias of AdamW's moments.")
    lamb_bias_correction: bool = flags.field(
        False, "Correct the bias of LAMB's moments, as Adam does."
    )
    bfloat16_first_moments: bool = flags.field(
        False, "Store the first moments of LAMB or AdamW as bfloat16."
    )

    def schedule(self) -> Any:
        """Returns the `WarmupPolynomialDecay` of the learning rate."""
        from bert_estimator import optimization

        return optimization.WarmupPolynomialDecay(
            self.learning_rate,
            self.num_train_steps,
            self.num_warmup_steps,
            learning_rate_decay_power=self.learning_rate_decay_power,
            legacy_schedule_jump=self.legacy_schedule_jump,
        )

    def check(self, is_given: Callable[[str], bool]) -> None:
        """Raises FlagError if the warm-up or the optimizer's flags do not fit."""
        super().check(is_given)
        flags.check(
            0 <= self.num_warmup_steps < self.num_train_steps,
            "num_warmup_steps",
            self.num_warmup_steps,
            f"must be from 0 to --num_train_steps={self.num_train_steps} exclusive",
        )


@flags.group(flags.CHECKPOINTS, may_differ=True)
class HeldOutFlags(EvaluationFlags):
    """Says how a run evaluates."""

    max_eval_steps: int = flags.field(
        100,
        "Evaluate on at most this many batches.",
        flags.positive,
    )


@flags.group(flags.TASKS, may_differ=flags.EVALUATING)
class PretrainingConfig(JobConfig):
    """Holds the flags of a run of run_pretraining.py, or of one stage of a recipe."""

    output_dir: str = flags.field(
        "runs/pretraining",
        "Write checkpoints, events, metrics and curves into this directory.",
        may_differ=True,
        heading=flags.COMMON,
    )
    data: RecordFlags = flags.member(RecordFlags)
    training: ScheduleFlags = flags.member(ScheduleFlags)
    evaluation: HeldOutFlags = flags.member(HeldOutFlags)
    export_program: str | None = flags.field(
        None,
        "Write the training step into this directory, to run without TensorFlow, and end.",
        is_setting=False,
    )
    fill: float | None = flags.field(
        None,
        "Assume, with --compile_only, that records are this full: 0.5 means that half of the "
        "positions are tokens; by default the lengths of --input_file count, if it is given.",
        flags.rule(lambda share: 0 < share <= 1, "must be above 0 and at most 1"),
        is_setting=False,
    )
    recipe: str | None = flags.field(
        None, f"Follow a plan, whose values the other flags override: {', '.join(RECIPES)}."
    )
    scale: str | None = flags.field(
        None,
        f"Make a smaller experiment of the recipe: {', '.join(plans.SCALES)}, or a fraction for "
        "network, batch and steps.",
    )
    stage: int | None = flags.field(None, "Run this stage of the recipe; by default all of them.")

    # The network's sizes; None if --bert_config_file has them.
    bert_config: dict[str, Any] | None = None

    @property
    def may_pack(self) -> bool:
        """Whether rows are packed, or are packed by default if the records are not full."""
        is_long = self.recipe is not None and self.data.max_seq_length >= _PACKED_LENGTH
        return is_long if self.data.pack is None else self.data.pack

    def packed(self, token_share: float | None) -> "PretrainingConfig":
        """Returns the configuration with --pack decided, by the share of the records' positions
        that are tokens; None if it is not known, and rows cannot be packed."""
        if self.data.pack is not None:
            return self
        is_not_full = token_share is not None and token_share < _FULL
        return flags.changed(self, pack=self.may_pack and is_not_full)

    def starts_from_stage(self) -> bool:
        """Returns whether the run starts from the weights of the stage before it."""
        return self.sources["init_checkpoint"].origin is Origin.STAGE

    def settings(self) -> dict[str, Any]:
        """Returns flag name -> value of the flags that say how to run, and the network's sizes."""
        settings = {**super().settings(), "bert_config": self.bert_config}
        if self.starts_from_stage():
            checkpoint = self.network.init_checkpoint
            # The path is relative to --output_dir, so that the directories of a recipe can be moved
            # together.
            settings["init_checkpoint"] = os.path.relpath(checkpoint, self.output_dir)
        return settings

    def settings_to_go_on(self) -> dict[str, Any]:
        """Returns the settings that a run must share with the run that it resumes or evaluates."""
        settings = super().settings_to_go_on()
        if not self.do_train:
            del settings["bert_config"]  # the directory's bert_config.json is compared
        return settings

    def open_directory(self) -> run_directory.RunDirectory:
        """Makes and returns the directory of the run, and makes the one of --export_program."""
        if self.export_program:
            flags.make_directory("export_program", self.export_program)
        return super().open_directory()

    def announce(self) -> None:
        """Prints what the stage of a recipe is."""
        if self.recipe:
            print(f"{self.recipe}, stage {self.stage}:\n{self.described()}", flush=True)

    def described(self) -> str:
        """Returns a line for each value that the recipe and its scale set, with its source."""
        values = {**flags.values_of(self), "bert_config": self.bert_config}
        return "\n".join(
            f"  --{name}={values[name]}  ({self.sources[name]})"
            for name in self.settings()
            if self.sources[name].recipe is not None
        )

    def check(self) -> None:
        """Checks all that can be checked before TensorFlow is loaded."""
        super().check()
        self.data.check()
        self._check_evaluations()
        if self.export_program:
            own_directory.check_program(self.export_program)
            flags.check(
                self.devices.use_tpu and not self.plan.compile_only,
                "export_program",
                self.export_program,
                "needs --use_tpu, and goes without --compile_only",
            )
        rule = "goes with --compile_only; add it"
        flags.check(self.plan.compile_only or not self.fill, "fill", self.fill, rule)
        self._check_hosts()
        self._check_input()
        if self.plan.compile_only and self.data.pack:
            rule = "needs --fill or --input_file, which say how long the records are"
            flags.check(self.fill or self.data.input_file, "pack", True, rule)

    def _check_hosts(self):
        """Checks whether the hosts that TF_CONFIG names can do together what is asked for."""
        hosts = flags.find_hosts()
        if hosts.number > 1 and not self.plan.compile_only:
            several = f"TF_CONFIG names {hosts.number} hosts"
            flags.check(
                self.devices.use_tpu,
                "use_tpu",
                False,
                f"{several}, which train together only with --use_tpu and --tpu_name; add them, or "
                "unset TF_CONFIG",
            )
            flags.check(
                not self.export_program,
                "export_program",
                self.export_program,
                f"{several}, but an exported program is for one host; unset TF_CONFIG",
            )

    def _check_evaluations(self):
        """Checks that training can stop at checkpoints to evaluate, if it is to."""
        for name, value in self.evaluation.while_training().items():
            alone = flags.find_hosts().number == 1
            flags.check(alone, name, value, "needs one host, but TF_CONFIG names several")
        patience = self.evaluation.early_stopping_patience
        flags.check(
            not (self.recipe and patience),
            "early_stopping_patience",
            patience,
            "cannot go with --recipe, whose stages begin where the stage before them was to end",
        )

    def _check_input(self):
        if not self.embedded:
            rule = (
                f"is needed: {' and '.join('--' + n for n in _INPUT_FLAGS)} go together. "
                "Without both of them, the embedded corpus is used"
            )
            # --compile_only does not read records.
            files, network = self.data.input_file, self.network
            flags.check(files or self.plan.compile_only, "input_file", files, rule)
            # A recipe has a network of its own, a checkpoint may have the file beside it, and a run
            # that is evaluated has it.
            is_known = self.bert_config or network.init_checkpoint or network.bert_config_file
            is_known = is_known or self.sources["input_file"] == provenance.RUN
            flags.check(is_known, "bert_config_file", network.bert_config_file, rule)
        self.data.check_files(self.embedded)


_DEFAULTS = {flag.name: flag.default for flag in flags.of(PretrainingConfig)}


def resolve(argv: list[str]) -> list[PretrainingConfig]:
    """Parses and checks a command line; returns the configurations of the recipe's stages that are
    to be run, or without a recipe, of the run."""
    settings, sources = read_command_line(PretrainingConfig, argv)
    # A remote --output_dir is copied to this machine, where its stages and flags are then read.
    settings["output_dir"], mirror = find_output_dir(settings["output_dir"])
    if settings["recipe"] is None:
        for name in ("scale", "stage"):
            flags.check(
                settings[name] is None, name, settings[name], "is for a recipe; add --recipe"
            )
        return [_resolve_run(settings, sources, mirror)]
    return _resolve_stages(settings, sources, mirror)


def _resolve_run(settings, sources, mirror):
    """Returns the configuration of a run without a recipe."""
    settings, network = {**settings}, None
    sources = {**sources, "bert_config": provenance.DEFAULT}
    use_embedded = not any(sources[name] == provenance.FLAG for name in _INPUT_FLAGS)
    used = used_network.recall(PretrainingConfig, settings, sources, "input_file")
    if use_embedded:
        used_network.check_data(used, "give --input_file, or --input_file and --eval_input_file")
        use_embedded = settings["input_file"] is None
    if use_embedded:
        network = embedded.NETWORK
        sources["bert_config"] = provenance.EMBEDDED
        provenance.apply(embedded.PRETRAINING_FLAGS, provenance.EMBEDDED, settings, sources)
    _fit_warmup(settings, sources, embedded.PRETRAINING_FLAGS if use_embedded else _DEFAULTS)
    return _checked(settings, sources, network, use_embedded, mirror)


def _checked(settings, sources, network, use_embedded, mirror):
    fields = {"bert_config": network, "embedded": use_embedded, "mirror": mirror}
    run = flags.build(PretrainingConfig, settings, sources=sources, **fields)
    run.check()
    return run


def _fit_warmup(settings, sources, defaults):
    """Shortens a warm-up that nobody asked for, if it is longer than the training."""
    steps, warmup = settings["num_train_steps"], settings["num_warmup_steps"]
    if sources["num_warmup_steps"] != provenance.FLAG and 0 < steps <= warmup:
        # Its share of the training is then the same as in the defaults.
        settings["num_warmup_steps"] = steps * warmup // defaults["num_train_steps"]
        sources["num_warmup_steps"] = dataclasses.replace(
            sources["num_warmup_steps"], scaled_from=warmup
        )


def _resolve_stages(settings, sources, mirror):
    """Returns the configurations of a recipe's stages, each in a directory of its own."""
    recipe = settings["recipe"]
    stages, sizes, network_source = _plan(recipe, settings["scale"])
    numbers = range(1, len(stages) + 1)
    flags.check(
        settings["stage"] in (None, *numbers),
        "stage",
        settings["stage"],
        f"{recipe} has the stages {', '.join(map(str, numbers))}",
    )
    flags.check(
        settings["stage"] or not settings["export_program"],
        "export_program",
        settings["export_program"],
        "needs --stage: each stage of a recipe has a program of its own",
    )
    use_embedded = settings["input_file"] is None and not settings["compile_only"]
    is_chained = not settings["compile_only"]  # --compile_only does not need weights
    configs, before = [], None
    for number, stage in zip(numbers, stages, strict=True):
        own, own_sources = _stage(settings, sources, number, stage)
        network = None
        if own["bert_config_file"] is None:
            vocab_size = embedded.VOCAB_SIZE if use_embedded else plans.VOCAB_SIZE
            network = {"vocab_size": vocab_size, **sizes}
            own_sources["bert_config"] = network_source
        # The next stage starts from the checkpoint of this stage's last step.
        num_train_steps = own["num_train_steps"]
        if settings["stage"] in (None, number):
            # The first stage that is run starts from --init_checkpoint if the flag is given.
            is_first_given = not configs and sources["init_checkpoint"] == provenance.FLAG
            if before and not is_first_given:
                own["init_checkpoint"] = None  # `check` would miss it: it may not exist yet
                own_sources["init_checkpoint"] = Provenance(Origin.STAGE, recipe, stage=number - 1)
            run = _checked(own, own_sources, network, use_embedded, mirror)
            if before and not is_first_given:
                run = flags.changed(run, init_checkpoint=before)
            configs.append(run)
        else:  # the stage ran before, perhaps with another number of steps
            recorded = run_directory.recorded_settings(own["output_dir"])
            num_train_steps = recorded.get("num_train_steps", stage["num_train_steps"].value)
        if is_chained:
            before = os.path.join(
                own["output_dir"], f"{run_directory.CHECKPOINT_PREFIX}{num_train_steps}"
            )
    # The other stages start from checkpoints that this command is yet to write.
    first = configs[0]
    starts = first.do_train and not run_directory.RunDirectory(first.output_dir).holds_checkpoint()
    if starts and first.starts_from_stage():
        checkpoint = first.network.init_checkpoint
        flags.check(
            os.path.exists(checkpoint + ".index"),
            "stage",
            first.stage,
            f"starts from {checkpoint}, which is not there; run --stage="
            f"{first.stage - 1} first, or give --init_checkpoint (empty: from scratch)",
        )
    return configs


def _plan(recipe, scale_name):
    """Returns (stages, the network's sizes, their source) of a recipe, scaled by --scale."""
    flags.check_choice("recipe", recipe, tuple(RECIPES))
    if scale_name is None:
        return RECIPES[recipe], plans.NETWORK, Provenance(Origin.PAPER, recipe)
    try:
        smaller = plans.parse_scale(scale_name)
    except ValueError as error:
        flags.check(False, "scale", scale_name, error)
    stages = [smaller.stage(stage) for stage in RECIPES[recipe]]
    return stages, smaller.network_sizes(), Provenance(Origin.SCALED, recipe)


def _stage(settings, sources, number, stage):
    """Returns (settings, sources) of a recipe's stage; flags on the command line come first."""
    recipe = settings["recipe"]
    settings = {**settings, "stage": number}
    # --config of this stage's config.json repeats this stage.
    sources = {**sources, "bert_config": provenance.DEFAULT, "stage": provenance.FLAG}
    for name, planned in stage.items():
        source = dataclasses.replace(planned.source, recipe=recipe)
        provenance.apply({name: planned.value}, source, settings, sources)
    for name in ("input_file", "eval_input_file"):
        if settings[name] is not None:
            length = str(settings["max_seq_length"])
            settings[name] = settings[name].replace("{max_seq_length}", length)
    settings["output_dir"] = os.path.join(settings["output_dir"], f"stage_{number}")
    return settings, sources
