import bz2
import gzip
import json

import pytest
from text_documents import read_documents

from input_pipelines.text import documents, text_formats
from input_pipelines.text.documents import TextOptions, is_plain, pieces_of_file

ROWS = [
    {"id": 1, "text": "First one. Second one.\nA new paragraph."},
    {"id": 2, "text": " \n"},
    {"id": 3, "text": None},
    {"id": 4, "text": "Another, with \u00e9."},
]
EXPECTED = [["First one.", "Second one.", "A new paragraph."], ["Another, with \u00e9."]]
LINES = [["First one. Second one.", "A new paragraph."], ["Another, with \u00e9."]]
WIKI = """
<doc id="12" url="https://x/?curid=12" title="A &amp; B">
A & B

First one. Second one.
A new paragraph.

</doc>
<doc id="13" url="https://x/?curid=13" title="Empty">
Empty

</doc>
<doc id="14" url="https://x/?curid=14" title="C">
C

Another, with \u00e9.

</doc>
"""


def json_lines(rows=ROWS):
    return "\n".join(map(json.dumps, rows)) + "\n\n"


def parquet(rows=ROWS):
    pytest.importorskip("pyarrow", exc_type=ImportError)
    import pyarrow
    from pyarrow import parquet

    sink = pyarrow.BufferOutputStream()
    table = pyarrow.table({name: [row[name] for row in rows] for name in rows[0]})
    parquet.write_table(table, sink, row_group_size=2)
    return sink.getvalue().to_pybytes()


FILES = {
    "a.jsonl": json_lines,
    "a.json": json_lines,
    "b.json": lambda: json.dumps(ROWS),
    "c.json": lambda: json.dumps(ROWS, indent=2),
    "d.ndjson": lambda: json.dumps([row["text"] or "" for row in ROWS]),
    "e.json": lambda: json_lines([row["text"] or "" for row in ROWS]),
    "f.jsonl": lambda: json_lines().replace("\n", "\r"),
    "wiki_03": lambda: json_lines().rstrip().replace("\n", "\r"),
    "wiki_04": lambda: WIKI.replace("\n", "\r"),
    "wiki_00": json_lines,  # WikiExtractor --json
    "wiki_01": lambda: WIKI,
    "wiki_02": lambda: "\ufeff" + WIKI,
    "a.parquet": parquet,
}


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize("name", FILES)
def test_formats(tmp_path, name):
    path = write(tmp_path, name, FILES[name]())
    assert list(read_documents([path])) == EXPECTED
    options = TextOptions(split_sentences="no")
    assert list(read_documents([path], options=options)) == LINES
    assert not is_plain(path)


def test_another_field(tmp_path):
    rows = [{"body": "One. Two."}]
    for name, content in (("a.jsonl", json_lines(rows)), ("b", json_lines(rows))):
        path = write(tmp_path, name, content)
        assert list(read_documents([path], options=TextOptions(text_field="body"))) == [
            ["One.", "Two."]
        ]
    # A wrong key is an error without the name of a format, too.
    with pytest.raises(ValueError, match=r"b:1: has no key 'text' \(it has body\)"):
        list(read_documents([path]))


@pytest.mark.parametrize(("name", "content_of"), [("a.jsonl", json_lines), ("a.parquet", parquet)])
def test_nul_in_a_text_is_left_out(tmp_path, name, content_of):
    """Plain text cannot hold it: what `create_text` wrote of it could not be read."""
    path = write(tmp_path, name, content_of([{"text": "One\0 two.\0 Three."}, {"text": "\0"}]))
    assert list(read_documents([path])) == [["One two.", "Three."]]


