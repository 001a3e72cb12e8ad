import bz2
import gzip
import io
import lzma
import sys
import tarfile

import pytest
from text_documents import read_documents

from bert_estimator.system.ticker import Progress
from input_pipelines.text import text_files
from input_pipelines.text.documents import (
    find_files,
    is_plain,
    split_files,
    total_bytes,
)

TEXT = b"".join(b"Sentence %d.\nAnother one.\n\n" % i for i in range(3000))
DOCUMENTS = [[f"Sentence {i}.", "Another one."] for i in range(3000)]


def zst(content):
    zstandard = pytest.importorskip("zstandard")
    # Two frames, as pzstd writes them.
    packer = zstandard.ZstdCompressor(write_checksum=True)
    return packer.compress(content[:500]) + packer.compress(content[500:])


PACKERS = {
    "": bytes,
    ".gz": lambda content: gzip.compress(content[:500]) + gzip.compress(content[500:]),
    ".bz2": lambda content: bz2.compress(content[:500]) + bz2.compress(content[500:]),
    ".xz": lambda content: lzma.compress(content[:500]) + bytes(8) + lzma.compress(content[500:]),
    ".zst": zst,
}


@pytest.mark.parametrize("ending", PACKERS)
def test_packed_text_is_text(tmp_path, ending):
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(PACKERS[ending](TEXT))
    progress = Progress("Reading", 1, "B", io.StringIO())
    assert list(read_documents([str(path)], progress)) == DOCUMENTS
    assert progress._done == total_bytes([str(path)])
    assert is_plain(str(path)) == (ending == "")


def test_endings_may_be_capitals(tmp_path):
    path = tmp_path / "A.JSONL.GZ"
    path.write_bytes(gzip.compress(b'{"text": "One. Two."}\n'))
    assert list(read_documents([str(path)])) == [["One.", "Two."]]


@pytest.mark.parametrize("ending", [".tar.gz", ".tgz", ".tar", ".zip", ".TAR.BZ2", ".txz", ".7z"])
def test_archives_are_not_text(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    with tarfile.open(path, "w:gz" if "g" in ending else "w") as archive:
        header = tarfile.TarInfo("b.txt")
        header.size = 5
        archive.addfile(header, io.BytesIO(b"One.\n"))
    message = rf"a{ending}: is an archive of files, which is not text\. Unpack it first"
    with pytest.raises(ValueError, match=message):
        list(read_documents(find_files([str(tmp_path)])))
    for part in split_files([str(path)]) if ".tar." in ending.lower() else ():
        with pytest.raises(ValueError, match=message):
            list(part.documents())
    other = tmp_path / "b"  # the name does not tell
    content = bytearray(path.read_bytes())
    if "g" in ending:
        content[4:8] = bytes(4)  # gzip's time, a byte of which may end a line
    other.write_bytes(content)
    with pytest.raises(ValueError, match=r"b:1: is not text: byte \d+ is NUL"):
        list(read_documents([str(other)]))


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "changed", "foreign"])
def test_damage_is_an_error_with_file_and_place(tmp_path, ending, damage):
    content = bytearray(PACKERS[ending](TEXT))
    size = len(content)
    if damage == "cut":
        del content[size * 2 // 3 :]
    elif damage == "changed":
        content[size // 2] ^= 0xFF
    else:
        content = b"this is text\n" * 9
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(content)
    message = r"a\.txt\.\w+: is damaged or cut short, at byte \d+ or"
    if damage == "changed":  # what was packed last may be read before its checksum
        message += r"|a\.txt\.\w+: byte \d+ is not UTF-8|a\.txt\.\w+:\d+: is not text"
    with pytest.raises(ValueError, match=message):
        list(read_documents([str(path)]))


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("damage", ["header", "garbage", "zeros"])
def test_what_follows_a_stream_is_not_dropped(tmp_path, ending, damage):
    path = tmp_path / f"a.txt{ending}"
    second = {
        "header": b"X" + PACKERS[ending](TEXT)[1:],
        "garbage": b"this is text\n",
        "zeros": bytes(7),
    }[damage]
    path.write_bytes(PACKERS[ending](TEXT) + second)
    if (ending, damage) == (".gz", "zeros"):  # padding of gzip has any length
        assert list(read_documents([str(path)])) == DOCUMENTS
        return
    with pytest.raises(ValueError, match=r"a\.txt\.\w+: is damaged or cut short, at byte \d+ or"):
        list(read_documents([str(path)]))


def test_zeros_after_the_streams_of_xz_are_padding(tmp_path):
    path = tmp_path / "a.txt.xz"
    path.write_bytes(PACKERS[".xz"](TEXT) + bytes(1 << 20))
    assert list(read_documents([str(path)])) == DOCUMENTS


@pytest.mark.parametrize("ending", [".bz2", ".xz"])
def test_an_empty_file_is_not_packed(tmp_path, ending):
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="it ends within a stream"):
        list(read_documents([str(path)]))


def test_a_bad_byte_is_counted_in_the_unpacked_file(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"One.\n\nTw\xf6.\n"))
    with pytest.raises(ValueError, match=r"a\.txt\.gz: byte 8 is not UTF-8"):
        list(read_documents([str(path)]))


