"""Reads rows of TSV, CSV and JSON files, each with its line number.

TSV is read as in GLUE: tabs separate cells, and a quotation mark is an ordinary character. CSV is
read as in RFC 4180: commas separate cells, and quoted cells may hold commas and line ends. A JSON
file has an object on each line, or an array of objects. Parquet has rows; numbers that stand for
names, as `datasets` writes labels, become these names. Each may be compressed, such as .csv.gz.

Files are UTF-8 unless another encoding is given, with line ends of Unix, Windows or, without any
other, of an old Macintosh. Empty lines are skipped, but in tables of one column they are rows.
Cells in a column without a name, as spreadsheets leave them behind, are left out.
"""

import codecs
import contextlib
import csv
import io
import os
import re
import unicodedata
from collections.abc import Collection, Iterator
from typing import IO, Any

from bert_estimator.storage import remote
from bert_estimator.system import disk_files, json_files
from input_pipelines.text import text_files, text_formats

Row = dict[str | int, Any]

PARQUET = ".parquet"
# Formats whose rows are objects: their cells may be any value of JSON.
OBJECT_FORMATS = (".jsonl", ".ndjson", ".json", PARQUET)
FORMATS = (".tsv", ".csv", *OBJECT_FORMATS)

_LONGEST_CELL = 1 << 24  # characters; the csv module's own limit is shorter than some articles
_MARKS_OF_UTF16 = (b"\xff\xfe", b"\xfe\xff")
# How files begin that are not text, whatever their names end in.
_BEGINNINGS = {
    b"PK\x03\x04": "a zip archive or a workbook (.xlsx, .ods); save the sheet as CSV in UTF-8",
    b"\xd0\xcf\x11\xe0": "a workbook of old Excel (.xls); save the sheet as CSV in UTF-8",
    b"\x1f\x8b": "compressed; give it a name that ends in .gz",
    b"PAR1": "parquet; let its name end in .parquet",
}
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
# A cell whose quotation marks enclose it, or would do so but for a comma or a line end within.
_SPACE_BEFORE_QUOTES = re.compile(r'\s+"(?:[^"]|"")*"?\s*')
_LONGEST_LINE = 1 << 26  # bytes


class TableError(ValueError):
    """A file is not a table, or a row is not what it should be; the message names file and line."""


def read_rows(
    path: str, has_header: bool = True, encoding: str = "utf-8"
) -> Iterator[tuple[int, Row]]:
    """Yields (number of the row's last line, row) of a file; a row is its cells, str or any JSON
    value, by the header's names, or by their numbers from 0 if the header does not name them."""
    extension = _extension(path)
    if extension not in FORMATS:
        raise TableError(
            f"{path}: the format is unknown; the name must end in {', '.join(FORMATS)}"
        )
    if extension in OBJECT_FORMATS:
        yield from _objects(path, encoding)
        return
    read = _tab_separated if extension == ".tsv" else _comma_separated
    lists = read(path, encoding)
    names: list[str] = []
    for line, cells in _with_empty_rows(lists):
        if has_header and not names:
            names = list(map(without_unseen, cells))
            _check_is_not_directive(path, line, cells)
            twice = sorted({name for name in names if name and names.count(name) > 1})
            if twice:
                raise TableError(f"{path}:{line}: the header names {twice[0]!r} twice")
            continue
        if len(names) > 1 and list(map(without_unseen, cells)) == names:
            raise TableError(
                f"{path}:{line}: is the header again, as in files that were joined; remove this row"
            )
        # Cells without a column of their own get their numbers, so that a reader can refuse the
        # row.
        keys = [*names, *range(len(names), len(cells))]
        yield line, {key: text for key, text in zip(keys, cells, strict=False) if key != ""}


