"""Reads rows of TSV, CSV and JSONL files, each with its line number.

TSV is read as in GLUE: tabs separate cells, and a quotation mark is an ordinary character. CSV is
read as in RFC 4180: commas separate cells, and quoted cells may hold commas and line ends. A JSONL
file has an object on each line. All files are UTF-8, with line ends of Unix or Windows. A byte
order mark before a line is left out, since files that were joined have several. Empty lines are
skipped, but in tables of one column they are rows.
"""

import csv
import itertools
import os
from collections.abc import Iterator
from typing import Any

from bert_estimator.storage import remote
from bert_estimator.system import disk_files, json_files

Row = dict[str | int, Any]

FORMATS = (".tsv", ".csv", ".jsonl")

_LONGEST_CELL = 1 << 24  # characters; the csv module's own limit is shorter than some articles
_MARKS_OF_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_LONGEST_LINE = 1 << 26  # bytes; a file without line ends would fill the memory


class TableError(ValueError):
    """A file is not a table, or a row is not what it should be; the message names file and line."""


def read_rows(path: str, has_header: bool = True) -> Iterator[tuple[int, Row]]:
    """Reads the rows of a file.

    Args:
      path: a file whose name ends in one of FORMATS; `.txt` is read as `.tsv`.
      has_header: whether the first line names the columns. Without a header, a column is a number
        from 0. JSONL always has names.

    Yields:
      (number of the row's last line, row). A row is a dict of column -> cell. Cells are str, or any
      JSON value in JSONL. Cells that a row lacks are not in the dict. If a row has more cells than
      the header, the additional cells are under their numbers.

    Raises:
      TableError: the format is unknown, the file is missing or not UTF-8, a line is not a JSON
        object, or a column's name occurs twice; or a later row is the header again.
    """
    extension = os.path.splitext(path)[1].lower().replace(".txt", ".tsv")
    if extension not in FORMATS:
        raise TableError(
            f"{path}: the format is unknown; the name must end in {', '.join(FORMATS)}"
        )
    if extension == ".jsonl":
        yield from _objects(path)
        return
    lists = _tab_separated(path) if extension == ".tsv" else _comma_separated(path)
    names: list[str] = []
    for line, cells in _with_empty_rows(lists):
        if has_header and not names:
            names = [cell.strip() for cell in cells]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise TableError(f"{path}:{line}: the header names {twice[0]!r} twice")
            continue
        if len(names) > 1 and [cell.strip() for cell in cells] == names:
            raise TableError(
                f"{path}:{line}: is the header again, as in files that were joined; remove this row"
            )
        keys = [*names, *range(len(names), len(cells))]
        yield line, dict(zip(keys, cells, strict=False))


def read_columns(path: str) -> list[str]:
    """Returns the names of the columns of a file with a header: of JSONL, the keys of all rows.

    Raises:
      TableError: the file does not have any row, or is not what `read_rows` reads.
    """
    rows = read_rows(path)
    columns: list[Any] = []
    if path.lower().endswith(".jsonl"):
        columns = list(dict.fromkeys(key for _, row in rows for key in row))
    elif next(rows, None) is not None:  # the row itself may lack cells that the header names
        _, header = next(read_rows(path, has_header=False))
        columns = [name.strip() for name in header.values()]
    if not columns:
        raise TableError(f"{path}: has 0 rows; give a file with at least one")
    return columns


def cell(path: str, line: int, row: Row, column: str | int) -> Any:
    """Returns the cell of a row in a column.

    Args:
      path, line: the file and the line of the row, for the message.
      row: a row that `read_rows` gave.
      column: name of the column, or its number from 0.

    Raises:
      TableError: the row lacks this cell; the message names the file, the line and the cells that
        the row has.
    """
    if column in row:
        return row[column]
    if isinstance(column, int):
        raise TableError(
            f"{path}:{line}: has {len(row)} columns, but column {column + 1} is needed. Is a tab "
            "missing, or is this another file?"
        )
    raise TableError(
        f"{path}:{line}: has no column {column!r}; it has {', '.join(map(str, row))}. Is the row "
        "truncated?"
    )


def _tab_separated(path: str) -> Iterator[tuple[int, list[str]]]:
    for line, text in text_lines(path, keep_empty=True):
        yield line, text.split("\t") if "\t" in text or text.strip() else []


def _comma_separated(path: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(_LONGEST_CELL)
    # Line ends inside quotes belong to their cell, so the csv module needs them.
    reader = csv.reader((text + "\n" for _, text in text_lines(path, keep_empty=True)), strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        reason = str(error)
        if reason.startswith("new-line character"):
            reason = (
                "a cell without quotes has a carriage return in it. If the lines of the file end "
                "in CR, as on an old Macintosh, let them end in LF: tr '\\r' '\\n'"
            )
        raise TableError(f"{path}:{reader.line_num}: is not CSV: {reason}") from None


def _with_empty_rows(lists: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of a table, whose empty lines are lists without cells.

    Predictions have a row for each row. A line of separators is a row of empty cells; and if there
    is one column only, so is an empty line, but for those at the end of the file.
    """
    has_one_column, empty = None, []
    for line, cells in lists:
        if not cells:
            empty.append(line)
            continue
        if has_one_column:
            yield from ((number, [""]) for number in empty)
        elif has_one_column is None:
            has_one_column = len(cells) == 1
        empty.clear()
        yield line, cells


def _objects(path: str) -> Iterator[tuple[int, Row]]:
    for line, text in text_lines(path):
        try:
            row = json_files.parse(text, f"{path}:{line}", object)
        except json_files.JsonError as error:
            raise TableError(str(error)) from None
        if not isinstance(row, dict):
            raise TableError(
                f"{path}:{line}: is not a JSON object; it must have a key for each column"
            )
        yield line, row


def text_lines(path: str, keep_empty: bool = False) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, text) for each line of a file in UTF-8.

    A line ends at \\n alone; Unicode's other line ends may occur inside a text. The line end and a
    byte order mark before the line are left out.

    Args:
      path: the file.
      keep_empty: whether lines without text are yielded.

    Raises:
      TableError: the file cannot be read or is not UTF-8, or a line is too long; the message names
        file and line.
    """
    try:
        with disk_files.reading(remote.local(path)) as file:
            for number in itertools.count(1):
                data = file.readline(_LONGEST_LINE + 1)
                if not data:
                    return
                if len(data) > _LONGEST_LINE:
                    raise TableError(
                        f"{path}:{number}: is longer than {_LONGEST_LINE} bytes. Is this a table?"
                    )
                try:
                    text = data.decode().removeprefix("\ufeff")
                except UnicodeDecodeError as error:
                    is_utf16 = number == 1 and data.startswith(_MARKS_OF_UTF16)
                    encoding = "utf-16" if is_utf16 else "latin1"
                    raise TableError(
                        f"{path}:{number}: is not UTF-8 at byte {error.start + 1} of the line "
                        f"({error.reason}). Convert the file (iconv -f {encoding} -t utf-8)"
                    ) from None
                text = text.removesuffix("\n").removesuffix("\r")
                if text.strip() or keep_empty:
                    yield number, text
    except OSError as error:
        raise TableError(f"{path}: cannot be read: {error.strerror}") from None
