import json
import os

import pytest
from commands import MAINS

from input_pipelines.text.documents import TextOptions, find_files, read_documents


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    return str(path)


def test_documents_end_at_empty_lines_and_files(tmp_path):
    a = write(tmp_path, "a.txt", b"\n\nOne.\n Two. \r\n\n \nThree.")
    b = write(tmp_path, "b.txt", "Caf\u00e9.\n".encode())
    assert list(read_documents([a, b])) == [["One.", "Two."], ["Three."], ["Caf\u00e9."]]


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = write(tmp_path, "a.txt", b"\xef\xbb\xbfOne.\n")
    assert list(read_documents([path])) == [["One."]]


@pytest.mark.parametrize(
    ("content", "offset"),
    [(b"One.\n\nTw\xf6.\n", 8), (b"\xffOne.\n", 0), (b"\xef\xbb\xbfOn\xe9.\n", 5)],
)
def test_other_encodings_are_refused(tmp_path, content, offset):
    path = write(tmp_path, "a.txt", content)
    with pytest.raises(ValueError, match=rf"a\.txt: byte {offset} is not UTF-8 .*Convert"):
        list(read_documents([path]))


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"missing\.txt: cannot be read: No such file"):
        list(read_documents([str(tmp_path / "missing.txt")]))


def test_find_files(tmp_path):
    b, a = write(tmp_path, "b.txt", b""), write(tmp_path, "a.txt", b"")
    (tmp_path / "c.txt").mkdir()
    pattern = str(tmp_path / "*.txt")
    assert find_files([pattern]) == [a, b]
    assert find_files([b, pattern]) == [b, a]
    for name in ("d/e/a.txt", "d/b.txt", "d/.hidden", "d/.git/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path, name, b"")
    below = [str(tmp_path / "d" / "b.txt"), str(tmp_path / "d" / "e" / "a.txt")]
    assert find_files([str(tmp_path / "d")]) == below
    assert find_files([b, str(tmp_path), str(tmp_path / "d")]) == [b, a, *below]
    with pytest.raises(ValueError, match=r"^no file matches '.*c\.txt'"):
        find_files([str(tmp_path / "c.txt")])
    with pytest.raises(ValueError, match=r"^no file matches '.*\*\.md'"):
        find_files([pattern, str(tmp_path / "*.md")])
    with pytest.raises(ValueError, match="no pattern is given"):
        find_files([])


WIKI = b'<doc id="1" title="A">\nA\n\n</doc>\n'
NULLS = b'{"body": null}\n{"body": " "}\n'


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"a.txt": b"\n \n"}, r"^\S*a\.txt: every line is empty\. Give text with one sentence a"),
        ({"a.jsonl": NULLS}, r"^\S*a\.jsonl: does not hold text under the key 'body'\. Give"),
        ({"a.jsonl": NULLS, "b.txt": b""}, r"^\S*a\.jsonl, \S*b\.txt: do not hold text\. Give"),
        ({"wiki_00": WIKI}, r"^\S*wiki_00: does not hold text\. Give files with text\."),
        (
            {f"{i}.txt": b"" for i in range(5)},
            r"^\S*0\.txt, \S*1\.txt, \S*2\.txt and 2 more files: every line is empty",
        ),
    ],
)
def test_files_without_text_are_refused(tmp_path, contents, message):
    files = [write(tmp_path, name, content) for name, content in contents.items()]
    with pytest.raises(ValueError, match=message):
        list(read_documents(files, options=TextOptions("body")))


def test_a_file_counts_once_however_it_is_spelled(tmp_path, monkeypatch):
    write(tmp_path, "a.txt", b"One.\n")
    (tmp_path / "d").mkdir()
    os.symlink(tmp_path / "a.txt", tmp_path / "d" / "b.txt")
    monkeypatch.chdir(tmp_path)
    assert find_files(["a.txt", "./a.txt", str(tmp_path / "*.txt"), "d/../a.txt", "d"]) == ["a.txt"]


