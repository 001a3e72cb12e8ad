"""The one reader of JSON: bounded in size and depth, UTF-8, with errors that name the file.

What is read may come from strangers, or may be damaged. Whatever the bytes are, the functions here
return a value of the kind that was asked for, or raise `JsonError`. Nothing else of the project
calls Python's `json.load` or `json.loads` (a test).
"""

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from bert_estimator.system import disk_files

MOST_BYTES = 1 << 27
MOST_DEPTH = 64  # objects and lists within each other

_MISSING: Any = object()
# A string, which may lack its end, or a bracket.
_STRUCTURE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]]', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# What errors show of a value.
_MOST_SHOWN = 60

_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    object: "a value",
}


class JsonError(ValueError):
    """A file or text is not the JSON that it should be; the message names the file."""


def read(path: str, kind: type = dict, most_bytes: int = MOST_BYTES) -> Any:
    """Returns the value, of a `kind` of `_KINDS`, in a JSON file of this machine, or raises a
    `JsonError` that names the file (`storage.remote.read_json` takes URLs, too)."""
    with disk_files.reading(path) as reader:
        return parse(disk_files.read_at_most(reader, most_bytes), path, kind, most_bytes)


def parse(data: bytes | str, source: str, kind: type = dict, most_bytes: int = MOST_BYTES) -> Any:
    """Returns the value, of a `kind` of `_KINDS`, that JSON text stands for, or raises a
    `JsonError` whose message begins with `source`: a file, or a file and a line."""
    if len(data) > most_bytes:
        raise JsonError(f"{source}: is longer than {most_bytes} bytes, the most that is read")
    if isinstance(data, bytes):
        try:
            # A byte order mark may begin the text.
            data = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise JsonError(
                f"{source}: is not JSON: byte {error.start} is not UTF-8 ({error.reason})"
            ) from None
    _check_depth(data, source)
    try:
        value = json.loads(data, object_pairs_hook=_object)
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()  # a lone half of a pair has no UTF-8
    except UnicodeEncodeError:
        raise JsonError(f"{source}: is not JSON: a \\u escape is half of a character") from None
    except ValueError as error:  # also for a number of too many digits
        raise JsonError(f"{source}: is not JSON: {error}") from None
    return check(value, kind, source)


def values(
    lines: Iterable[str], source: str, most_bytes: int = MOST_BYTES
) -> Iterator[tuple[int, Any]]:
    """Yields (line number, value) of JSON lines, some of which may be empty, or of the items of an
    array; memory holds a line, or the array, as a whole: at most `most_bytes`."""
    is_first = True
    numbered = enumerate(lines, 1)
    for number, line in numbered:
        # A first value that begins with [ is the array, which may be on several lines.
        if is_first and line.lstrip().startswith("["):
            others = (line for _, line in numbered)
            yield from _items_with_lines(line, others, number, source, most_bytes)
        elif line.strip():
            is_first = False
            yield number, parse(line, f"{source}:{number}", object, most_bytes)


def _items_with_lines(first, others, line, source, most_bytes):
    """Yields the items of an array that begins in the text of a line, `first`, for `values`."""
    parts, size = [], 0
    for part in itertools.chain([first], others):
        parts.append(part.rstrip("\n"))
        size += len(part)
        if size > most_bytes:
            break  # which `parse` refuses
    text = "\n".join(parts)
    array = parse(text, source, list, most_bytes)
    depth = place = number = 0
    for match in _STRUCTURE.finditer(text):
        if match[0] in ("]", "}"):
            depth -= 1
            continue
        if depth == 1 and number < len(array):  # numbers, true and null are not matched
            line += text.count("\n", place, match.start())
            place = match.start()
            yield line, array[number]
            number += 1
        depth += match[0] in ("[", "{")
    for value in array[number:]:
        yield line, value


def check(value: Any, kind: type, what: str) -> Any:
    """Returns a value of JSON if it is of a `kind` of `_KINDS`; else raises a `JsonError` that
    begins with `what`, the value's place, such as "config.json: labels"."""
    # A whole number counts as a float, as long as the float is exact.
    if kind is float and type(value) is int and abs(value) <= 1 << 53:
        return float(value)
    is_right = kind is object or type(value) is kind
    if not is_right or (kind is float and not math.isfinite(value)):
        raise JsonError(f"{what}: must be {_KINDS[kind]}, not {shown(value)}")
    return value


def field(values: dict, key: str, kind: type, source: str, default: Any = _MISSING) -> Any:
    """Returns the value of a key of an object, checked; if it is missing or null, returns
    `default`, or raises a `JsonError` without one."""
    value = values.get(key)
    if value is None and default is not _MISSING:
        return default
    if key not in values:
        raise JsonError(f"{source}: the key {key!r} is missing; it must be {_KINDS[kind]}")
    return check(value, kind, f"{source}: {key}")


def items(values: list, kind: type, what: str) -> list:
    """Returns a list whose items are all of a kind; raises JsonError as `check` does."""
    return [check(value, kind, f"{what}[{number}]") for number, value in enumerate(values)]


def shown(value: Any) -> str:
    """Returns a value as JSON, cut to what fits into a message."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _object(pairs):
    """Returns an object; raises ValueError if a key occurs twice, since a value would be lost."""
    values = dict(pairs)
    if len(values) < len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {shown(key)} occurs twice in an object")
            seen.add(key)
    return values


def _check_depth(text, source):
    """Raises JsonError for text that is nested too deeply for Python's parser, which recurs."""
    if text.count("{") + text.count("[") <= MOST_DEPTH:
        return
    depth = 0
    for match in _STRUCTURE.finditer(text):
        sign = match[0]
        if sign in ("{", "["):
            depth += 1
            if depth > MOST_DEPTH:
                raise JsonError(
                    f"{source}: is not JSON of at most {MOST_DEPTH} levels: it is nested deeper"
                )
        elif sign in ("}", "]"):
            depth -= 1
