"""What run_pretraining.py runs: its flags, and the checked configuration that they come to.

Does not import TensorFlow: wrong flags are reported before it is loaded.
"""

import dataclasses
import os

from absl import flags as absl_flags

from bert_estimator.command_line import flags, run_directory
from bert_estimator.jobs import compile_only
from bert_estimator.recipes import embedded, plans, scale
from bert_estimator.recipes.plans import RECIPES

_INPUT_FLAGS = ("input_file", "bert_config_file")
_NO_SETTINGS = (*compile_only.FLAGS, "embedded", "sources")


def define_flags():
    """Returns the flags of run_pretraining.py, unparsed."""
    values = absl_flags.FlagValues()
    flags.define(values, output_dir="runs/pretraining")
    compile_only.define_flags(values)
    for name, text in (
        ("input_file", "Training records: TFRecord files or patterns, comma-separated. With a "
         "recipe, {max_seq_length} in it stands for the length of the stage."),
        ("eval_input_file", "Records to evaluate on; those of --input_file by default."),
        ("vocab_file", "Keep this vocabulary with the run. By default it is the one that lies "
         "beside the records; records made by google-research/bert have none."),
        ("recipe", f"A plan whose values the other flags override: {', '.join(RECIPES)}."),
        ("scale", f"A smaller experiment of the recipe: {', '.join(scale.PRESETS)}, or a fraction "
         "for network, batch and steps."),
    ):  # fmt: skip
        absl_flags.DEFINE_string(name, None, text, flag_values=values)
    for name, default, text in (
        ("max_seq_length", 128, "Length of the records' sequences, in tokens."),
        ("max_predictions_per_seq", 20, "Most masked positions in a sequence."),
        ("num_train_steps", 100000, "Global step training ends at."),
        ("num_warmup_steps", 10000, "Steps of linear warm-up."),
        ("max_eval_steps", 100, "Most evaluation batches."),
        ("stage", None, "The one stage of the recipe to run; all of them by default."),
    ):
        absl_flags.DEFINE_integer(name, default, text, flag_values=values)
    for name, text in (
        (
            "legacy_schedule_jump",
            "google-research/bert's schedule: decays from step 0, and drops where warm-up ends.",
        ),
        ("lamb_bias_correction", "LAMB with Adam's bias correction."),
        ("bfloat16_first_moments", "Store the first moments of LAMB or AdamW as bfloat16."),
    ):
        absl_flags.DEFINE_boolean(name, False, text, flag_values=values)
    absl_flags.DEFINE_float(
        "learning_rate_decay_power", 1.0, "Power of the decay; 1 is linear.", flag_values=values
    )
    return values


@dataclasses.dataclass(frozen=True)
class Config:
    """The run, or one stage of a recipe, resolved: a field for each flag, and two more.

    Attributes:
      bert_config: the network's sizes as a dict, where they are not in --bert_config_file.
      sources: flag name -> where its value came from.
      embedded: whether no data was given and the embedded corpus is used.
    """

    output_dir: str
    input_file: str | None
    eval_input_file: str | None
    vocab_file: str | None
    bert_config_file: str | None
    init_checkpoint: str | None
    allow_partial_init: bool
    max_seq_length: int
    max_predictions_per_seq: int
    do_train: bool
    do_eval: bool
    train_batch_size: int
    eval_batch_size: int
    learning_rate: float
    learning_rate_decay_power: float
    num_train_steps: int
    num_warmup_steps: int
    save_checkpoints_steps: int
    iterations_per_loop: int
    max_eval_steps: int
    use_tpu: bool
    tpu_name: str | None
    num_cores_per_replica: int
    num_tpu_cores: int | None
    precision: str
    optimizer: str
    micro_batch_size: int | None
    recompute: bool
    use_one_hot_embeddings: bool
    random_seed: int
    legacy_schedule_jump: bool
    lamb_bias_correction: bool
    bfloat16_first_moments: bool
    recipe: str | None
    scale: str | None
    stage: int | None
    compile_only: bool
    tpu_topology: str | None
    suggest: bool
    export_program: str | None
    bert_config: dict | None
    embedded: bool
    sources: dict

    def optimizer_options(self):
        """Returns the arguments of the optimizer's class that are not its default."""
        given = {
            "bias_correction": self.lamb_bias_correction,
            "bfloat16_first_moments": self.bfloat16_first_moments,
        }
        return {name: value for name, value in given.items() if value}

    def settings(self):
        """Returns flag name -> value, of the flags that say how to train.

        Another stage's checkpoint is named from here, so that a run can be moved.
        """
        fields = dataclasses.asdict(self)
        if self.recipe and self.recipe in self.sources["init_checkpoint"]:
            fields["init_checkpoint"] = os.path.relpath(self.init_checkpoint, self.output_dir)
        return {k: v for k, v in fields.items() if k not in _NO_SETTINGS}

    def described(self):
        """Returns what the recipe and its scale came to: a line for each value, with its source."""
        return "\n".join(
            f"  --{name}={getattr(self, name)}  ({self.sources[name]})"
            for name in self.settings()
            if self.recipe in self.sources[name]
        )


