"""Sources of the values of flags: the command line, --config, a default, or a recipe.

config.json keeps the source of each value as text:

    flag
    default
    embedded default
    lamb_76min: paper
    lamb_76min: assumed, scaled from 65536
    lamb_76min: scaled
    lamb_76min: stage 1

The file of --config holds flags, and may be the config.json of a run that is to be repeated.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from bert_estimator.command_line import flags
from bert_estimator.command_line.flags import FlagError
from bert_estimator.storage import remote
from bert_estimator.system import json_files


class Origin(enum.Enum):
    """Says who gives a value. config.json has these texts."""

    FLAG = "flag"
    DEFAULT = "default"
    EMBEDDED = "embedded default"  # the plan of a script that is given no data
    PAPER = "paper"  # You et al. (2020)
    ASSUMED = "assumed"  # by this project, since the paper leaves the value open
    NVIDIA = "NVIDIA"  # DeepLearningExamples, PyTorch/LanguageModeling/BERT
    GOOGLE = "google-research/bert"
    SCALED = "scaled"  # --scale
    STAGE = "stage"  # the stage of the recipe that ran before
    RUN = "run"  # the run that is evaluated, predicts or exports


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Says where a value came from."""

    origin: Origin
    # The name of the recipe that the value belongs to.
    recipe: str | None = None
    # The number of the stage, if the origin is `Origin.STAGE`.
    stage: int | None = None
    # The recipe's own value, if --scale made another of it; its first six digits.
    scaled_from: float | None = None

    def __str__(self) -> str:
        text = self.origin.value if self.recipe is None else f"{self.recipe}: {self.origin.value}"
        if self.stage is not None:
            text += f" {self.stage}"
        if self.scaled_from is not None:
            text += f", scaled from {self.scaled_from:.6g}"
        return text


FLAG = Provenance(Origin.FLAG)
DEFAULT = Provenance(Origin.DEFAULT)
EMBEDDED = Provenance(Origin.EMBEDDED)
RUN = Provenance(Origin.RUN)


def apply(
    plan: Mapping[str, Any],
    source: Provenance,
    settings: dict[str, Any],
    sources: dict[str, Provenance],
) -> None:
    """Puts the values of a plan into settings, except for flags that the command line gives, or
    that a run has recorded."""
    for name, value in plan.items():
        if sources[name] not in (FLAG, RUN):
            settings[name], sources[name] = value, source


# What runs did before these flags were there, which their config.json does not name; and what
# google-research/bert does.
EARLIER = {"pack": False, "adam_bias_correction": False, "objective": None}
# The same of flags whose default still does what runs did.
EARLIER_DEFAULTS = {
    "weight_decay": 0.01, "layerwise_lr_decay": 1.0, "trainable": "all", "label_smoothing": 0.0,
}  # fmt: skip

# Not taken from a run's config.json: the repeated run is a run of its own.
_OF_ONE_RUN = ("output_dir",)


def read_command_line(
    config_class: type, argv: list[str]
) -> tuple[dict[str, Any], dict[str, Provenance]]:
    """Parses a command line, and --config's file; returns flags' values and sources, by name."""
    values = flags.define(config_class)
    on_command_line = flags.parse(values, argv)
    if path := values["config"].value:
        # Of a flag that is given twice the last value counts: the command line's, not the file's.
        values = flags.define(config_class)
        on_command_line = flags.parse(values, [argv[0], *file_arguments(path), *argv[1:]])
    settings = {name: values[name].value for name in values}
    sources = {name: FLAG if name in on_command_line else DEFAULT for name in settings}
    settings["init_checkpoint"] = settings["init_checkpoint"] or None  # empty: from scratch
    if settings["compile_only"] and sources["output_dir"] == DEFAULT:
        settings["output_dir"] += "_plan"  # The default directory is for a run.
    # Verbs are the flags that say what to do: training and evaluation, if none of them is given.
    if not any(settings[name] for name in config_class.VERBS):
        # `--nodo_train` alone asks for an evaluation only.
        for name in ("do_train", "do_eval"):
            settings[name] = settings[name] is None
    for name in config_class.VERBS:
        settings[name] = bool(settings[name])
    return settings, sources


def file_arguments(path: str) -> list[str]:
    """Returns the flags (name -> value; null leaves a flag out) of a JSON file as arguments of a
    command line; of a run's config.json, they are the flags that its command line gave."""
    try:
        values = remote.read_json(path)
        if "flags" in values:
            values = _of_run(values, path)
        return [
            f"--{name}={_as_argument(value, f'{path}: {name}')}"
            for name, value in values.items()
            if value is not None
        ]
    except (OSError, json_files.JsonError) as error:
        reason = f"{path}: {error.strerror}" if isinstance(error, OSError) else error
        raise FlagError(f"--config: {reason}") from None


def _of_run(config, path) -> dict[str, Any]:
    """Returns the flags that the command line of a run gave, by its config.json, and `EARLIER`
    flags that it does not name."""
    entries = json_files.field(config, "flags", dict, path)
    arguments = {name: value for name, value in EARLIER.items() if name not in entries}
    for name, entry in entries.items():
        json_files.check(entry, dict, f"{path}: flags: {name}")
        if entry.get("from") == str(FLAG) and name not in _OF_ONE_RUN:
            # An empty flag overrides a recipe or a default; config.json has null for it.
            value = entry.get("value")
            arguments[name] = "" if value is None else value
    return arguments


def _as_argument(value, what):
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise json_files.JsonError(f"{what}: must be a string, a number, true or false")
    return str(value)
