"""Rows of tables, with the traps of real files."""

import pytest

from input_pipelines.tasks.table_files import TableError, cell, read_columns, read_rows


def rows(tmp_path, name, data, **options):
    path = tmp_path / name
    path.write_bytes(data)
    return list(read_rows(str(path), **options))


def test_tabs_separate_and_quotation_marks_are_text(tmp_path):
    data = b'sentence\tlabel\n"Quoted\t1\nit said ""so""\t0\n'
    assert rows(tmp_path, "a.tsv", data) == [
        (2, {"sentence": '"Quoted', "label": "1"}),
        (3, {"sentence": 'it said ""so""', "label": "0"}),
    ]


def test_byte_order_mark_windows_line_ends_and_empty_lines(tmp_path):
    data = b"\xef\xbb\xbfsentence\tlabel\r\n\r\ntext\t1\r\n   \r\nlast\t0"
    assert rows(tmp_path, "a.tsv", data) == [
        (3, {"sentence": "text", "label": "1"}),
        (5, {"sentence": "last", "label": "0"}),
    ]


def test_joined_files_have_byte_order_marks_within(tmp_path):
    data = "\ufefftext,label\na,1\n\ufeffb\ufeff,0\n".encode()
    found = [(2, {"text": "a", "label": "1"}), (3, {"text": "b\ufeff", "label": "0"})]
    assert rows(tmp_path, "a.csv", data) == found
    assert rows(tmp_path, "a.tsv", data.replace(b",", b"\t")) == found
    assert rows(tmp_path, "a.jsonl", '{"a": 1}\n\ufeff{"a": 2}'.encode()) == [
        (1, {"a": 1}),
        (2, {"a": 2}),
    ]


@pytest.mark.parametrize("unseen", ["\u200b", "\u200e", "\u00ad", "\ufe0f", "\u00a0"], ids=ascii)
def test_names_of_columns_do_not_have_what_nobody_can_see(tmp_path, unseen):
    data = f"text{unseen},{unseen}label\na,1\n".encode()
    for name, content in (("a.csv", data), ("a.tsv", data.replace(b",", b"\t"))):
        assert rows(tmp_path, name, content) == [(2, {"text": "a", "label": "1"})]
        assert read_columns(str(tmp_path / name)) == ["text", "label"]
    with pytest.raises(TableError, match=r"a\.csv:3: is the header again"):
        rows(tmp_path, "a.csv", data + b"text,label\n")


@pytest.mark.parametrize("again", ["text,label", "\ufefftext,label", " text , label "])
def test_the_header_again_is_not_a_row(tmp_path, again):
    data = f"text,label\na,1\n{again}\nb,0\n".encode()
    for name, content in (("a.csv", data), ("a.tsv", data.replace(b",", b"\t"))):
        with pytest.raises(TableError, match=f"{name}:3: is the header again, as in files that"):
            rows(tmp_path, name, content)
    assert len(rows(tmp_path, "a.tsv", b"text\ntext\n")) == 1  # a text may be any word
    assert len(rows(tmp_path, "a.tsv", b"a\tb\na\tb\n", has_header=False)) == 2


def test_a_row_of_empty_cells_is_a_row(tmp_path):
    data = b"id\ttext\n1\ta\n\t\n\n2\tb\n"
    found = [(2, {"id": "1", "text": "a"}), (3, {"id": "", "text": ""})]
    assert rows(tmp_path, "a.tsv", data) == [*found, (5, {"id": "2", "text": "b"})]
    assert rows(tmp_path, "a.csv", data.replace(b"\t", b",")) == rows(tmp_path, "a.tsv", data)


def test_in_one_column_a_line_without_text_is_a_row_unless_it_is_at_the_end(tmp_path):
    data = b"\n text\nthe cat\n\n  \nlast\n\n\n"
    found = [row["text"] for _, row in rows(tmp_path, "a.tsv", data)]
    assert found == ["the cat", "", "", "last"]
    found = rows(tmp_path, "a.tsv", data, has_header=False)
    assert found == [(2, {0: " text"}), (3, {0: "the cat"}), *[(n, {0: ""}) for n in (4, 5)],
                     (6, {0: "last"})]  # fmt: skip


def test_an_empty_line_of_one_column_is_a_row_of_csv_too(tmp_path):
    data = b'\ntext\n"the, cat"\n\n\n"two\nlines"\n""\n\n\n'
    expected = [(3, "the, cat"), (4, ""), (5, ""), (7, "two\nlines"), (8, "")]
    assert rows(tmp_path, "a.csv", data) == [(line, {"text": text}) for line, text in expected]
    assert rows(tmp_path, "b.csv", b"a,b\n\n1,2\n") == [(3, {"a": "1", "b": "2"})]