_FIELDS = {field.name for field in dataclasses.fields(Config)}


def resolve(argv):
    """Parses and checks a command line.

    Returns:
      List of `Config`: one for each stage of the recipe that is to be run; without a recipe, one.

    Raises:
      flags.FlagError: naming the flag, what is allowed, and what to do.
    """
    values = define_flags()
    given = flags.parse(values, argv)
    settings = {name: values[name].value for name in values if name in _FIELDS}
    settings["bert_config"] = None
    settings["init_checkpoint"] = settings["init_checkpoint"] or None  # empty: from scratch
    sources = {name: "flag" if name in given else "default" for name in settings}
    if not settings["do_train"] and not settings["do_eval"]:
        # `--nodo_train` alone means: only evaluate.
        settings["do_train"] = settings["do_train"] is None
        settings["do_eval"] = settings["do_eval"] is None
    settings = {k: bool(v) if k in ("do_train", "do_eval") else v for k, v in settings.items()}
    if settings["recipe"] is None:
        for name in ("scale", "stage"):
            flags.check(
                settings[name] is None, name, settings[name], "is of a recipe; add --recipe"
            )
        return [_resolve_run(settings, sources, given)]
    return _resolve_stages(settings, sources, given)


def _resolve_run(settings, sources, given):
    """The configuration of a run without a recipe."""
    use_embedded = not any(name in given for name in _INPUT_FLAGS)
    if use_embedded:
        network = {"vocab_size": embedded.DATA["vocab_size"], **embedded.BERT_CONFIG}
        for name, value in {**embedded.FLAGS, "bert_config": network}.items():
            if name not in given:
                settings[name], sources[name] = value, "embedded default"
    if settings["optimizer"] is None:
        settings["optimizer"] = "adamw"
    config = Config(**settings, embedded=use_embedded, sources=sources)
    check(config)
    return config