def read_columns(path: str, encoding: str = "utf-8") -> list[str]:
    """Returns the names of the columns of a file with a header: of JSON, the keys of all rows."""
    rows = read_rows(path, encoding=encoding)
    if _extension(path) in OBJECT_FORMATS:
        columns = list(dict.fromkeys(key for _, row in rows for key in row))
    elif next(rows, None) is not None:  # the row itself may lack cells that the header names
        _, header = next(read_rows(path, has_header=False, encoding=encoding))
        columns = list(filter(None, map(without_unseen, header.values())))
    else:
        columns = []
    if not columns:
        raise TableError(f"{path}: has 0 rows; give a file with at least one")
    return columns


def separator_hint(path: str, cells: Collection[Any]) -> str:
    """Returns a sentence if a row that is a single cell holds separators of another format."""
    right = _SEPARATORS.get(_extension(path), "")
    text = "".join(map(str, cells))
    if right == "\t" and cells and all(re.fullmatch(r'"[^"]*"', str(cell)) for cell in cells):
        return ". Quotation marks are a part of the cells in this format; save the file as .csv"
    others = [sign for sign in ",;\t|" if sign in text]
    if not right or right in text or len(cells) != 1 or not others:
        return ""
    return (
        f". Cells of this format are separated by {_named(right)}, but here perhaps by "
        f"{_named(max(others, key=text.count))}: rename or convert the file"
    )


def without_unseen(text: str) -> str:
    """Returns a text without what nobody can see, such as byte order marks, joiners, soft hyphens
    and variation selectors, and without white space around it."""
    return "".join(
        character
        for character in text
        if unicodedata.category(character) != "Cf" and not "\ufe00" <= character <= "\ufe0f"
    ).strip()


def as_it_looks(name: str) -> str:
    """Returns a name in Unicode's NFC, as `without_unseen` says, with one space for white space."""
    return " ".join(without_unseen(unicodedata.normalize("NFC", name)).split())


def cell(path: str, line: int, row: Row, column: str | int) -> Any:
    """Returns the cell of a row in a column, by its name or its number from 0."""
    if column in row:
        return row[column]
    if isinstance(column, int):
        raise TableError(
            f"{path}:{line}: has {len(row)} columns, but column {column + 1} is needed. Is a "
            f"separator missing, or is this another file?{separator_hint(path, row.values())[1:]}"
        )
    raise TableError(
        f"{path}:{line}: has no column {column!r}; it has {', '.join(map(str, row))}. Is the row "
        "truncated?"
    )


def _extension(path):
    return os.path.splitext(text_files.unpacked_name(path))[1].replace(".txt", ".tsv")


