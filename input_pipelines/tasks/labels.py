"""Labels as files spell them: cells become names or numbers, or errors that say where."""

import collections
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bert_estimator.system import json_files
from input_pipelines.tasks import table_files
from input_pipelines.tasks.table_files import TableError

_WHOLE = re.compile(r"-?\d{1,15}")
# What stands for a missing label: SNLI's dash, the numbers of datasets and transformers, and words.
_PLACEHOLDERS = ("-", "-1", "-100", "?", "n/a", "na", "nan", "none", "null")
_RARE = 0.05  # share of the rows
_KINDS = {str: "a text", bool: "true or false", int: "a number", float: "a number"}


def name_of(value: Any, place: str) -> str:
    """Returns the name of a label: a text without spaces around it, or a JSON value's spelling."""
    if isinstance(value, str):
        name = value.strip()
        # Predictions and reports have names in lines and columns.
        if "\t" in name or len(name.splitlines()) > 1:
            raise TableError(
                f"{place}: the label is {json_files.shown(name)}; it must not hold a tab or a line "
                "end"
            )
        return name
    # True is an int for Python, so this comes first.
    if isinstance(value, bool):
        return "true" if value else "false"
    # pandas makes floats of whole numbers if the column has a gap; above 2**53 they are not exact.
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        value = int(value)
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    advice = "; for several labels of a text, give --task_kind=multi_label"
    raise TableError(
        f"{place}: the label is {json_files.shown(value)}; it must be a text, a number, true or "
        f"false{advice * isinstance(value, list)}"
    )


def alone(value: Any) -> Any:
    """Returns the label of a list of one, as tools for annotation write it; else the value."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def names_of(value: Any, place: str) -> list[str]:
    """Returns the names of several labels, or of 0: of a JSON list, or of a cell with commas."""
    parts = value if isinstance(value, list) else name_of(value, place).split(",")
    return [name for name in (name_of(part, place) for part in parts) if name]


def number_of(value: Any, place: str) -> float:
    """Returns the number of a label; raises TableError if it is not a number of float32."""
    try:
        is_number = isinstance(value, str | int | float) and not isinstance(value, bool)
        # For `float`, "1_000" is a number.
        number = float(value) if is_number and "_" not in str(value) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    # NaN fails this test, too.
    if not abs(number) <= float(np.finfo(np.float32).max):
        shown = repr(value) if isinstance(value, str) else json_files.shown(value)
        hint = ", with a decimal point" * bool(re.fullmatch(r"\s*[-+]?\d+,\d+\s*", str(value)))
        raise TableError(
            f"{place}: the label is {shown}; it must be a number, at most 3.4e38{hint}"
        )
    return number


def are_whole(names: Iterable[str]) -> bool:
    """Returns whether all names are whole numbers."""
    return all(_WHOLE.fullmatch(name.strip()) for name in names)


def check_spelling(
    name: str, path: str, line: int, spellings: dict[str, tuple[str, int]], what: str = "label"
) -> None:
    """Raises TableError if a name looks like another name of the file; adds it to `spellings`: how
    a name looks -> (the name, the line of its first use)."""
    other, first = spellings.setdefault(_look(name), (name, line))
    if other != name:
        raise TableError(
            f"{path}:{line}: the {what} is {json_files.shown(name)}, but in line {first} it is "
            f"{json_files.shown(other)}, which looks the same; spell each {what} in one way"
        )


def _look(name):
    """Returns a name as it looks (`table_files.as_it_looks`), without quotation marks around it."""
    return re.sub(r"""^(["'])(.+)\1$""", r"\2", table_files.as_it_looks(name))


def unknown(name: str, place: str, known: Iterable[str], what: str = "label") -> TableError:
    """Returns the error for a name that a task does not have, though it may look like another."""
    known = tuple(known)
    for other in known:
        if _look(other) == _look(name):
            return TableError(
                f"{place}: the {what} is {json_files.shown(name)}, which looks the same as "
                f"{json_files.shown(other)} and is another; spell each {what} in one way"
            )
    return TableError(f"{place}: the {what} is {name!r}; it must be one of {', '.join(known)}")


def warn_of_placeholders(
    path: str, counts: Mapping[str, int], first_lines: Mapping[str, int], what: str = "label"
) -> None:
    """Prints a warning for a rare label that usually says that a row does not have a label."""
    total = sum(counts.values())
    for name, count in counts.items():
        if name.lower() in _PLACEHOLDERS and len(counts) > 2 and count <= _RARE * total:
            print(
                f"WARNING: {path}:{first_lines[name]}: the {what} is {name!r} here and {count} of "
                f"{total} times in the file. This often says that the {what} is not known, but it "
                f"is learned like every other {what}. If it is not a {what}, leave these rows out"
            )


def discover(
    path: str, cells: Iterable[tuple[int, Any]], several: bool = False, are_all: bool = True
) -> tuple[str, ...]:
    """Finds the labels of a file from (line, cell) of each row, sorted; as numbers if all of
    them are whole numbers. `several` allows several labels in a cell; `are_all` requires at
    least two."""
    first_uses: dict[str, tuple[str, int]] = {}  # label -> (its kind, line)
    spellings: dict[str, tuple[str, int]] = {}
    counts: collections.Counter[str] = collections.Counter()
    first_line = 0
    for line, value in cells:
        first_line = first_line or line
        place = f"{path}:{line}"
        value = value if several else alone(value)
        is_list = several and isinstance(value, list)
        for part in value if is_list else [value]:
            is_text_of_several = several and not is_list
            names = names_of(part, place) if is_text_of_several else [name_of(part, place)]
            for name in names:
                # `true` and "true" would become one label, which one of the two rows may not mean.
                kind = _KINDS[type(part)]
                before, first = first_uses.setdefault(name, (kind, line))
                if before != kind:
                    raise TableError(
                        f"{place}: the label {name} is {kind}, but in line {first} it is {before}; "
                        "spell each label in one way"
                    )
                check_spelling(name, path, line, spellings)
            counts.update(filter(None, names))
    warn_of_placeholders(path, counts, {name: line for name, (_, line) in first_uses.items()})
    names = [name for name in first_uses if name]
    if not names and are_all:
        raise TableError(f"{path}:{first_line}: neither this row nor a later one has a label")
    if len(names) == 1 and are_all and not several:
        raise TableError(
            f"{path}:{first_uses[names[0]][1]}: the label is {names[0]!r} here and in all other "
            "rows, so that there is nothing to learn; give examples of at least two labels"
        )
    # As texts, 10 would come before 2.
    if are_whole(names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))