@pytest.mark.parametrize("before", ["", "\ufeff", "\n\n  "])
def test_a_first_line_that_is_long_is_told_by_its_beginning(tmp_path, monkeypatch, before):
    monkeypatch.setattr(documents, "_LOOKED_AT", 1 << 10)
    for key, size in (("text", 1 << 12), ("text", (1 << 10) - 12), ("body", 1 << 12)):
        rows = [{key: "x" * size}, {key: "y"}]
        path = write(tmp_path, "wiki_00", before + json_lines(rows))
        if key == "text":
            assert list(read_documents([path])) == [["x" * size], ["y"]]
        else:
            with pytest.raises(ValueError, match=r"wiki_00:\d: has no key 'text' \(it has body\)"):
                list(read_documents([path]))


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"quoted" words}', '{"quoted', "{x}", '["a"]', "{" * 2000, '"text": "a"']
)
def test_a_line_that_is_not_an_object_is_plain_text(tmp_path, text):
    path = write(tmp_path, "a", f"{text}\nOne.\n")
    assert list(read_documents([path])) == [[text, "One."]] and is_plain(path)


DUMP = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="de">'
MARKUP = {
    "MediaWiki": f"{DUMP}\n  <siteinfo>\n",
    "MediaWiki, no attributes": "<mediawiki>\n  <page>\n",
    "MediaWiki, attributes on lines": '<mediawiki\n  xml:lang="de">\n',
    "MediaWiki in one line": "<mediawiki><page><title>A</title></page></mediawiki>",
    "XML": f'<?xml version="1.0" encoding="utf-8"?>\n{DUMP}\n',
    "XML in one line": f"<?xml version='1.0'?>{DUMP}<page></page></mediawiki>",
    "HTML": "<!DOCTYPE html>\n<html>\n<p>One.</p>",
    "HTML 4": '<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 4.01//EN">\n',
    "HTML, no type": '<HTML lang="en"><head><title>A</title></head>',
    "a comment": "<!-- made by hand -->\n<html>",
    "an element in a line": '<p class="a">One.</p>\n<p>Two.</p>\n',
    "a feed": '<rss version="2.0">',
    "TEI": '<TEI xmlns="http://www.tei-c.org/ns/1.0">\n<teiHeader>',
    "SGML": '<DOC id="1" type="story" >\n<TEXT>\nOne.\n',
    "TREC": "<DOC>\n<DOCNO> 1 </DOCNO>\n",
    "RTF": "{\\rtf1\\ansi One.\\par}\n",
    "PDF": "%PDF-1.4\n1 0 obj\n",
    "PostScript": "%!PS-Adobe-3.0\n",
    "LaTeX": "\\documentclass[12pt]{article}\n",
}


@pytest.mark.parametrize("before", ["", "\ufeff", "\n\n  "], ids=ascii)
@pytest.mark.parametrize("name", MARKUP)
def test_markup_is_refused(tmp_path, name, before):
    """Records of it would be trained on with its tags."""
    content = (before + MARKUP[name]).encode()
    for packed, file_name in (
        (content, "dump"),
        (content, "dump.txt"),
        (gzip.compress(content, mtime=0), "dump.xml.gz"),
        (bz2.compress(content), "dump.xml.bz2"),
    ):
        path = write(tmp_path, file_name, packed)
        for options in (TextOptions(), TextOptions(document_per_file=True)):
            with pytest.raises(ValueError, match=r"dump.*: begins with '.*markup.*WikiExtractor"):
                list(read_documents([path], options=options))
    # As plain text it is read, if the user says so; `create_text` does.
    first = MARKUP[name].splitlines()[0]
    assert text_formats.before_plain(first) == "\u00a0"
    assert is_plain(write(tmp_path, "a", f"\u00a0{first}\n"))


@pytest.mark.parametrize(
    "text",
    ["<user> One <url>", "<3 is a heart.", "a < b > c", "<a> and </b>", "%d percent", "<-- here"],
)
def test_a_sign_does_not_make_markup(tmp_path, text):
    assert text_formats.before_plain(text) == ""
    assert list(read_documents([write(tmp_path, "a", f"{text}\nOne.\n")])) == [[text, "One."]]


@pytest.mark.parametrize(
    "content",
    [
        json.dumps([{"text": "One."}]),
        json.dumps([{"text": "One."}], indent=2),
        "[\n" + json.dumps({"text": "One."}) + "\n]\n",
        "[{\n" + '"text": "One."}]',
    ],
)
def test_an_array_of_objects_is_recognized_without_the_name_of_a_format(tmp_path, content):
    path = write(tmp_path, "a", content)
    assert list(read_documents([path])) == [["One."]]
    assert text_formats.before_plain(content.splitlines()[0]) == "\u00a0"


def test_an_object_that_is_broken_into_lines_is_not_plain_text(tmp_path):
    path = write(tmp_path, "a", json.dumps({"text": "One."}, indent=2))
    with pytest.raises(ValueError, match="a:1: is not JSON"):
        list(read_documents([path]))
    assert text_formats.before_plain("{") == "\u00a0"


@pytest.mark.parametrize("text", [WIKI.strip(), json_lines()])
def test_a_no_break_space_before_the_first_line_makes_it_plain_text(tmp_path, text):
    path = write(tmp_path, "wiki_00", f"\n\u00a0{text}")
    assert is_plain(path)
    assert next(read_documents([path]))[0] == text.splitlines()[0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", json_lines([{"body": ""}]), r"a\.jsonl:1: has no key 'text' \(it has body\)"),
        ("a.jsonl", json_lines() + "[1]", r"a\.jsonl:6: must be an object, not \[1\]"),
        ("a.jsonl", '{"text": "x"}\n{"text": ', r"a\.jsonl:2: is not JSON"),
        ("a.jsonl", '{"text": 3}', r"a\.jsonl:1: text: must be a string, not 3"),
        ("a.jsonl", b'{"text": "\xff"}', r"a\.jsonl: byte 10 is not UTF-8"),
        ("a.jsonl", b'{"text": "\0"}', r"a\.jsonl:1: is not text: byte 10 is NUL"),
        ("a.txt", b"One.\n\nT\0wo.\n\xff\n", r"a\.txt:3: is not text: byte 7 is NUL\. If the "),
        ("a", b"PK\3\4\n\0\0\0\x08", r"a:2: is not text: byte 5 is NUL.*, unpack it first; if"),
        ("a.txt", gzip.compress(b"One.\n", mtime=0), r"a\.txt:1: is not text: byte 3 is NUL"),
        ("a.txt", bz2.compress(b"One.\n"), r"a\.txt:1: is not text: byte 14 is NUL"),
        ("a.txt", "One.\n".encode("utf-16-le"), r"a\.txt:1: is not text: .* convert it to UTF-8"),
        ("wiki_01", WIKI[:-15], r"wiki_01: ends within the document that begins in line 13"),
        ("wiki_01", WIKI + "more", r"wiki_01:19: is outside of <doc \.\.\.> and </doc>"),
        ("a.parquet", b"PAR1 and so on", r"a\.parquet: is not complete parquet, from row 0 on"),
    ],
)
def test_damaged_files(tmp_path, name, content, message):
    if name == "a.parquet":
        pytest.importorskip("pyarrow", exc_type=ImportError)
    with pytest.raises(ValueError, match=message):
        list(read_documents([write(tmp_path, name, content)]))