def test_columns_of_a_file(tmp_path):
    for name, data in (
        ("a.tsv", b"\n b \ta\n1\n"),
        ("a.csv", b"b,a\n1,2,3\n"),
        ("a.jsonl", b'{"b": 1}\n{"a": 1, "b": 2}\n'),
    ):
        (tmp_path / name).write_bytes(data)
        assert read_columns(str(tmp_path / name)) == ["b", "a"]
    (tmp_path / "a.tsv").write_bytes(b"a\tb\n")
    with pytest.raises(TableError, match=r"a\.tsv: has 0 rows"):
        read_columns(str(tmp_path / "a.tsv"))


@pytest.mark.parametrize("encoding", ["utf-16", "latin1"])
def test_other_encodings_are_named(tmp_path, encoding):
    with pytest.raises(TableError, match=rf"a\.tsv:1: is not UTF-8 .*\(iconv -f {encoding} -t"):
        rows(tmp_path, "a.tsv", "größe\tlabel\n".encode(encoding))


def test_only_a_line_feed_ends_a_line(tmp_path):
    data = "a\tb\nx\u2028y\x85z\x0b\t1\n".encode()
    assert rows(tmp_path, "a.tsv", data) == [(2, {"a": "x\u2028y\x85z\x0b", "b": "1"})]


def test_without_header_cells_are_numbered(tmp_path):
    data = b"gj04\t1\t\tA sentence.\n"
    expected = [(1, {0: "gj04", 1: "1", 2: "", 3: "A sentence."})]
    assert rows(tmp_path, "a.tsv", data, has_header=False) == expected


def test_short_and_long_rows(tmp_path):
    found = rows(tmp_path, "a.txt", b"a\tb\n1\n1\t2\t3\n")
    assert found == [(2, {"a": "1"}), (3, {"a": "1", "b": "2", 2: "3"})]


def test_csv(tmp_path):
    data = b'text,label\r\n"one, ""two""\nthree",1\r\n\r\nplain,0\r\n'
    assert rows(tmp_path, "a.csv", data) == [
        (3, {"text": 'one, "two"\nthree', "label": "1"}),
        (5, {"text": "plain", "label": "0"}),
    ]
    assert rows(tmp_path, "b.csv", b"text\n" + b"x" * 200_000)[0][1]["text"] == "x" * 200_000


def test_jsonl(tmp_path):
    data = b'{"text": "a\\nb", "label": ["x", "y"]}\n\n{"text": "c", "score": 1.5}\n'
    assert rows(tmp_path, "a.jsonl", data) == [
        (1, {"text": "a\nb", "label": ["x", "y"]}),
        (3, {"text": "c", "score": 1.5}),
    ]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.xml", b"", "a.xml: the format is unknown; the name must end in .tsv, .csv, .jsonl"),
        ("a.tsv", b"a\tb\nx\xff\t1\n", "a.tsv:2: is not UTF-8 at byte 2 of the line"),
        ("a.tsv", b"a\tb\ta\n", "a.tsv:1: the header names 'a' twice"),
        ("a.csv", b'a,b\n"x"y,1\n', "a.csv:2: is not CSV"),
        ("a.csv", b"a,b\rx,1\ry,2\r", "a.csv:1: is not CSV: a cell without quotes has a carriage"),
        ("a.jsonl", b'{"a": 1}\n{"a": \n', "a.jsonl:2: is not JSON"),
        ("a.jsonl", b"[1]\n", "a.jsonl:1: is not a JSON object"),
    ],
)
def test_what_is_no_table_is_named(tmp_path, name, data, message):
    with pytest.raises(TableError) as caught:
        rows(tmp_path, name, data)
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


def test_a_missing_file(tmp_path):
    with pytest.raises(TableError, match=r"no\.tsv: cannot be read: No such file"):
        list(read_rows(str(tmp_path / "no.tsv")))


def test_a_missing_cell_is_named():
    assert cell("f", 3, {"a": "1"}, "a") == "1"
    with pytest.raises(TableError, match=r"f:3: has no column 'b'; it has a\. Is the row trunc"):
        cell("f", 3, {"a": "1"}, "b")
    with pytest.raises(TableError, match="f:3: has 1 columns, but column 4 is needed"):
        cell("f", 3, {0: "1"}, 3)