def _resolve_stages(settings, sources, given):
    """The configurations of a recipe's stages, each in a directory of its own."""
    recipe = settings["recipe"]
    flags.check_choice("recipe", recipe, tuple(RECIPES))
    stages, network, network_source = RECIPES[recipe], plans.NETWORK, f"{recipe}: paper"
    if settings["scale"] is not None:
        try:
            smaller = scale.parse(settings["scale"])
        except ValueError as error:
            flags.check(False, "scale", settings["scale"], error)
        stages = [smaller.stage(stage) for stage in stages]
        network, network_source = smaller.network_sizes(), f"{recipe}: scaled"
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
    chained = not settings["compile_only"]  # what is only compiled needs no weights
    configs, before = [], None
    for number, stage in zip(numbers, stages, strict=True):
        own, own_sources = dict(settings, stage=number), dict(sources)
        for name, value in stage.items():
            if name not in given:
                own[name], own_sources[name] = value.value, f"{recipe}: {value.source}"
        if own["bert_config_file"] is None:
            size = embedded.DATA["vocab_size"] if use_embedded else plans.VOCAB_SIZE
            own["bert_config"] = {"vocab_size": size, **network}
            own_sources["bert_config"] = network_source
        for name in ("input_file", "eval_input_file"):
            if own[name] is not None:
                length = str(own["max_seq_length"])
                own[name] = own[name].replace("{max_seq_length}", length)
        own["output_dir"] = os.path.join(settings["output_dir"], f"stage_{number}")
        num_train_steps = own["num_train_steps"]
        if settings["stage"] in (None, number):
            # What is given is what the first of the stages that are run starts from.
            starts_from_before = before and (configs or "init_checkpoint" not in given)
            if starts_from_before:
                own["init_checkpoint"] = None  # it may not be there yet
                own_sources["init_checkpoint"] = f"{recipe}: stage {number - 1}"
            config = Config(**own, embedded=use_embedded, sources=own_sources)
            check(config)
            if starts_from_before:
                config = dataclasses.replace(config, init_checkpoint=before)
            configs.append(config)
        else:  # run before, and its number of steps was that run's
            recorded = run_directory.recorded_settings(own["output_dir"])
            num_train_steps = recorded.get("num_train_steps", stage["num_train_steps"].value)
        if chained:
            before = os.path.join(own["output_dir"], f"model.ckpt-{num_train_steps}")
    first = configs[0]
    if recipe in first.sources["init_checkpoint"]:
        flags.check(
            os.path.exists(first.init_checkpoint + ".index"),
            "stage",
            first.stage,
            f"starts from {first.init_checkpoint}, which is not there; run --stage="
            f"{first.stage - 1} first, or give --init_checkpoint (empty: from scratch)",
        )
    return configs


def check(config):
    """Checks all that can be known before TensorFlow is loaded."""
    flags.check_common(config)
    flags.check(
        config.do_train or config.do_eval,
        "do_train",
        False,
        "nothing to do: --do_eval is off too; leave one of them on",
    )
    for name in ("max_seq_length", "max_predictions_per_seq", "num_train_steps", "max_eval_steps"):
        flags.check(getattr(config, name) > 0, name, getattr(config, name), "must be positive")
    flags.check(
        0 <= config.num_warmup_steps < config.num_train_steps,
        "num_warmup_steps",
        config.num_warmup_steps,
        f"must be from 0 to --num_train_steps={config.num_train_steps} exclusive",
    )
    power = config.learning_rate_decay_power
    flags.check(0 < power < float("inf"), "learning_rate_decay_power", power, "must be positive")
    for name, optimizers in (
        ("lamb_bias_correction", ("lamb",)),
        ("bfloat16_first_moments", ("lamb", "adamw")),
    ):
        flags.check(
            config.optimizer in optimizers or not getattr(config, name),
            name,
            True,
            f"needs --optimizer={' or '.join(optimizers)}, not {config.optimizer}",
        )
    flags.check(
        config.max_predictions_per_seq <= config.max_seq_length,
        "max_predictions_per_seq",
        config.max_predictions_per_seq,
        f"cannot be more than --max_seq_length={config.max_seq_length}",
    )
    compile_only.check(config)
    if not config.embedded:
        # What is only compiled reads no record; a recipe has a network of its own.
        present = {"input_file": config.compile_only, "bert_config_file": config.bert_config}
        for name in _INPUT_FLAGS:
            flags.check(
                getattr(config, name) or present[name],
                name,
                getattr(config, name),
                f"is needed: {' and '.join('--' + n for n in _INPUT_FLAGS)} go together. With "
                "neither, the embedded corpus is used",
            )
    else:
        flags.check(
            config.eval_input_file is None,
            "eval_input_file",
            config.eval_input_file,
            "needs --input_file and --bert_config_file: the embedded corpus has its own held-out "
            "text",
        )
        flags.check(
            config.vocab_file is None,
            "vocab_file",
            config.vocab_file,
            "needs --input_file and --bert_config_file: the embedded corpus has its own vocabulary",
        )
    flags.check_file("vocab_file", config.vocab_file)
    for name in ("input_file", "eval_input_file"):
        flags.check_patterns(name, getattr(config, name))
    flags.check_writable_directory("output_dir", config.output_dir)
