import pytest

from input_pipelines.documents import find_files, read_documents


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


def test_unreadable_files_and_empty_text_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"missing\.txt: cannot be read: No such file"):
        list(read_documents([str(tmp_path / "missing.txt")]))
    path = write(tmp_path, "a.txt", b"\n \n\n")
    with pytest.raises(ValueError, match=r"a\.txt: every line is empty"):
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
