"""What --help prints: flags below headings, each with its default and its help at its right."""

import dataclasses
import textwrap
from collections.abc import Iterable, Mapping

from bert_estimator.command_line import flags

_INDENT = 28
_OF_DEFAULTS = (
    "A flag that is not given has the default shown here, unless a recipe or the built-in plan for "
    "runs without data sets another value; config.json in --output_dir says which value came from "
    "where."
)
_VALUES = {int: "N", float: "X", str: "TEXT"}


def of_config(config_class: type, description: str) -> str:
    """Returns the help of a script, whose configuration has `flags.field`s and `flags.group`s."""
    groups = {
        heading: map(entry, fields) for heading, fields in flags.by_heading(config_class).items()
    }
    wrapped = textwrap.wrap(_OF_DEFAULTS, 100)
    return text("\n".join([description.strip(), "", *wrapped]), groups)


def text(description: str, groups: Mapping[str, Iterable[tuple[str, str]]]) -> str:
    """Returns what --help prints; `groups` has pairs of a flag's form ("--seed=N") and its help."""
    lines = [description]
    further = [
        ("--flagfile=FILE", "Take the flags of this file, one on each line."),
        ("--version", "Print the version."),
    ]
    for heading, entries in {**groups, "Further flags": further}.items():
        entries = list(entries)
        if entries:
            lines += ["", f"{heading}:"]
        for form, explained in entries:
            lines += _wrapped(form, explained)
    return "\n".join(lines)


def entry(field: dataclasses.Field) -> tuple[str, str]:
    """Returns a flag's form and its help."""
    kind = flags.kind_of(field)
    form = f"--[no]{field.name}" if kind is bool else f"--{field.name}={_VALUES[kind]}"
    explained = field.metadata["help"]
    # A switch that is off by default does not need to say so.
    if field.default not in (None, "") and not (kind is bool and not field.default):
        default = str(field.default).lower() if kind is bool else field.default
        explained += f" (default: {default})"
    return form, explained


def _wrapped(form, explained):
    """Returns the lines of a flag: its form at the left, its help at the right."""
    lines = textwrap.wrap(explained, 100 - _INDENT, break_on_hyphens=False)
    start = f"  {form}"
    if len(start) < _INDENT - 1:
        start += " " * (_INDENT - len(start)) + lines.pop(0)
    return [start, *(" " * _INDENT + line for line in lines)]
