"""The configuration of run_pretraining.py: its flags, the stages of a recipe, and their checks.

This module does not import TensorFlow, so wrong flags are reported before it is loaded.
"""

import dataclasses
import os
from typing import Any, ClassVar

from bert_estimator.command_line import flags, provenance, run_directory
from bert_estimator.command_line.provenance import Origin, Source
from bert_estimator.command_line.run_directory import CHECKPOINT_PREFIX
from bert_estimator.jobs.command_line import read_command_line
from bert_estimator.jobs.config import JobConfig
from bert_estimator.recipes import embedded, plans, scale
from bert_estimator.recipes.plans import RECIPES

_INPUT_FLAGS = ("input_file", "bert_config_file")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingConfig(JobConfig):
    """A run of run_pretraining.py, or one stage of a recipe.

    Attributes:
      bert_config: the network's sizes as a dict; None if --bert_config_file has them.
    """

    OPTIMIZER_FLAGS: ClassVar[dict[str, tuple[str, ...]]] = {
        "lamb_bias_correction": ("lamb",),
        "bfloat16_first_moments": ("lamb", "adamw"),
    }

    output_dir: str = flags.field(
        "runs/pretraining",
        "Write checkpoints, events, metrics and curves into this directory.",
        may_differ=True,
    )
    input_file: str | None = flags.field(
        None,
        "Train on these records: TFRecord files, patterns or directories, comma-separated. With a "
        "weight after each pattern, as in a*.tfrecord:0.7,b*.tfrecord:0.3, they are mixed. With a "
        "recipe, {max_seq_length} in a name stands for the length of the stage.",
        eval_may_differ=True,
    )
    eval_input_file: str | None = flags.field(
        None,
        "Evaluate on these records. By default, evaluate on the held-out records that "
        "create_pretraining_data --eval_fraction writes beside the records of --input_file; "
        "without them, evaluate on the records of --input_file.",
        may_differ=True,
    )
    max_bad_records: int = flags.field(
        0,
        "Leave out at most this many records that are damaged or not what they should be, with a "
        "warning for each; 0 ends the run at the first of them. Each host counts its own.",
        may_differ=True,
    )
    vocab_file: str | None = flags.field(
        None,
        "Keep this vocabulary with the run; by default the vocabulary beside the records, which "
        "records made by google-research/bert do not have.",
        may_differ=True,
    )
    max_predictions_per_seq: int = flags.field(
        20, "Predict at most this many masked positions of a sequence."
    )
    num_train_steps: int = flags.field(100000, "End training at this global step.", may_differ=True)
    num_warmup_steps: int = flags.field(
        10000, "Warm up linearly over this many steps.", eval_may_differ=True
    )
    max_eval_steps: int = flags.field(
        100, "Evaluate on at most this many batches.", may_differ=True
    )
    learning_rate_decay_power: float = flags.field(
        1.0, "Decay the learning rate with this power; 1 is linear.", eval_may_differ=True
    )
    legacy_schedule_jump: bool = flags.field(
        False,
        "Follow google-research/bert's schedule, which decays from step 0 and drops at the end of "
        "warm-up.",
        eval_may_differ=True,
    )
    lamb_bias_correction: bool = flags.field(
        False, "Correct the bias of LAMB's moments, as Adam does.", eval_may_differ=True
    )
    bfloat16_first_moments: bool = flags.field(
        False,
        "Store the first moments of LAMB or AdamW as bfloat16.",
        eval_may_differ=True,
    )
    recipe: str | None = flags.field(
        None,
        f"Follow a plan, whose values the other flags override: {', '.join(RECIPES)}.",
        eval_may_differ=True,
    )
    scale: str | None = flags.field(
        None,
        f"Make a smaller experiment of the recipe: {', '.join(scale.PRESETS)}, or a fraction for "
        "network, batch and steps.",
        eval_may_differ=True,
    )
    stage: int | None = flags.field(
        None, "Run this stage of the recipe; by default all of them.", eval_may_differ=True
    )
    export_program: str | None = flags.field(
        None,
        "Write the training step into this directory, to run without TensorFlow, and end.",
        is_setting=False,
    )

    bert_config: dict[str, Any] | None = None

    def optimizer_options(self) -> dict[str, Any]:
        """Returns the arguments of the optimizer's class that are set: not None, False or 0."""
        given = {
            "bias_correction": self.lamb_bias_correction,
            "bfloat16_first_moments": self.bfloat16_first_moments,
        }
        return {name: value for name, value in given.items() if value}

    def settings(self) -> dict[str, Any]:
        """Returns flag name -> value of the flags that say how to run, and the network's sizes.

        If the run starts from the stage before it, `init_checkpoint` is a path relative to
        --output_dir, so that the directories of a recipe can be moved together.
        """
        settings = {**super().settings(), "bert_config": self.bert_config}
        if self.sources["init_checkpoint"].origin is Origin.STAGE:
            settings["init_checkpoint"] = os.path.relpath(self.init_checkpoint, self.output_dir)
        return settings

    def settings_to_go_on(self) -> dict[str, Any]:
        """Returns the settings that a run must share with the run that it resumes or evaluates."""
        settings = super().settings_to_go_on()
        if not self.do_train:
            del settings["bert_config"]  # the directory's bert_config.json is compared
        return settings

    def described(self) -> str:
        """Returns a line for each value that the recipe and its scale set, with its source."""
        return "\n".join(
            f"  --{name}={getattr(self, name)}  ({self.sources[name]})"
            for name in self.settings()
            if self.sources[name].recipe is not None
        )

    def check(self) -> None:
        """Checks all that can be checked before TensorFlow is loaded.

        Raises:
          FlagError: it names the flag, what is allowed, and what to do.
        """
        super().check()
        for name in (
            "max_seq_length", "max_predictions_per_seq", "num_train_steps", "max_eval_steps",
        ):  # fmt: skip
            flags.check_positive(name, getattr(self, name))
        flags.check(
            0 <= self.num_warmup_steps < self.num_train_steps,
            "num_warmup_steps",
            self.num_warmup_steps,
            f"must be from 0 to --num_train_steps={self.num_train_steps} exclusive",
        )
        flags.check(
            self.max_bad_records >= 0, "max_bad_records", self.max_bad_records, "must be 0 or more"
        )
        power = self.learning_rate_decay_power
        flags.check(
            0 < power < float("inf"), "learning_rate_decay_power", power, "must be positive"
        )
        flags.check(
            self.max_predictions_per_seq <= self.max_seq_length,
            "max_predictions_per_seq",
            self.max_predictions_per_seq,
            f"cannot be more than --max_seq_length={self.max_seq_length}",
        )
        self._check_evaluations()
        if self.export_program:
            flags.check(
                self.use_tpu and not self.compile_only,
                "export_program",
                self.export_program,
                "needs --use_tpu, and goes without --compile_only",
            )
            flags.check_writable_directory("export_program", self.export_program)
        self._check_hosts()
        self._check_input()
        flags.check_writable_directory("output_dir", self.output_dir)

    def _check_hosts(self):
        """Checks whether the hosts that TF_CONFIG names can do together what is asked for."""
        hosts = flags.find_hosts()
        if hosts.number > 1 and not self.compile_only:
            several = f"TF_CONFIG names {hosts.number} hosts"
            flags.check(
                self.use_tpu,
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
        for name in self.EVALUATE_WHILE_TRAINING:
            if value := getattr(self, name):
                alone = flags.find_hosts().number == 1
                flags.check(alone, name, value, "needs one host, but TF_CONFIG names several")
        flags.check(
            not (self.recipe and self.early_stopping_patience),
            "early_stopping_patience",
            self.early_stopping_patience,
            "cannot go with --recipe, whose stages begin where the stage before them was to end",
        )

    def _check_input(self):
        if self.embedded:
            flags.check(
                self.eval_input_file is None,
                "eval_input_file",
                self.eval_input_file,
                "needs --input_file and --bert_config_file: the embedded corpus has its own "
                "held-out text",
            )
            flags.check(
                self.vocab_file is None,
                "vocab_file",
                self.vocab_file,
                "needs --input_file and --bert_config_file: the embedded corpus has its own "
                "vocabulary",
            )
        else:
            # --compile_only does not read records; a recipe has a network of its own.
            present = {"input_file": self.compile_only, "bert_config_file": self.bert_config}
            for name in _INPUT_FLAGS:
                flags.check(
                    getattr(self, name) or present[name],
                    name,
                    getattr(self, name),
                    f"is needed: {' and '.join('--' + n for n in _INPUT_FLAGS)} go together. "
                    "Without both of them, the embedded corpus is used",
                )
        flags.check_file("vocab_file", self.vocab_file)
        for name in ("input_file", "eval_input_file"):
            flags.check_patterns(name, getattr(self, name))


_DEFAULTS = {each.name: each.default for each in flags.of(PretrainingConfig)}


def resolve(argv: list[str]) -> list[PretrainingConfig]:
    """Parses and checks a command line.

    Returns:
      The configurations of the recipe's stages that are to be run; without a recipe, of the run.

    Raises:
      FlagError: it names the flag, what is allowed, and what to do.
    """
    settings, sources = read_command_line(PretrainingConfig, argv)
    if settings["recipe"] is None:
        for name in ("scale", "stage"):
            flags.check(
                settings[name] is None, name, settings[name], "is for a recipe; add --recipe"
            )
        configs = [_resolve_run(settings, sources)]
    else:
        configs = _resolve_stages(settings, sources)
    for config in configs:
        if not config.compile_only:
            config.open_directory()
    return configs


def _resolve_run(settings, sources):
    """Returns the configuration of a run without a recipe."""
    settings = {**settings, "bert_config": None}
    sources = {**sources, "bert_config": provenance.DEFAULT}
    use_embedded = not any(sources[name] == provenance.FLAG for name in _INPUT_FLAGS)
    if use_embedded:
        network = {"vocab_size": embedded.DATA["vocab_size"], **embedded.BERT_CONFIG}
        for name, value in {**embedded.PRETRAINING_FLAGS, "bert_config": network}.items():
            if sources[name] != provenance.FLAG:
                settings[name], sources[name] = value, provenance.EMBEDDED
    settings["optimizer"] = settings["optimizer"] or "adamw"
    _fit_warmup(settings, sources, embedded.PRETRAINING_FLAGS if use_embedded else _DEFAULTS)
    config = PretrainingConfig(**settings, embedded=use_embedded, sources=sources)
    config.check()
    return config


def _fit_warmup(settings, sources, defaults):
    """Shortens a warm-up that nobody asked for, if it is longer than the training.

    Its share of the training is then the same as in the defaults.
    """
    steps, warmup = settings["num_train_steps"], settings["num_warmup_steps"]
    if sources["num_warmup_steps"] != provenance.FLAG and 0 < steps <= warmup:
        settings["num_warmup_steps"] = steps * warmup // defaults["num_train_steps"]
        sources["num_warmup_steps"] = dataclasses.replace(
            sources["num_warmup_steps"], scaled_from=warmup
        )


def _resolve_stages(settings, sources):
    """Returns the configurations of a recipe's stages, each in a directory of its own."""
    recipe = settings["recipe"]
    stages, network, network_source = _plan(recipe, settings["scale"])
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
        if own["bert_config_file"] is None:
            size = embedded.DATA["vocab_size"] if use_embedded else plans.VOCAB_SIZE
            own["bert_config"] = {"vocab_size": size, **network}
            own_sources["bert_config"] = network_source
        num_train_steps = own["num_train_steps"]
        if settings["stage"] in (None, number):
            # The first stage that is run starts from --init_checkpoint if the flag is given.
            is_first_given = not configs and sources["init_checkpoint"] == provenance.FLAG
            if before and not is_first_given:
                own["init_checkpoint"] = None  # `check` would miss it: it may not exist yet
                own_sources["init_checkpoint"] = Source(Origin.STAGE, recipe, stage=number - 1)
            config = PretrainingConfig(**own, embedded=use_embedded, sources=own_sources)
            config.check()
            if before and not is_first_given:
                config = dataclasses.replace(config, init_checkpoint=before)
            configs.append(config)
        else:  # the stage ran before, perhaps with another number of steps
            recorded = run_directory.recorded_settings(own["output_dir"])
            num_train_steps = recorded.get("num_train_steps", stage["num_train_steps"].value)
        if is_chained:
            before = os.path.join(own["output_dir"], f"{CHECKPOINT_PREFIX}{num_train_steps}")
    first = configs[0]
    starts = first.do_train and not run_directory.RunDirectory(first.output_dir).holds_checkpoint()
    if starts and first.sources["init_checkpoint"].origin is Origin.STAGE:
        flags.check(
            os.path.exists(first.init_checkpoint + ".index"),
            "stage",
            first.stage,
            f"starts from {first.init_checkpoint}, which is not there; run --stage="
            f"{first.stage - 1} first, or give --init_checkpoint (empty: from scratch)",
        )
    return configs


def _plan(recipe, scale_name):
    """Returns (stages, the network's sizes, their source) of a recipe, scaled by --scale."""
    flags.check_choice("recipe", recipe, tuple(RECIPES))
    if scale_name is None:
        return RECIPES[recipe], plans.NETWORK, Source(Origin.PAPER, recipe)
    try:
        smaller = scale.parse(scale_name)
    except ValueError as error:
        flags.check(False, "scale", scale_name, error)
    stages = [smaller.stage(stage) for stage in RECIPES[recipe]]
    return stages, smaller.network_sizes(), Source(Origin.SCALED, recipe)


def _stage(settings, sources, number, stage):
    """Returns (settings, sources) of a recipe's stage; flags on the command line come first."""
    recipe = settings["recipe"]
    settings = {**settings, "bert_config": None, "stage": number}
    # --config of this stage's config.json repeats this stage.
    sources = {**sources, "bert_config": provenance.DEFAULT, "stage": provenance.FLAG}
    for name, given in stage.items():
        if sources[name] != provenance.FLAG:
            settings[name] = given.value
            sources[name] = dataclasses.replace(given.source, recipe=recipe)
    for name in ("input_file", "eval_input_file"):
        if settings[name] is not None:
            length = str(settings["max_seq_length"])
            settings[name] = settings[name].replace("{max_seq_length}", length)
    settings["output_dir"] = os.path.join(settings["output_dir"], f"stage_{number}")
    return settings, sources