def test_links_to_directories_are_followed_once(tmp_path):
    for name in ("corpus/z/a.txt", "elsewhere/b.txt", "elsewhere/.git/c.txt", "far/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path, name, b"One.\n")
    corpus = tmp_path / "corpus"
    for link, target in (
        ("corpus/link", "../elsewhere"),
        ("corpus/again", "../elsewhere"),
        ("corpus/to_z", "z"),  # which is reached without the link
        ("corpus/.hidden", "../far"),
        ("corpus/z/up", ".."),
        ("elsewhere/circle", "../corpus"),
    ):
        (tmp_path / link).symlink_to(target)
    found = [str(corpus / "again" / "b.txt"), str(corpus / "z" / "a.txt")]
    assert find_files([str(corpus)]) == found
    (corpus / "z" / "far").symlink_to("../../far")
    assert find_files([str(corpus)]) == [*found, str(corpus / "z" / "far" / "d.txt")]


def test_the_vocabulary_is_not_text(tmp_path):
    text = write(tmp_path, "a.txt", b"One.\n")
    vocab_file = write(tmp_path, "words.txt", b"a\n")
    link = str(tmp_path / "link.txt")
    os.symlink(vocab_file, link)
    assert find_files([str(tmp_path)], vocab_file) == [text]
    assert find_files([str(tmp_path / "*.txt")], link) == [text]
    for named in (vocab_file, link):
        with pytest.raises(ValueError, match=f"^{named} is the vocabulary, which is not text to"):
            find_files([text, named], vocab_file)
    with pytest.raises(ValueError, match="no file matches"):
        find_files([str(tmp_path / "words*")], vocab_file)


def test_what_this_project_writes_is_not_text(tmp_path):
    """A second creation from the same folder would read what the first one wrote."""
    text = write(tmp_path, "a.txt", b"One.\n")
    held_out = write(tmp_path, "heldout.txt", b"A text that a user calls so.\n")
    ours = [
        write(tmp_path, name, b"x")
        for name in (
            f"vocab.{'0a' * 32}.txt",
            f"vocab.{'0a' * 32}.model",
            f"vocab.{'0a' * 32}.txt.tmp",
            "manifest.train.tfrecord.json",
            "token_counts.train.tfrecord.npy",
            "train.tfrecord",
            "train.tfrecord-00000-of-00001",
            "heldout.train.tfrecord",
            "temporary.train.part",
            "a.txt.tmp",
        )
    ]
    for pattern in (str(tmp_path), str(tmp_path / "*")):
        assert find_files([pattern]) == [text, held_out]
    assert find_files([ours[0], str(tmp_path)]) == [ours[0], text, held_out]  # it is asked for
    with pytest.raises(ValueError, match="only records or what lies beside them"):
        find_files([str(tmp_path / "*train*")])


def test_records_are_the_same_when_they_are_made_again(tmp_path, vocab_file, capsys):
    for name in ("a.txt", "b.jsonl"):
        lines = [f"w{i} w{i + 1} w3\nw4 w{i} w5" for i in range(30)]
        if name == "b.jsonl":
            lines = [json.dumps({"text": line}) for line in lines]
        write(tmp_path, name, "\n\n".join(lines).encode())
    arguments = [
        "records",
        f"--input_file={tmp_path}/*.txt,{tmp_path}",
        f"--output_file={tmp_path}/train.tfrecord",
        f"--vocab_file={vocab_file}",
        "--max_seq_length=16",
        "--max_predictions_per_seq=4",
        "--eval_fraction=0.2",
    ]
    contents = []
    for _ in range(2):
        assert MAINS["records"](arguments) == 0
        contents.append({path.name: path.read_bytes() for path in tmp_path.iterdir()})
    assert contents[0] == contents[1] and len(contents[0]) == 9
