import os

import pytest

from input_pipelines.documents import read_documents
from input_pipelines.text_parts import split_files

TEXTS = {
    "plain": "a b\nc\n\nd\n\n\n  \ne\nf\n",
    "empty lines around": "\n \n\na\n\nb\n\n\n",
    "no empty line": "a\nb\nc\nd",
    "only empty lines": "\n\n \n",
    "empty": "",
    "byte order mark": "\ufeffa\n\nb\n",
    "carriage returns": "a\r\n\r\nb\r\nc\r\n\r\nd",
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
