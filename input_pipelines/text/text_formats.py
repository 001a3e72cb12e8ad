"""The formats of text files: plain lines, JSON lines, WikiExtractor's output and parquet.

Names that end in .jsonl, .ndjson or .json (before .gz and the like) are JSON: an object a line, or
an array of objects, with the text under one key; a string is a text by itself. Names that end in
.parquet are parquet: the text is a column. Any other file is recognized by its first line: `<doc `
begins WikiExtractor's output, an object of JSON begins JSON lines (WikiExtractor's --json),
whatever its keys are, an array of objects begins such an array, and everything else is plain text,
except for markup such as MediaWiki's dumps, which is refused. A no-break space before the first
line makes it plain text, and is not a part of the text.

Lines end at a line feed; in a file without any, they end at carriage returns, as on an old
Macintosh.
"""

import html
import re
from collections.abc import Iterator
from typing import IO, Any

from bert_estimator.system import json_files
from input_pipelines.text import text_files

OPENING = (b"[", b"{")
"""Lines that JSON begins with if it is broken into lines."""

_NUL = "\0"  # JSON and parquet can hold it, but text files cannot; tokenizers leave it out, too.
_NO_BREAK_SPACE = "\u00a0"
_MOST_LINE_BYTES = 1 << 28
_BLOCK = 1 << 18
_PARQUET_ROWS = 64
_DOC = re.compile(r"<doc (.*)>$")
_OBJECT = re.compile(rb'\{\s*"')
_ARRAY = re.compile(rb'\[\s*\{\s*(?:"|$)')
# How markup begins: a declaration or a known kind of document; or a line that is a tag, or an
# element. A line may well begin with a placeholder such as <user>.
_MARKUP = re.compile(
    rb"<\?xml\b|<!doctype\b|<!--|<(?:mediawiki|html|rss|feed|tei)\b|\{\\rtf|%PDF-|%!PS"
    rb"|\\documentclass\b|<([a-z][\w:.-]*)(?:\s[^<>]*)?/?>(?:.*</\1>)?\s*$",
    re.IGNORECASE,
)
_MOST_SHOWN = 40  # characters of a line in a message
_TITLE = re.compile(r'\btitle="([^"]*)"')


def of_file(path: str, first_line: bytes, goes_on: bool = False) -> str:
    """Returns the format of a file, "plain", "jsonl", "wikiextractor" or "parquet", by its name and
    its first line that is not empty, which may go on; raises ValueError for markup."""
    name = text_files.unpacked_name(path)
    if name.endswith(".parquet"):
        return "parquet"
    if name.endswith((".jsonl", ".ndjson", ".json")):
        return "jsonl"
    # Bytes are stripped of ASCII's spaces, not of `before_plain`.
    if _DOC.match(first_line.strip().decode(errors="replace")):
        return "wikiextractor"
    # Trained on, markup would be learned as words: it is refused, unless the user insists.
    if _MARKUP.match(first_line):
        shown = first_line.strip().decode(errors="replace")[:_MOST_SHOWN]
        raise ValueError(
            f"{path}: begins with {shown!r}, so it is a document with markup, which is not text. "
            "Extract its text first (of a dump of MediaWiki with WikiExtractor), then give that "
            "file. If it is text all the same, put a no-break space before the first line."
        )
    is_json = _ARRAY.match(first_line) or _is_object(first_line, goes_on)
    return "jsonl" if is_json else "plain"


def _is_object(line, goes_on):
    is_broken = line.partition(b"\n")[0].strip() in OPENING
    # What is cut or broken into lines cannot be parsed here: how it begins must do.
    if goes_on or is_broken or _OBJECT.match(line) is None:
        return _OBJECT.match(line) is not None
    try:
        json_files.parse(line, "the first line")
    except json_files.JsonError:
        return False
    return True


def before_plain(first_line: str) -> str:
    """Returns what to write before plain text, so that it is not taken for another format."""
    line = first_line.lstrip("\ufeff")  # which a reader takes for the file's byte order mark
    patterns = (_OBJECT, _ARRAY, _MARKUP)
    encoded = line.encode()
    is_like_another = encoded.strip() in OPENING or any(p.match(encoded) for p in patterns)
    is_like_another = is_like_another or _DOC.match(line)
    return _NO_BREAK_SPACE if is_like_another else ""


def byte_lines(file: IO[bytes], most: int, start: int = 0) -> Iterator[bytes]:
    """Yields the lines of a stream from byte `start` on, with their ends; of a line of more than
    `most` bytes, the first `most` + 1, since a file without line ends would fill the memory."""
    if start:
        file.seek(start)
    line, following = file.readline(most + 1), file.readline(most + 1)
    # If the whole file is one line, carriage returns end lines. Some programs end an old
    # Macintosh's file with a line feed.
    if not start and not following:
        yield from line.splitlines(keepends=True)
        return
    while line:
        yield line
        line, following = following, file.readline(most + 1)


