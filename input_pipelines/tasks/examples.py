"""Labelled texts and pairs of texts, from the files of a task."""

import collections
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from bert_estimator.storage import remote
from bert_estimator.system import json_files, paths
from input_pipelines.tasks import annotations, labels, task_table
from input_pipelines.tasks.table_files import Row, TableError, cell, read_rows
from input_pipelines.tasks.task_table import Columns, Task

_LEAST_ROWS = 10  # in fewer rows, the first row's label is often of no other row
_MOST_WORDS_OF_A_NAME = 2  # of a column

Label = int | float | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Example:
    """Holds a text or a pair of texts, and its label."""

    text_a: str
    text_b: str | None  # None if the task has single texts
    # The label's number; for multi_label 1 or 0 for each label; for regression the number itself;
    # None if it is not known.
    label: Label | None


def training_examples(task: Task) -> list[Example]:
    """Reads the examples of the training file; warns if all have the same label."""
    columns = task.train_columns or task.columns
    examples = read_examples(task, task.train, columns)
    if len(examples) > 1 and len({example.label for example in examples}) == 1:
        line, _ = next(read_rows(task.train, columns.has_header, columns.encoding))
        print(
            f"WARNING: {task.train}:{line}: from this line on, all {len(examples)} training "
            "examples have the same label, so that there is nothing to learn"
        )
    return examples


def evaluation_examples(task: Task, name: str) -> list[Example]:
    """Reads the examples of one of the files to evaluate on."""
    return read_examples(task, task.evaluate[name], task.columns, task.where)


def prediction_examples(task: Task, name: str) -> list[Example]:
    """Reads the examples of one of the files to predict for, one for each row, without labels."""
    columns = task.predict_columns or dataclasses.replace(task.columns, label=None)
    return read_examples(task, task.predict[name], columns, task.where, keeps_all=True)


def read_examples(
    task: Task,
    path: str,
    columns: Columns,
    where: tuple[str | int, str] | None = None,
    keeps_all: bool = False,
) -> list[Example]:
    """Reads the examples of a file, of the rows with the (column, value) of `where`; `keeps_all`
    also keeps the rows that the task drops as malformed."""
    examples, malformed = [], []
    num_columns = None
    for line, row in _rows(path, columns):
        num_columns = num_columns or len(row)
        if columns.has_header:
            extra = any(isinstance(key, int) for key in row)
        else:
            extra = len(row) > num_columns
        if task.drops_malformed and (extra or len(row) < num_columns):
            malformed.append(line)
            if not keeps_all:
                continue
            # Predictions have a line for each row, so the row stays, with empty texts for cells
            # that it lacks.
            row = {columns.text_a: "", columns.text_b: "", **row}
        elif extra:
            most = "the header names columns" if columns.has_header else "the first row"
            raise TableError(
                f"{path}:{line}: has more cells than {most}. Does a text contain a separator, or "
                "is a line end missing?"
            )
        if where is not None and cell(path, line, row, where[0]) != where[1]:
            continue
        examples.append(_example(task, path, line, row, columns))
    if malformed:
        print(
            f"{path}: {'kept' if keeps_all else 'skipped'} {len(malformed)} malformed rows, as the "
            "task's published files have: "
            f"lines {', '.join(map(str, malformed[:5]))}{', ...' if len(malformed) > 5 else ''}"
        )
    if not examples:
        selected = f" with {where[0]}={where[1]!r}" if where else ""
        raise TableError(f"{path}: has 0 examples{selected}; give a file with at least one")
    return examples


def texts(task: Task) -> Iterator[str]:
    """Yields the texts of all files of a task that exist."""
    unlabelled = task.predict_columns or dataclasses.replace(task.columns, label=None)
    files = {
        **dict.fromkeys(filter(None, [task.train]), task.train_columns or task.columns),
        **dict.fromkeys(task.evaluate.values(), task.columns),
        **dict.fromkeys(task.predict.values(), unlabelled),
    }
    for path, columns in files.items():
        if remote.check(path) if paths.is_remote(path) else os.path.exists(path):
            # For their texts, files need not have labels that the task knows.
            columns = dataclasses.replace(columns, label=None)
            yield from texts_of(read_examples(task, path, columns))


