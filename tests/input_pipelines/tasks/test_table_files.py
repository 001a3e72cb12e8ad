"""Rows of tables, with the traps of real files."""

import json

import pytest

from input_pipelines.tasks import task_table
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


@pytest.mark.parametrize(("encoding", "likely"), [("utf-16", "utf-16"), ("latin1", "cp1252")])
def test_other_encodings_are_named(tmp_path, encoding, likely):
    message = rf"a\.tsv:1: is not UTF-8 .*\(--encoding={likely}\), or .*\(iconv -f {likely} -t"
    with pytest.raises(TableError, match=message):
        rows(tmp_path, "a.tsv", "größe\tlabel\n".encode(encoding))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["", "mark"])
def test_other_encodings_are_read(tmp_path, encoding, mark):
    mark = mark * encoding.startswith("utf")
    for name, separator in (("a.csv", ","), ("a.tsv", "\t"), ("a.txt", "\t")):
        data = f"{mark}größe{separator}label\r\n“quotes” €\u2009{separator}1\r\n"
        data = data.replace("\u2009", "" if encoding == "cp1252" else "\u2009").encode(encoding)
        ((line, row),) = rows(tmp_path, name, data, encoding=encoding)
        assert line == 2 and row["label"] == "1" and row["größe"].strip() == "“quotes” €"
        assert read_columns(str(tmp_path / name), encoding) == ["größe", "label"]
    data = f'{mark}{{"text": "“a”"}}'.encode(encoding)
    assert rows(tmp_path, "a.jsonl", data, encoding=encoding) == [(1, {"text": "“a”"})]


def test_what_is_not_of_the_encoding(tmp_path):
    with pytest.raises(TableError, match=r"a\.tsv: is not in the encoding ascii: .* position 2: "):
        rows(tmp_path, "a.tsv", "größe".encode(), encoding="ascii")


# As in spam.csv on Kaggle, which came out of a spreadsheet; and DataFrame.to_csv's index.
@pytest.mark.parametrize(
    ("data", "columns", "expected"),
    [
        (b"v1,v2,,,\nham,a,,,\nspam,b,c,,\n", ["v1", "v2"], [("ham", "a"), ("spam", "b")]),
        (b"v1,v2, ,\t\nham,a,,\n", ["v1", "v2"], [("ham", "a")]),
        (b",v1,v2\n0,ham,a\n1,spam,b\n", ["v1", "v2"], [("ham", "a"), ("spam", "b")]),
        (b",v1,,v2\n0,ham,x,a\n", ["v1", "v2"], [("ham", "a")]),
    ],
)
def test_columns_without_names_are_left_out(tmp_path, data, columns, expected):
    for name, content in (("a.csv", data), ("a.tsv", data.replace(b",", b"\t"))):
        if name == "a.tsv" and b"\t" in data:
            continue
        found = rows(tmp_path, name, content)
        assert [tuple(row.values()) for _, row in found] == expected
        assert [line for line, _ in found] == list(range(2, len(found) + 2))
        assert read_columns(str(tmp_path / name)) == columns
    with pytest.raises(TableError, match="the header names 'v1' twice"):
        rows(tmp_path, "a.csv", data.replace(b"v2", b"v1"))
    (_, row) = rows(tmp_path, "a.csv", data + b"ham,a,b,c,d,more\n")[-1]
    assert row[data.split(b"\n")[0].count(b",") + 1] in ("c", "d", "more")  # which is an error


@pytest.mark.parametrize(
    ("name", "header", "hint"),
    [
        ("a.csv", "text;label", "separated by commas, but here perhaps by semicolons"),
        ("a.csv", "text\tlabel", "separated by commas, but here perhaps by tabs"),
        ("a.csv", "text|label", "separated by commas, but here perhaps by bars"),
        ("a.tsv", "text,label", "separated by tabs, but here perhaps by commas"),
        ("a.txt", "text;label;a,b", "separated by tabs, but here perhaps by semicolons"),
        ("a.csv", "texts", ""),
        ("a.csv", "a;b,c", ""),
        ("a.tsv", "a,b\tc", ""),
    ],
)
def test_another_separator_gets_a_word(tmp_path, name, header, hint):
    path = tmp_path / name
    path.write_text(f"{header}\na{header[4:5]}b\n")
    with pytest.raises(TableError) as caught:
        task_table.own_task("classification", str(path), None, None)
    said = ". Cells of this format are "
    assert (f"{said}{hint}: rename or convert the file" if hint else "") in str(caught.value)
    assert (said in str(caught.value)) == bool(hint)
    with pytest.raises(TableError) as caught:
        (_, row) = rows(tmp_path, name, path.read_bytes(), has_header=False)[0]
        cell(str(path), 1, row, 7)
    assert hint in str(caught.value)


@pytest.mark.parametrize("line", ["sep=;", "sep=,", "SEP=;", "\ufeffsep=\t", "sep="])
def test_a_line_for_excel_is_not_a_header(tmp_path, line):
    for name in ("a.csv", "a.tsv"):
        with pytest.raises(TableError, match=r":1: is a line for Excel, not the header\."):
            rows(tmp_path, name, f"{line}\ntext;label\na;b\n".encode())


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
@pytest.mark.parametrize("is_ended", [True, False])
def test_line_ends(tmp_path, end, is_ended):
    last = end * is_ended
    expected = [(2, {"a": "x", "b": "1"}), (4, {"a": "y", "b": "2"})]
    assert rows(tmp_path, "a.csv", f"a,b{end}x,1{end}{end}y,2{last}".encode()) == expected
    assert rows(tmp_path, "a.tsv", f"a\tb{end}x\t1{end}{end}y\t2{last}".encode()) == expected
    text = f'{{"a": 1}}{end}{{"a": 2}}{last}'
    assert rows(tmp_path, "a.jsonl", text.encode()) == [(1, {"a": 1}), (2, {"a": 2})]


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


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.ndjson"])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_of_objects(tmp_path, name, indent):
    objects = [{"text": "a\nb", "label": 1}, {"text": "c", "label": 2}]
    found = rows(tmp_path, name, json.dumps(objects, indent=indent).encode())
    assert found == list(zip((2, 6) if indent else (1, 1), objects, strict=True))
    assert read_columns(str(tmp_path / name)) == ["text", "label"]
    lines = "\n".join(map(json.dumps, objects)).encode()
    assert rows(tmp_path, name, lines) == list(enumerate(objects, 1))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.xml", b"", "a.xml: the format is unknown; the name must end in .tsv, .csv, .jsonl"),
        ("a.csv", b"a,b\nx\ry,2\n", "a.csv:2: is not CSV: a cell without quotes has a carriage"),
        ("a.jsonl", b'{"a": 1}\n{"a": \n', "a.jsonl:2: is not JSON"),
        ("a.json", b'[{"a": 1},\n3]\n', "a.json:1: is not a JSON object"),
        ("a.json", b'[{"a": 1},\n"b"]\n', "a.json:2: is not a JSON object"),
        ("a.json", b'[{"a": 1},\n', "a.json: is not JSON: "),
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
