import collections
import itertools
import json
import os

import pytest
from commands import MAINS
from text_documents import read_documents

from bert_estimator.storage import reading
from input_pipelines.text import documents
from input_pipelines.text.documents import TextOptions, find_files, split_files


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    return str(path)


def test_documents_end_at_empty_lines_and_files(tmp_path):
    a = write(tmp_path, "a.txt", b"\n\nOne.\n Two. \r\n\n \nThree.")
    b = write(tmp_path, "b.txt", "Caf\u00e9.\n".encode())
    assert list(read_documents([a, b])) == [["One.", "Two."], ["Three."], ["Caf\u00e9."]]


@pytest.mark.parametrize(
    ("content", "offset"),
    [(b"One.\n\nTw\xf6.\n", 8), (b"\xffOne.\n", 0), (b"\xef\xbb\xbfOn\xe9.\n", 5)],
)
def test_other_encodings_are_refused(tmp_path, content, offset):
    path = write(tmp_path, "a.txt", content)
    with pytest.raises(ValueError, match=rf"a\.txt: byte {offset} is not UTF-8 .*Convert"):
        list(read_documents([path]))


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
        list(read_documents(files, options=TextOptions(text_field="body")))


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
            "manifest.train.tfrecord.json",
            "train.tfrecord",
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
    assert contents[0] == contents[1] and len(contents[0]) == 11


TEXTS = {
    "plain": "a b\nc\n\nd\n\n\n  \ne\nf\n",
    "empty lines around": "\n \n\na\n\nb\n\n\n",
    "no empty line": "a\nb\nc\nd",
    "only empty lines": "\n\n \n",
    "empty": "",
    "byte order mark": "\ufeffa\n\nb\n",
    "byte order marks within": "\ufeffa\n\n\ufeffb\n\ufeff\nc\n",
    "carriage returns": "a\r\n\r\nb\r\nc\r\n\r\nd",
    "an old Macintosh's": "a\r\rb\rc\r\rd",
    "an old Macintosh's with a line feed": "a\r\rb\rc\r\rd\n",
    "long lines": f"{'x' * 50}\n\n{'y' * 70}\n{'z' * 3}\n\n\u00e9{'w' * 9}",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_parts_have_the_documents_of_the_file(tmp_path, text):
    path = str(tmp_path / "text.txt")
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text + "\n\nend\n")
    with open(str(tmp_path / "other.txt"), "w", encoding="utf-8", newline="") as file:
        file.write(text)
    files = [path, str(tmp_path / "other.txt")]
    expected = list(read_documents(files))
    assert "\ufeff" not in "".join(itertools.chain.from_iterable(expected))
    size = os.path.getsize(path)
    for part_bytes in range(1, size + 2):
        parts = split_files(files, part_bytes=part_bytes)
        assert [document for part in parts for document in part.documents()] == expected
        of_first = [part for part in parts if part.path == path]
        assert [part.start for part in of_first] == [0, *(part.end for part in of_first[:-1])]
        assert of_first[-1].end == size
        assert all(part.size >= part_bytes for part in of_first[:-1])


def test_digests_tell_parts_and_versions_apart(tmp_path):
    path = str(tmp_path / "text.txt")

    def digests(text, part_bytes):
        with open(path, "w") as file:
            file.write(text)
        os.utime(path, ns=(0, len(text)))
        return [part.digest for part in split_files([path], part_bytes=part_bytes)]

    first = digests("a\n\nb\n\nc\n", 1)
    assert len(first) == len(set(first)) == 3
    assert digests("a\n\nb\n\nc\n", 1) == first
    assert not set(digests("a\n\nb\n\nc\n\n", 1)) & set(first)
    assert digests("a\n\nb\n\nc\n", 4)[1:] == first[2:]  # the same bytes


def test_an_error_counts_bytes_of_the_file(tmp_path):
    path = str(tmp_path / "text.txt")
    with open(path, "wb") as file:
        file.write(b"one\n\ntwo\n\nthr\xffe\n")
    parts = split_files([path], part_bytes=1)
    assert list(parts[0].documents()) == [["one"]]
    with pytest.raises(ValueError, match=r"text\.txt: byte 13 is not UTF-8"):
        list(parts[2].documents())
    with pytest.raises(ValueError, match=r"none\.txt: cannot be read: No such file"):
        split_files([str(tmp_path / "none.txt")])


