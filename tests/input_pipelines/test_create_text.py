import gzip
import json

import pytest
from commands import MAINS
from text_documents import read_documents

from input_pipelines.text import documents as documents_module

LONG = "It is a long sentence about many things of this world. It is followed by a second one."


def create(folder, *others):
    return MAINS["text"](
        ["text", f"--input_file={folder}/dumps", f"--output_file={folder}/out.txt", *others]
    )


@pytest.fixture
def dumps(tmp_path):
    (tmp_path / "dumps" / "AA").mkdir(parents=True)
    rows = [{"body": text} for text in (LONG, "Short one. Two.", "1 + 2 = 3; 4 * 5 = 20", LONG)]
    lines = "\n".join(map(json.dumps, rows))
    (tmp_path / "dumps" / "AA" / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    near = LONG.replace("world.", "world. ").replace(" one.", " one, and that is all of it.")
    (tmp_path / "dumps" / "b.txt").write_text(f"{LONG.upper()}\n\n{near}\n")
    return tmp_path


SHORT, SUM = ["Short one.", "Two."], ["1 + 2 = 3; 4 * 5 = 20"]
SPLIT = [LONG[:54], LONG[55:]]


@pytest.mark.parametrize(
    ("flags", "expected", "left_out"),
    [
        ([], [SPLIT, SHORT, SUM], "Left out: 2 duplicates."),
        (["--min_words=4"], [SPLIT, SUM], "Left out: 2 duplicates, 1 short."),
        (["--min_letters=0.5"], [SPLIT, SHORT], "Left out: 2 duplicates, 1 of too few"),
        (["--deduplicate=no"], [SPLIT, SHORT, SUM, SPLIT], "Left out: 0 duplicates"),
    ],
)
def test_create(dumps, capsys, flags, expected, left_out):
    assert create(dumps, "--text_field=body", *flags) == 0
    printed = capsys.readouterr().out
    documents = list(read_documents([str(dumps / "out.txt")]))
    assert documents[: len(expected)] == expected
    assert f"{len(documents)} documents (" in printed and left_out in printed
    # What is written is what a second run writes of it.
    assert MAINS["text"](
        ["text", f"--input_file={dumps}/out.txt", f"--output_file={dumps}/again.txt",
         "--deduplicate=no"]
    ) == 0  # fmt: skip
    assert (dumps / "again.txt").read_bytes() == (dumps / "out.txt").read_bytes()


def test_near_duplicates(dumps, capsys):
    many = " ".join(f"{LONG} And this is sentence {i} of it." for i in range(30))
    (dumps / "dumps" / "c.txt").write_text(f"{many}\n\n{many} The end.\n")
    for kind, number in (("exact", 2), ("near", 1)):
        assert create(dumps, "--text_field=body", f"--deduplicate={kind}") == 0
        documents = list(read_documents([str(dumps / "out.txt")]))
        assert sum("sentence 29" in document[0] for document in documents) == number


@pytest.mark.parametrize("duplicates", ["no", "exact"])
def test_what_a_killed_command_left_is_not_text(dumps, duplicates):
    """It would be read while it is written: without an end, or as a text's duplicate."""
    for name in ("out.txt", "dumps/out.txt"):
        files = [dumps / name, dumps / f"{name}.tmp"]
        files[1].write_text(f"{LONG}\n\nWhat a killed command wrote.\n")
        flags = ["--text_field=body", f"--deduplicate={duplicates}", f"--output_file={files[0]}"]
        assert create(dumps, *flags) == 0
        assert "killed" not in files[0].read_text()
        assert len(list(read_documents([str(files[0])]))) == {"no": 6, "exact": 4}[duplicates]
        assert not files[1].exists()
        files[0].unlink()


@pytest.mark.parametrize("name", ["vocab.txt", "vocab.txt.tmp"])
def test_an_output_among_the_input_is_refused(dumps, capsys, name):
    path = dumps / "dumps" / name
    path.write_text("Text of a user.\n")
    inputs = f"{dumps}/dumps/*.txt,{path}"
    output = f"{dumps}/dumps/vocab.txt"
    for main, flag in (("text", "output_file"), ("vocabulary", "vocab_file")):
        assert MAINS[main]([main, f"--input_file={inputs}", f"--{flag}={output}"]) == 2
        assert f"--{flag}={output}: would replace {path}, which" in capsys.readouterr().err
        assert path.read_text() == "Text of a user.\n"


@pytest.mark.parametrize(
    "first",
    [
        '{"a": 1}',
        '{ "text": "w1 w2" }',
        '<doc id="12" url="https://x" title="A">',
        '\ufeff{"a": 1}',
        "\ufeff<doc x>",
        pytest.param('{"a": ' + "w1 " * 400_000, id="a long line"),
    ],
)
def test_text_that_looks_like_another_format_is_read_as_text(tmp_path, vocab_file, first):
    """The next command would refuse it, or read other text out of it."""
    (tmp_path / "dumps").mkdir()
    texts = [f"{first}\nw1 w2 w3 w4\nw5 w6 w7", "w8 w9\nw10 w11"]
    rows = "\n".join(json.dumps({"text": text}) for text in texts)
    (tmp_path / "dumps" / "a.jsonl").write_text(rows)
    assert create(tmp_path, "--split_sentences=no") == 0
    expected = [[line.strip() for line in text.split("\n")] for text in texts]
    assert list(read_documents([str(tmp_path / "out.txt")])) == expected
    again = [f"--input_file={tmp_path}/out.txt", f"--output_file={tmp_path}/again.txt"]
    assert MAINS["text"](["text", *again]) == 0
    assert (tmp_path / "again.txt").read_bytes() == (tmp_path / "out.txt").read_bytes()
    if len(first) < 100:
        made = [f"--output_file={tmp_path}/a.tfrecord", f"--vocab_file={vocab_file}"]
        made += ["--max_seq_length=16", "--max_predictions_per_seq=4"]
        assert MAINS["records"](["records", again[0], *made]) == 0
        manifest = json.loads((tmp_path / "manifest.a.tfrecord.json").read_text())
        assert (manifest["corpus"]["documents"], manifest["corpus"]["sentences"]) == (2, 5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.jsonl", "a file of this name is read as jsonl, but plain text is written; end it in"),
        ("out.JSON", "a file of this name is read as jsonl, but plain"),
        ("out.parquet", "a file of this name is read as parquet, but"),
        ("out.txt.gz", "is written without packing; end it in .txt"),
        ("out.zip", "is written without packing; end it in .txt"),
    ],
)
def test_a_name_of_another_format_is_refused(dumps, capsys, name, message):
    assert create(dumps, "--text_field=body", f"--output_file={dumps}/{name}") == 2
    assert f"--output_file={dumps}/{name}: {message}" in capsys.readouterr().err
    assert not (dumps / name).exists()


@pytest.mark.parametrize("duplicates", ["no", "exact", "near"])
def test_a_document_that_is_read_in_pieces_stays_one(tmp_path, monkeypatch, capsys, duplicates):
    monkeypatch.setattr(documents_module, "MOST_SENTENCES", 3)
    lines = [f"w{i} w{i + 1} w{i + 2} w{i + 3}" for i in range(30)]
    whole = lines[:7]
    repeating = lines[10:13] * 2 + lines[:3]  # its pieces repeat its own, and another document's
    beginning = lines[:3] + lines[20:24]  # it begins as another document does
    texts = [whole, repeating, whole, beginning, lines[28:]]
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "a.txt").write_text("\n\n".join(map("\n".join, texts)))
    flags = [f"--deduplicate={duplicates}", "--min_words=8"]
    assert create(tmp_path, *flags) == 0
    # The whole document is left out; of the document that begins like it, what is new is kept.
    expected = [whole, repeating, beginning[3:], lines[28:]] if duplicates != "no" else texts
    found = (tmp_path / "out.txt").read_text()
    assert found == "\n\n".join(map("\n".join, expected)) + "\n"
    number = 0 if duplicates == "no" else 2
    assert f"Left out: {number} duplicates, 0 short." in capsys.readouterr().out