def _named(separator):
    return {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars"}[separator]


def _check_is_not_directive(path, line, cells):
    """Raises TableError for the line by which Excel says what separates cells."""
    if re.fullmatch(r"(?i)sep=.?", without_unseen(cells[0])) and not any(cells[1:]):
        raise TableError(
            f"{path}:{line}: is a line for Excel, not the header. Remove it; commas separate the "
            "cells of a .csv file"
        )


def _tab_separated(path: str, encoding: str) -> Iterator[tuple[int, list[str]]]:
    for line, text in text_lines(path, encoding):
        yield line, text.split("\t") if "\t" in text or text.strip() else []


def _comma_separated(path: str, encoding: str) -> Iterator[tuple[int, list[str]]]:
    # Line ends inside quotes belong to their cell, so the csv module needs them.
    lines = text_lines(path, encoding)
    reader = csv.reader((text + "\n" for _, text in lines), strict=True)
    try:
        while (cells := _next_row(reader)) is not None:
            for text in cells:
                # The csv module would take these marks for text, and split the cell at its commas.
                if _SPACE_BEFORE_QUOTES.fullmatch(text):
                    raise TableError(
                        f"{path}:{reader.line_num}: a space stands between a comma and a quotation "
                        f"mark ({json_files.shown(text)}), so that the mark would be a part of the "
                        "text. Remove these spaces"
                    )
            yield reader.line_num, cells
    except csv.Error as error:
        reason = str(error)
        if reason.startswith("new-line character"):
            reason = (
                "a cell without quotes has a carriage return in it, but other lines end in LF; let "
                "all lines end in LF"
            )
        elif "expected after" in reason:
            reason += '. In a cell with quotation marks around it, write each one within twice ("")'
        raise TableError(f"{path}:{reader.line_num}: is not CSV: {reason}") from None


def _next_row(reader):
    """Returns the next row of a csv reader, whose cells may be long; None at the end."""
    before = csv.field_size_limit(_LONGEST_CELL)  # for the whole process
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(before)


def _with_empty_rows(lists: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of a table, whose empty lines are lists without cells."""
    # Predictions have a line for each row, so no row may be lost. If there is one column only, an
    # empty line is a row of an empty cell, but for those at the end of the file. It may come before
    # the first row that tells how many columns there are, so empty lines wait.
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


def _objects(path: str, encoding: str) -> Iterator[tuple[int, Row]]:
    if _extension(path) == PARQUET:
        try:
            with opened(path) as file:
                yield from enumerate(text_formats.parquet_rows(file, path), 1)
        except ValueError as error:
            raise TableError(str(error).rstrip(".")) from None
        except OSError as error:
            raise TableError(f"{path}: cannot be read: {error.strerror}") from None
        return
    # Messages count the empty lines, too.
    lines = (text for _, text in text_lines(path, encoding))
    try:
        for line, row in json_files.values(lines, path):
            if not isinstance(row, dict):
                raise TableError(
                    f"{path}:{line}: is not a JSON object; it must have a key for each column"
                )
            if row and all(isinstance(column, dict) and "0" in column for column in row.values()):
                raise TableError(
                    f"{path}:{line}: is a table by columns, as pandas writes it by default; write "
                    "rows: to_json(path, orient='records', lines=True)"
                )
            yield line, row
    except json_files.JsonError as error:
        raise TableError(str(error)) from None


def text_lines(path: str, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """Yields (number from 1, text) for each line, without its end and a byte order mark."""
    try:
        with opened(path) as file:
            # Unicode's other line ends may be within a text. Each line may begin with a byte order
            # mark, since files that were joined have several.
            stream = _as_utf8(file, path, encoding)
            for number, data in enumerate(text_formats.byte_lines(stream, _LONGEST_LINE), 1):
                if len(data) > _LONGEST_LINE:
                    raise TableError(
                        f"{path}:{number}: is longer than {_LONGEST_LINE} bytes. Is this a table?"
                    )
                try:
                    text = data.decode().removeprefix("\ufeff")
                    if "\0" in text:
                        raise TableError(
                            f"{path}:{number}: is not text: it has a NUL. If the file is UTF-16, "
                            "give --encoding=utf-16-le or utf-16-be"
                        )
                except UnicodeDecodeError as error:
                    # What is not text at all should not be told to give its encoding.
                    for beginning, what in _BEGINNINGS.items():
                        if number == 1 and data.startswith(beginning):
                            raise TableError(f"{path}: is not text, but {what}") from None
                    is_utf16 = number == 1 and data.startswith(_MARKS_OF_UTF16)
                    likely = "utf-16" if is_utf16 else "cp1252"
                    raise TableError(
                        f"{path}:{number}: is not UTF-8 at byte {error.start + 1} of the line "
                        f"({error.reason}). Give its encoding (--encoding={likely}), or convert "
                        f"the file (iconv -f {likely} -t utf-8)"
                    ) from None
                yield number, text.removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise TableError(f"{path}: cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """Opens a file, here or remote, as a stream of its bytes, unpacked."""
    here = remote.local(path)
    with disk_files.reading(here) as file:
        if not text_files.packing(path):
            yield file
            return
    try:
        # A caller's TableError passes through the block; a damaged archive is a ValueError.
        with text_files.opened(here) as file:
            yield file
    except TableError:
        raise
    except ValueError as error:
        raise TableError(str(error).rstrip(".")) from None


def _as_utf8(file, path, encoding):
    """Returns the stream of a file in UTF-8; only UTF-8 itself is not read into memory."""
    if codecs.lookup(encoding).name == "utf-8":
        return file
    try:
        return io.BytesIO(file.read().decode(encoding).encode())
    except UnicodeError as error:
        raise TableError(f"{path}: is not in the encoding {encoding}: {error}") from None