def long_texts(name):
    """Six documents of 8 sentences, whose sentences tell their document."""
    texts = ["".join(f"W{i} w{j}.\n" for j in range(8)) for i in range(6)]
    if name.endswith(".jsonl"):
        return "\n".join(json.dumps({"text": text}) for text in texts)
    return "\n".join(texts)


@pytest.mark.parametrize("split", ["auto", "yes"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("most", [3, 4, 5, 9])
def test_a_document_that_is_cut_is_on_one_side(tmp_path, monkeypatch, split, name, most):
    """What is evaluated on must not be trained on, in whichever pieces it is read."""
    monkeypatch.setattr(documents, "MOST_SENTENCES", most)
    path = str(tmp_path / name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(long_texts(name))
    options = TextOptions(split_sentences=split, min_words=2 * most)
    on_sides = []
    for are_held_out in (True, False):
        (part,) = split_files([path], options, (0.5, are_held_out))
        chosen = options.new_filter()
        pieces = list(part.documents(chosen))
        assert all(len(piece) <= most for piece in pieces)
        # The last piece of a document is shorter, and belongs to it.
        assert chosen.left_out["short"] == (6 if most > 8 else 0)
        on_sides.append([sentence.split()[0] for piece in pieces for sentence in piece])
    assert not set(on_sides[0]) & set(on_sides[1])
    counts = collections.Counter(on_sides[0] + on_sides[1])
    assert counts == ({} if most > 8 else {f"W{i}": 8 for i in range(6)})
    if most <= 8:
        assert on_sides[0] and on_sides[1]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_document_that_is_cut_is_left_out_as_a_whole(tmp_path, monkeypatch, name):
    monkeypatch.setattr(documents, "MOST_SENTENCES", 3)
    texts = ["12.\n3 + 4.\n5.\nWords here.\nMore words.", "Only words.\nHere.\nToo.\n6 7 8 9."]
    content = "\n\n".join(texts)
    if name.endswith(".jsonl"):
        content = "\n".join(json.dumps({"text": text}) for text in texts)
    (tmp_path / name).write_text(content)
    options = TextOptions(min_letters=0.5, split_sentences="no")
    chosen = options.new_filter()
    found = list(read_documents([str(tmp_path / name)], options=options, chosen=chosen))
    assert found == [["Only words.", "Here.", "Too."], ["6 7 8 9."]]
    assert chosen.left_out == {"of too few letters": 1}


def test_pieces_after_empty_lines_begin_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MOST_SENTENCES", 2)
    path = str(tmp_path / "a.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n\n\na\nb\n\nc\n\n\n\n\nd\ne\nf\n\ng\n")
    for split in ("no", "yes"):
        pieces = list(documents.pieces_of_file(path, options=TextOptions(split_sentences=split)))
        assert pieces == [
            (["a", "b"], True),
            (["c"], True),
            (["d", "e"], True),
            (["f"], False),
            (["g"], True),
        ]
    options = TextOptions(split_sentences="yes", document_per_file=True)
    pieces = list(documents.pieces_of_file(path, options=options))
    assert [piece.is_first for piece in pieces] == [True, *[False] * (len(pieces) - 1)]
    assert "".join(sentence for piece in pieces for sentence in piece.sentences) == "abcdefg"


@pytest.mark.parametrize("kind", ["fsspec", "tensorflow"])
def test_a_remote_file_of_the_same_size_is_another_version(tmp_path, monkeypatch, kind):
    """A resumed creation would take the tokens of the file as it was before."""
    path = tmp_path / "text.txt"
    if kind == "fsspec":
        fsspec = pytest.importorskip("fsspec")
        system = fsspec.filesystem("memory")
        url = "memory://versions/text.txt"
    else:
        monkeypatch.setattr(reading, "_system", lambda path: None)
        url = f"file://{path}"

    def digests(text, time):
        if kind == "fsspec":
            system.pipe(url, text.encode())
        else:
            path.write_text(text)
            os.utime(path, ns=(time, time))
        (first,), (again,) = split_files([url]), split_files([url])
        assert first.digest == again.digest and first.size == len(text)
        assert list(first.documents()) == [[text.strip()]]
        return first.digest

    assert digests("one two\n", 10**18) != digests("one six\n", 10**18 + 10**9)
