"""The reader of JSON: whatever the bytes, a value of the kind asked for, or an error."""

import json

import pytest

from bert_estimator.storage import remote
from bert_estimator.system import json_files
from bert_estimator.system.json_files import JsonError, check, field, parse, read, shown, values


@pytest.mark.parametrize(
    "value",
    [{}, {"a": [1, 2.5, None, True, "é\n"]}, {"a": {"b": {"c": [[[[]]]]}}}, {"[{": '"[[[['}],
)
def test_what_is_json_is_read(tmp_path, value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=3)):
        (tmp_path / "a.json").write_bytes(text.encode("utf-8"))
        assert read(str(tmp_path / "a.json")) == value
        (tmp_path / "a.json").write_bytes(text.encode("utf-8-sig"))
        assert remote.read_json(f"file://{tmp_path}/a.json") == value
        assert parse(text, "text") == value


def test_signs_in_strings_do_not_nest():
    for text in ("[" * 1000, '"[{' * 500, "\\" * 99, '\\"[' * 200, "]}" * 999):
        assert parse(json.dumps({"a": [text, [text]]}), "text") == {"a": [text, [text]]}
    assert parse(json.dumps({"a": [[]] * 1000}), "text") == {"a": [[]] * 1000}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not JSON: Expecting value: line 1 column 1"),
        (b"{", "is not JSON: Expecting property name"),
        (b'{"a": 1', "is not JSON: Expecting ',' delimiter"),
        (b'{"a": "b', "is not JSON: Unterminated string"),
        (b'{"a": "b\n"}', "is not JSON: Invalid control character"),
        (b"{} {}", "is not JSON: Extra data"),
        (b"\0" * 99, "is not JSON: Expecting value"),
        (b"\x80\x02}q\0.", "is not JSON: byte 0 is not UTF-8"),
        ("{}".encode("utf-16"), "is not JSON: byte 0 is not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "is not JSON: byte 7 is not UTF-8"),
        (rb'{"a": "\ud800"}', "is not JSON: a \\u escape is half of a character"),
        (
            b'[{"b": {"a": 1, "c": 2, "a": 1}}]',
            'is not JSON: the key "a" occurs twice in an object',
        ),
        (b'{"a": ' + b"1" * 5000 + b"}", "is not JSON: Exceeds the limit"),
        (b"[" * 100_000, "is not JSON of at most 64 levels: it is nested deeper"),
        (b'{"a":' * 100_000, "is not JSON of at most 64 levels: it is nested deeper"),
        (b"[" * 65 + b"]" * 65, "is not JSON of at most 64 levels: it is nested deeper"),
        (b"[]", "must be an object, not []"),
        (b"3", "must be an object, not 3"),
        (b"null", "must be an object, not null"),
        (b'"' + b"a" * 999 + b'"', 'must be an object, not "' + "a" * 59 + "..."),
    ],
)
def test_what_is_not_is_named(tmp_path, data, message):
    path = tmp_path / "a.json"
    path.write_bytes(data)
    with pytest.raises(JsonError) as caught:
        read(str(path))
    assert str(caught.value).startswith(f"{path}: {message}")


def test_the_deepest_and_the_largest(tmp_path):
    deepest = "[" * json_files.MOST_DEPTH + "]" * json_files.MOST_DEPTH
    assert parse(deepest, "text", list)
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert read(str(path), most_bytes=8) == {"a": 1}
    with pytest.raises(JsonError, match="is longer than 7 bytes, the most that is read"):
        read(str(path), most_bytes=7)


@pytest.mark.parametrize(
    ("value", "kind", "is_right"),
    [
        (1, int, True),
        (True, int, False),
        (1.0, int, False),
        (1, bool, False),
        (1, float, True),
        (True, float, False),
        (10**400, float, False),
        (float("inf"), float, False),
        (float("nan"), float, False),
        ("1", float, False),
        (None, object, True),
        (None, str, False),
        ({}, list, False),
        ([], dict, False),
    ],
)
def test_kinds(value, kind, is_right):
    if is_right:
        assert check(value, kind, "x") == value
    else:
        with pytest.raises(JsonError, match=r"^x: must be "):
            check(value, kind, "x")


def test_fields():
    values = {"a": 1, "b": None}
    assert field(values, "a", int, "f") == 1
    assert type(field(values, "a", float, "f")) is float
    assert field(values, "b", int, "f", default=7) == field(values, "c", int, "f", default=7) == 7
    with pytest.raises(JsonError, match=r"^f: a: must be a string, not 1$"):
        field(values, "a", str, "f")
    with pytest.raises(JsonError, match=r"^f: b: must be a whole number, not null$"):
        field(values, "b", int, "f")
    with pytest.raises(JsonError, match=r"^f: the key 'c' is missing; it must be a list$"):
        field(values, "c", list, "f")
    with pytest.raises(JsonError, match=r"^f: l\[1\]: must be a string, not 2$"):
        json_files.items(["a", 2], str, "f: l")
    assert len(shown(["long"] * 99)) < 70


ROWS = [{"a": [1, "[{"]}, {"b": {"c": []}}, "text, [", {"a": 'x"\\'}]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("\n".join(map(json.dumps, ROWS)), [1, 2, 3, 4]),
        ("\n\n" + "\n \n".join(map(json.dumps, ROWS)) + "\n\n", [3, 5, 7, 9]),
        (json.dumps(ROWS), [1, 1, 1, 1]),
        ("\n [\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n", [3, 4, 5, 6]),
        (json.dumps(ROWS, indent=1), [2, 8, 13, 14]),
    ],
)
def test_lines_and_arrays_have_the_same_values(text, lines):
    for parts in (text.split("\n"), text.splitlines(keepends=True)):
        assert list(values(parts, "source")) == list(zip(lines, ROWS, strict=True))


def test_values_that_are_not_objects_keep_their_order():
    assert [value for _, value in values(["[1, {}, null,", "true, []]"], "a")] == [
        1, {}, None, True, [],
    ]  # fmt: skip
    assert list(values(["[]"], "a")) == list(values([], "a")) == list(values(["", " "], "a")) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}\n\n{", "a:3: is not JSON: Expecting property name"),
        ("[{},\n{}", "a: is not JSON: Expecting ',' delimiter: line 2 column 3"),
        ("[{},]", "a: is not JSON: "),
        ("[{}]\n[{}]", "a: is not JSON: Extra data: line 2"),
        ("[" * 70, "a: is not JSON of at most 64 levels"),
        ('["12345",\n"12345"]', "a: is longer than 15 bytes"),
        ('{"a": "1234567890"}', "a:1: is longer than 15 bytes"),
    ],
)
def test_values_that_are_not_json(text, message):
    with pytest.raises(JsonError) as caught:
        list(values(text.split("\n"), "a", most_bytes=15 if "1234" in text else 100))
    assert str(caught.value).startswith(message)