def test_columns_of_parquet(tmp_path):
    path = write(tmp_path, "a.parquet", parquet())
    with pytest.raises(ValueError, match=r"a\.parquet: has no column 'body' \(it has id, text\)"):
        list(read_documents([path], options=TextOptions(text_field="body")))
    with pytest.raises(ValueError, match=r"a\.parquet: the column 'id' holds int64, not strings"):
        list(read_documents([path], options=TextOptions(text_field="id")))


LONG = "A new paragraph that is longer than forty characters,"
PLAIN = f"First one. Second one.\n{LONG}\nno?\n\nAnd.\n"
SPLIT = ["First one.", "Second one.", f"{LONG} no?"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (TextOptions(), [["First one. Second one.", LONG, "no?"], ["And."]]),
        (TextOptions(split_sentences="yes"), [SPLIT, ["And."]]),
        (TextOptions(split_sentences="yes", document_per_file=True), [[*SPLIT, "And."]]),
    ],
)
def test_plain_text(tmp_path, options, expected):
    path = write(tmp_path, "a.txt", PLAIN)
    assert list(read_documents([path], options=options)) == expected
    assert is_plain(path, options) != options.document_per_file


def test_an_error_in_a_part_counts_lines_of_the_file(tmp_path):
    path = write(tmp_path, "a.txt", "One.\nTwo.\n\nThree.\n\0Four.")
    with pytest.raises(ValueError, match=r"a\.txt:5: is not text: byte 18 is NUL"):
        list(pieces_of_file(path, 11, 24))


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
@pytest.mark.parametrize("is_ended", [True, False])
def test_line_ends_of_plain_text(tmp_path, end, is_ended):
    text = f"\ufeffOne.{end}Two.{end}{end}Three.{end}\ufeffFour.{end * is_ended}"
    path = write(tmp_path, "a.txt", text)
    assert list(read_documents([path])) == [["One.", "Two."], ["Three.", "Four."]]