@pytest.mark.parametrize(
    ("module", "name", "content", "what"),
    [
        ("zstandard", "a.zst", b"x", "a .zst file"),
        ("pyarrow", "a.parquet", b"PAR1", "a parquet file"),
    ],
)
def test_a_module_that_is_not_installed(tmp_path, monkeypatch, module, name, content, what):
    monkeypatch.setitem(sys.modules, module, None)
    path = tmp_path / name
    path.write_bytes(content)
    message = rf"{name}: {what} needs the module {module}: pip install 'bert-estimator\[corpora\]'"
    with pytest.raises(ValueError, match=message):
        list(read_documents([str(path)]))


def test_a_module_that_does_not_work(tmp_path, monkeypatch):
    """pyarrow needs a newer NumPy than TensorFlow 2.16 allows, and its import says so."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pyarrow.py").write_text("raise ImportError('pyarrow requires NumPy')")
    monkeypatch.syspath_prepend(tmp_path / "broken")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    message = "a parquet file needs the module pyarrow, which cannot be imported: pyarrow requires"
    with pytest.raises(ValueError, match=message):
        list(read_documents([str(tmp_path / "a.parquet")]))


# Remote file systems: fsspec has a file system in memory


@pytest.fixture
def bucket():
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for name, content in {
        "corpus/b.txt": TEXT,
        "corpus/a/c.txt.gz": gzip.compress(TEXT),
        "corpus/w.jsonl": b'{"text": "One. Two."}\n',
        "corpus/.git/a.txt": TEXT,
        "corpus/train.tfrecord": TEXT,
    }.items():
        system.pipe(f"/{name}", content)
    yield
    system.rm("/corpus", recursive=True)


def test_remote_files(bucket):
    files = ["memory:///corpus/a/c.txt.gz", "memory:///corpus/b.txt", "memory:///corpus/w.jsonl"]
    assert find_files(["memory://corpus"]) == files
    assert find_files(["memory://corpus/*.txt", "memory://corpus"]) == [
        files[1],
        files[0],
        files[2],
    ]
    assert list(read_documents(files)) == [*DOCUMENTS, *DOCUMENTS, ["One.", "Two."]]
    assert total_bytes(files) == len(gzip.compress(TEXT)) + len(TEXT) + 22
    assert not is_plain(files[1])
    with pytest.raises(ValueError, match=r"memory://none: cannot be read: it is not there"):
        list(read_documents(["memory://none"]))
    with pytest.raises(ValueError, match="no file matches 'memory://none"):
        find_files(["memory://none*"])


def test_a_protocol_that_nobody_knows():
    pytest.importorskip("fsspec")
    with pytest.raises(ValueError, match=r"foo://x/y: cannot be read: .*bert-estimator\[corpora"):
        find_files(["foo://x/y"])


def test_an_error_of_a_known_file_system(monkeypatch):
    fsspec = pytest.importorskip("fsspec")

    def fail(path):
        raise ValueError("the bucket's region is unknown")

    monkeypatch.setattr(fsspec.core, "url_to_fs", fail)
    with pytest.raises(ValueError, match="the bucket's region is unknown"):
        find_files(["memory://x/y"])


def test_without_fsspec_it_is_tensorflow(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files.reading, "_system", lambda path: None)
    path = tmp_path / "d" / "a.txt"
    (path.parent / ".git").mkdir(parents=True)
    path.write_bytes(TEXT)
    for hidden in (".a.txt", ".git/a.txt", "train.tfrecord", "a.txt.tmp"):
        (path.parent / hidden).write_bytes(TEXT)
    assert find_files([f"file://{path.parent}"]) == [f"file://{path}"]
    assert find_files([f"file://{path.parent}/*.txt"]) == [f"file://{path}"]
    assert total_bytes([f"file://{path}"]) == len(TEXT)
    assert list(read_documents([f"file://{path}"])) == DOCUMENTS
    with pytest.raises(ValueError, match=r"s9://x/y: cannot be read: .*bert-estimator\[corpora"):
        list(read_documents(["s9://x/y"]))