def lines(file: IO[bytes], path: str, start: int = 0, end: int | None = None) -> Iterator[str]:
    """Yields the lines of a stream of UTF-8 from byte `start` to `end`, without byte order
    marks."""
    offset = start
    for number, line in enumerate(byte_lines(file, _MOST_LINE_BYTES, start), 1):
        if end is not None and offset >= end:
            return
        if len(line) > _MOST_LINE_BYTES:
            raise ValueError(
                f"{path}: the line that begins at byte {offset} is longer than {_MOST_LINE_BYTES} "
                "bytes. Break it into lines, or leave the file out."
            )
        if b"\0" in line:
            # A part of a file counts its own lines; the message is about the whole file.
            number += _lines_before(file, start)
            raise ValueError(
                f"{path}:{number}: is not text: byte {offset + line.index(0)} is NUL. If the file "
                "is packed, unpack it first; if it is UTF-16, convert it to UTF-8."
            )
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: byte {offset + error.start} is not UTF-8 ({error.reason}). "
                "Convert the file to UTF-8 (for instance: iconv -f cp1252 -t utf-8)."
            ) from None
        offset += len(line)
        text = f"{text[:-1]}\n" if text.endswith("\r") else text
        yield text.removeprefix("\ufeff")  # joined files have several


def _lines_before(file, end):
    """Returns how many lines of a stream end before a byte."""
    if not end:
        return 0
    file.seek(0)
    lines = 0
    while end and (block := file.read(min(end, _BLOCK))):
        lines += block.count(b"\n")
        end -= len(block)
    return lines


def json_texts(file: IO[bytes], path: str, text_field: str) -> Iterator[str]:
    """Yields the texts of JSON lines or of an array, without NULs; a text of null is empty."""
    for number, value in json_files.values(lines(file, path), path, _MOST_LINE_BYTES):
        place = f"{path}:{number}"
        if isinstance(value, str):
            yield value.replace(_NUL, "")
            continue
        json_files.check(value, dict, place)
        if text_field not in value:
            keys = ", ".join(sorted(value)[:20])
            raise ValueError(
                f"{place}: has no key {text_field!r} (it has {keys or 'none'}). Give the key of "
                "the text as text_field."
            )
        yield json_files.field(value, text_field, str, place, default="").replace(_NUL, "")


def wikiextractor_texts(file: IO[bytes], path: str) -> Iterator[str]:
    """Yields the texts of WikiExtractor's `<doc id=... title=...>` documents without titles."""
    begin, title, text = 0, None, []
    for number, line in enumerate(lines(file, path), 1):
        stripped = line.strip()
        if not begin:
            beginning = _DOC.match(stripped)
            if beginning:
                title = _TITLE.search(beginning[1])
                begin, title, text = number, title and html.unescape(title[1]), []
            elif stripped:
                raise ValueError(
                    f"{path}:{number}: is outside of <doc ...> and </doc>, unlike WikiExtractor's "
                    "output. Extract the file again."
                )
        elif stripped == "</doc>":
            yield "".join(text)
            begin = 0
        # The title is the first line of a document, and is not a sentence.
        elif text or stripped != title:
            text.append(line)
    if begin:
        raise ValueError(
            f"{path}: ends within the document that begins in line {begin}. Extract the file again."
        )


def parquet_texts(file: IO[bytes], path: str, text_field: str) -> Iterator[str]:
    """Yields the texts of a column of strings, without NULs; a text of null is empty."""

    def checked(schema):
        if text_field not in schema.names:
            raise ValueError(
                f"{path}: has no column {text_field!r} (it has {', '.join(schema.names)}). Give "
                "the column of the text as text_field."
            )
        kind = str(schema.field(text_field).type)
        if kind not in ("string", "large_string"):
            raise ValueError(f"{path}: the column {text_field!r} holds {kind}, not strings.")
        return [text_field]

    for batch in _parquet_batches(file, path, checked):
        for value in batch.column(0):
            yield (value.as_py() or "").replace(_NUL, "")


def parquet_rows(file: IO[bytes], path: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a parquet file as dicts, with the names of labels if `datasets` wrote
    it."""
    for batch in _parquet_batches(file, path):
        names = _names_of_labels(batch.schema.metadata or {}, path)
        for row in batch.to_pylist():
            for column in names.keys() & row.keys():
                row[column] = _named(row[column], names[column])
            yield row


def _names_of_labels(metadata, path):
    """Returns column -> names of its numbers, by the metadata that `datasets` writes."""
    described = json_files.parse(metadata.get(b"huggingface", b"{}"), f"{path}: metadata")
    features = _dict(_dict(described.get("info")).get("features"))
    names = {column: _dict(_one(feature)).get("names") for column, feature in features.items()}
    return {column: of_column for column, of_column in names.items() if isinstance(of_column, list)}


def _one(feature):
    """Returns the feature of a value, also if the column has lists of values."""
    if isinstance(feature, list):
        return feature[0] if feature else None
    return _one(feature["feature"]) if "feature" in _dict(feature) else feature


def _dict(value):
    return value if isinstance(value, dict) else {}


def _named(value, names):
    if isinstance(value, list):
        return [_named(number, names) for number in value]
    # `True` is an int, too; -1 is how datasets write that a label is unknown.
    is_label = type(value) is int and 0 <= value < len(names)
    return names[value] if is_label else value


def _parquet_batches(file, path, columns_of=lambda schema: None):
    """Yields the batches of rows of a stream of parquet; a function of the schema returns the
    columns to read, None for all."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise text_files.missing_module("pyarrow", f"{path}: a parquet file", error) from None
    row = 0
    try:
        table = pyarrow.parquet.ParquetFile(file)
        columns = columns_of(table.schema_arrow)
        # Few rows are read at a time, since a row may be a book.
        for batch in table.iter_batches(_PARQUET_ROWS, columns=columns, use_threads=False):
            yield batch
            row += batch.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path}: is not complete parquet, from row {row} on ({str(error).rstrip('.')}). "
            "Get the file again."
        ) from None
