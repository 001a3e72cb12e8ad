"""What --help prints: flags below headings, each with its help at its right."""

import textwrap
from collections.abc import Iterable, Mapping

_INDENT = 28


def text(description: str, groups: Mapping[str, Iterable[tuple[str, str]]]) -> str:
    """Returns what --help prints.

    Args:
      description: what the command does.
      groups: heading -> pairs of a flag's form, such as "--seed=N", and of its help.
    """
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


def _wrapped(form, explained):
    """Returns the lines of a flag: its form at the left, its help at the right."""
    lines = textwrap.wrap(explained, 100 - _INDENT, break_on_hyphens=False)
    start = f"  {form}"
    if len(start) < _INDENT - 1:
        start += " " * (_INDENT - len(start)) + lines.pop(0)
    return [start, *(" " * _INDENT + line for line in lines)]
