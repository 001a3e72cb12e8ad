"""Labelled texts and pairs of texts, from the files of a task."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from input_pipelines.table_files import Row, TableError, cell, read_rows
from input_pipelines.tasks import Columns, Task

Label = int | float | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Example:
    """A text or a pair of texts, and what is to be told of it.

    Attributes:
      text_a, text_b: the texts; the second is None where there is one.
      label: the label's number (classification), 1 or 0 for each label (multi_label), the number
        itself (regression), or None where it is not known.
    """

    text_a: str
    text_b: str | None
    label: Label | None


def training_examples(task: Task) -> list[Example]:
    """The examples of the training file; see `read_examples` for what is raised."""
    return read_examples(task, task.train, task.train_columns or task.columns)


def evaluation_examples(task: Task, name: str) -> list[Example]:
    """The examples of one of the files to evaluate on."""
    return read_examples(task, task.evaluate[name], task.columns, task.where)


def prediction_examples(task: Task, name: str) -> list[Example]:
    """The examples of one of the files to predict for, one for each row, without labels."""
    columns = task.predict_columns or dataclasses.replace(task.columns, label=None)
    return read_examples(task, task.predict[name], columns, task.where)


def read_examples(
    task: Task, path: str, columns: Columns, where: tuple[str | int, str] | None = None
) -> list[Example]:
    """Reads a file.

    Raises:
      TableError: the file cannot be read, holds no examples, or a row lacks a cell, has cells too
        many, an empty text, or a label that is none of the task's; names file and line.
    """
    examples, malformed = [], []
    num_columns = None
    for line, row in read_rows(path, columns.has_header):
        num_columns = num_columns or len(row)
        extra = [key for key in row if isinstance(key, int) and columns.has_header]
        if task.drops_malformed and (extra or len(row) < num_columns):
            malformed.append(line)
            continue
        if extra:
            raise TableError(
                f"{path}:{line}: has more cells than the header names columns; a text holds a "
                "separator, or the row runs into the next"
            )
        if where is not None and cell(path, line, row, where[0]) != where[1]:
            continue
        examples.append(_example(task, path, line, row, columns))
    if malformed:
        print(
            f"{path}: left out {len(malformed)} malformed rows, as the task's own files have them: "
            f"lines {', '.join(map(str, malformed[:5]))}{', ...' if len(malformed) > 5 else ''}"
        )
    if not examples:
        of_them = f" with {where[0]}={where[1]!r}" if where else ""
        raise TableError(f"{path}: holds no examples{of_them}")
    return examples


def discover_labels(task: Task) -> tuple[str, ...]:
    """The labels that occur in the training file, sorted: as numbers if all of them are."""
    columns = task.train_columns or task.columns
    found = set()
    for line, row in read_rows(task.train, columns.has_header):
        value = cell(task.train, line, row, columns.label)
        found.update(_label_names(value) if task.kind == "multi_label" else [_text(value)])
    found.discard("")
    if all(name.lstrip("-").isdecimal() for name in found):
        return tuple(sorted(found, key=int))
    return tuple(sorted(found))


def _example(task: Task, path: str, line: int, row: Row, columns: Columns) -> Example:
    texts = []
    for column in (columns.text_a, columns.text_b):
        text = None if column is None else cell(path, line, row, column)
        if column is not None and not isinstance(text, str):
            raise TableError(f"{path}:{line}: {column!r} is {text!r}, which is no text")
        texts.append(text)
    label = None
    if columns.label is not None:
        label = _label(task, path, line, cell(path, line, row, columns.label))
    return Example(*texts, label)


def _label(task: Task, path: str, line: int, value) -> Label:
    if task.kind == "regression":
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not abs(number) <= float(np.finfo(np.float32).max):
            raise TableError(f"{path}:{line}: the label is {value!r}; it must be a number")
        return number
    names = _label_names(value) if task.kind == "multi_label" else [_text(value)]
    names = [task.aliases.get(name, name) for name in names]
    for name in names:
        if name not in task.labels:
            raise TableError(
                f"{path}:{line}: the label is {name!r}; it must be one of {', '.join(task.labels)}"
            )
    if task.kind == "multi_label":
        return tuple(int(name in names) for name in task.labels)
    return task.labels.index(names[0])


def _label_names(value) -> list[str]:
    """Several labels: a JSON list, or a cell with commas between them; none is allowed."""
    parts = value if isinstance(value, list) else str(value).split(",")
    return [name for name in map(_text, parts) if name]


def _text(value) -> str:
    return value.strip() if isinstance(value, str) else str(value)


def majority_share(labels: Sequence[int]) -> float:
    """Share of the commonest label: the accuracy of whoever always gives it."""
    return max(labels.count(label) for label in set(labels)) / len(labels)
