import gzip
import json

import pytest
from commands import MAINS

from input_pipelines.documents import read_documents

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


def test_what_cannot_work(dumps, capsys):
    assert create(dumps) == 2
    assert "a.jsonl.gz:1: has no key 'text' (it has body)" in capsys.readouterr().err
    assert create(dumps, "--text_field=body", "--min_words=1000") == 2
    assert "all documents are left out: 6 short. Change the flags." in capsys.readouterr().err
    assert create(dumps, f"--output_file={dumps}/dumps/b.txt") == 2
    assert "b.txt, which this command reads. Write to another directory" in capsys.readouterr().err
    assert sorted(path.name for path in dumps.iterdir()) == ["dumps"]


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
