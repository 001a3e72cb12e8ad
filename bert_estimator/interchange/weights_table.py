"""The table that says which weights of a checkpoint and variables of a model were used."""

import collections
import re
from collections.abc import Iterable
from typing import Any

from bert_estimator.interchange.source import Source

RESTORED, NEW, UNUSED, INITIALIZED = "restored", "new", "unused", "initialized"

_ORDER = (RESTORED, NEW, INITIALIZED, UNUSED)


def left_out(source: Source) -> list[tuple[str, Any, str]]:
    """Returns the rows of what a source holds besides weights: all optimizer's slots share one."""
    slots = [name for name in source.left_out if name.rpartition("/")[0] in source.shapes]
    others = [name for name in source.left_out if name not in slots]
    names = [f"optimizer's slots: {len(slots)}", *others] if slots else others
    return [(name, "", UNUSED) for name in names]


def text(title: str, rows: Iterable[tuple[str, Any, str]]) -> str:
    """Returns a title, the number of rows of each kind, and a table.

    Variables that differ in their layer's number alone share a line.

    Args:
      title: the subject of the table.
      rows: list of (name, shape as a list of ints, one of RESTORED, NEW, INITIALIZED, UNUSED).
    """
    counts = collections.Counter(what for _, _, what in rows)
    lines = [f"{title}: " + ", ".join(f"{counts[what]} {what}" for what in _ORDER if counts[what])]
    groups = collections.Counter(
        (_ORDER.index(what), re.sub(r"\blayer_\d+\b", "layer_*", name), str(shape))
        for name, shape, what in rows
    )
    cells = [
        (_ORDER[what], name, shape + (f" x {count}" if count > 1 else ""))
        for (what, name, shape), count in groups.items()
    ]
    cells.sort(key=lambda row: (_ORDER.index(row[0]), row[1]))
    widths = [max(len(row[column]) for row in cells) for column in range(2)]
    for what, name, shape in cells:
        lines.append(f"  {what:{widths[0]}}  {name:{widths[1]}}  {shape}")
    return "\n".join(lines)