def texts_of(examples: Sequence[Example]) -> Iterator[str]:
    """Yields the texts of examples, both texts of a pair."""
    for example in examples:
        yield example.text_a
        if example.text_b is not None:
            yield example.text_b


def discover_labels(task: Task) -> tuple[str, ...]:
    """Finds the labels in the training file, sorted."""
    return _labels_in(task, task.train, task.train_columns or task.columns, are_all=True)


def evaluation_labels(task: Task) -> tuple[str, ...]:
    """Finds the labels in the first file to evaluate on; the task may have further labels."""
    return _labels_in(task, next(iter(task.evaluate.values())), task.columns, are_all=False)


def _labels_in(task, path, columns, are_all):
    def cells() -> Iterator[tuple[int, Any]]:
        for line, row in _rows(path, columns):
            yield line, cell(path, line, row, columns.label)

    several = task.kind == "multi_label"
    names = labels.discover(path, cells(), several, are_all)
    if not columns.has_header:
        _, row = next(_rows(path, columns))
        _check_first(path, cells(), several, str(row.get(columns.text_a, "")))
    return names


def _rows(path: str, columns: Columns) -> Iterator[tuple[int, Row]]:
    """Yields (line, row); of files with labels, without rows whose labels annotators refused."""
    rows = read_rows(path, columns.has_header, columns.encoding)
    if columns.label is None:
        return rows
    return annotations.without_refused(rows, path, (columns.text_a, columns.text_b, columns.label))


def _check_first(path, cells, several, text):
    """Raises TableError if the label of a file's first row, and the text, say that this row is a
    header."""
    rows = [(line, labels.names_of(text, path) if several else [text]) for line, text in cells]
    line, first_names = rows[0]
    first = first_names[0].strip() if len(first_names) == 1 else ""
    counts = collections.Counter(name.strip() for _, names in rows for name in names)
    others = {name: number for name, number in counts.items() if name != first}
    if not first or counts[first] > 1 or len(others) < 2:
        return
    # A column's name is short; the only example of a class may be the first one.
    if len(text.split()) > _MOST_WORDS_OF_A_NAME:
        return
    # A header's label is of no other row. This says something only if all other labels are of
    # several rows, or are numbers, which the header's is not.
    are_repeated = len(rows) >= _LEAST_ROWS and min(others.values()) > 1
    if are_repeated or (labels.are_whole(others) and not labels.are_whole([first])):
        what = f"has the label {first!r}, as no other row has, and looks like a header"
        raise task_table.is_header(f"{path}:{line}", what)


def _example(task: Task, path: str, line: int, row: Row, columns: Columns) -> Example:
    texts = []
    for column in (columns.text_a, columns.text_b):
        text = None if column is None else cell(path, line, row, column)
        if column is not None and not isinstance(text, str):
            shown = json_files.shown(text)
            raise TableError(f"{path}:{line}: {column!r} is {shown}; it must be a text")
        texts.append(text)
    label = None
    if columns.label is not None:
        label = _label(task, path, line, cell(path, line, row, columns.label))
    return Example(*texts, label)


def _label(task: Task, path: str, line: int, value: Any) -> Label:
    place, several = f"{path}:{line}", task.kind == "multi_label"
    if task.kind == "regression":
        return labels.number_of(value, place)
    names = (
        labels.names_of(value, place) if several else [labels.name_of(labels.alone(value), place)]
    )
    names = [task.aliases.get(name, name) for name in names]
    for name in names:
        if name not in task.labels:
            raise labels.unknown(name, place, task.labels)
    if several:
        return tuple(int(name in names) for name in task.labels)
    return task.labels.index(names[0])
