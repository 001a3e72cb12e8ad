"""Remote files, by TensorFlow's file system in memory, ram://."""

import os
import pathlib

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import storage


@pytest.fixture
def waits(monkeypatch):
    """The seconds that are waited for another trial, which take no time here."""
    made = []
    monkeypatch.setattr(storage.time, "sleep", made.append)
    return made


@pytest.fixture
def url(tmp_path):
    return f"ram:/{tmp_path}/run"


def fail(monkeypatch, error, times, name="copy"):
    """Has a function of `tf.io.gfile` fail the first times."""
    function, calls = getattr(tf.io.gfile, name), []

    def failing(*args, **kwargs):
        calls.append(args)
        if len(calls) <= times:
            raise error(None, None, "no answer")
        return function(*args, **kwargs)

    monkeypatch.setattr(tf.io.gfile, name, failing)
    return calls


def test_files_are_copied_there_and_back(url, tmp_path):
    (tmp_path / "a").write_bytes(b"weights\n" * 999)
    assert storage.files(url) == {} and not storage.check(url)
    storage.upload(str(tmp_path / "a"), f"{url}/best/a")
    storage.write(b"{}", f"{url}/b.json")
    storage.write(b"[1]", f"{url}/b.json")
    assert {name: size for name, (size, _) in storage.files(url).items()} == {
        "best/a": 8 * 999,
        "b.json": 3,
    }
    assert storage.files(url) == storage.files(url + "/")
    storage.download(f"{url}/best/a", str(tmp_path / "new" / "copy"))
    assert (tmp_path / "new" / "copy").read_bytes() == b"weights\n" * 999
    assert storage.read(f"{url}/b.json") == b"[1]" and storage.read(f"{url}/c") is None
    for _ in range(2):
        storage.remove(f"{url}/best/a")
    assert list(storage.files(url)) == ["b.json"]
    assert storage.matches(f"{url}/*.json") == [f"{url}/b.json"]
    assert storage.matches(f"{url}/*.txt") == []


def test_a_write_that_was_cut_short_leaves_no_file(url, tmp_path, monkeypatch, waits):
    storage.write(b"old", f"{url}/a")
    fail(monkeypatch, tf.errors.UnavailableError, 99, "rename")
    with pytest.raises(storage.StorageError, match=r"a: ram:// does not answer .*\(no answer\)"):
        storage.write(b"new", f"{url}/a")
    assert storage.read(f"{url}/a") == b"old" and list(storage.files(url)) == ["a"]


def test_what_may_pass_is_tried_again_a_few_times(url, tmp_path, monkeypatch, waits, caplog):
    (tmp_path / "a").write_bytes(b"a")
    with monkeypatch.context() as patched:
        fail(patched, tf.errors.UnavailableError, 4)
        storage.upload(str(tmp_path / "a"), f"{url}/a")
    assert waits == [1, 2, 4, 8] and storage.read(f"{url}/a") == b"a"
    assert "Trying again in 1 s (1 of 5 failed)." in caplog.text
    with monkeypatch.context() as patched:
        calls = fail(patched, tf.errors.UnavailableError, 99)
        with pytest.raises(storage.StorageError, match="Look at the name, the network and the"):
            storage.upload(str(tmp_path / "a"), f"{url}/a")
    assert len(calls) == 5
    for error in (tf.errors.PermissionDeniedError, tf.errors.UnauthenticatedError):
        with monkeypatch.context() as patched:
            calls = fail(patched, error, 99)
            with pytest.raises(storage.StorageError, match=r"access is denied \(no answer\). Give"):
                storage.upload(str(tmp_path / "a"), f"{url}/a")
        assert len(calls) == 1


def test_a_copy_that_was_cut_short_is_not_taken(url, tmp_path, monkeypatch, waits):
    storage.write(b"abc", f"{url}/a")
    monkeypatch.setattr(tf.io.gfile, "copy", lambda _, path, overwrite: open(path, "wb").close())
    with pytest.raises(storage.StorageError, match="a: 0 bytes were read, but it has 3"):
        storage.download(f"{url}/a", str(tmp_path / "a"))


@pytest.mark.parametrize("name", ["exists", "listdir", "stat"])
def test_a_directory_that_does_not_answer_is_not_an_empty_one(url, monkeypatch, waits, name):
    storage.write(b"a", f"{url}/a")
    fail(monkeypatch, tf.errors.UnavailableError, 99, name)
    with pytest.raises(storage.StorageError, match="does not answer"):
        storage.files(url)


def test_names_are_those_of_the_directory_alone(url):
    assert storage.names(url) == []
    for name in ("a", "b.json", "best/c"):
        storage.write(b"a", f"{url}/{name}")
    assert sorted(storage.names(url)) == ["a", "b.json", "best"]


def test_a_file_that_vanishes_while_it_is_listed_is_left_out(url, monkeypatch):
    for name in "ab":
        storage.write(b"a", f"{url}/{name}")
    fail(monkeypatch, tf.errors.NotFoundError, 1, "stat")
    assert len(storage.files(url)) == 1


@pytest.mark.parametrize("name", ["..", "../", "."])
def test_a_name_that_leads_out_of_the_directory_is_refused(url, monkeypatch, name):
    """Objects may have any names, such as `run/../evil`."""
    storage.write(b"a", f"{url}/a")
    listdir = tf.io.gfile.listdir
    monkeypatch.setattr(tf.io.gfile, "listdir", lambda path: [*listdir(path), name])
    with pytest.raises(ValueError, match=r"run/\.+: is not a name that a file here may have"):
        storage.files(url)


def test_an_unknown_scheme_is_named_with_the_known_ones():
    with pytest.raises(storage.StorageError) as raised:
        storage.check("abc://bucket/run")
    assert str(raised.value) == (
        "abc://bucket/run: this TensorFlow does not know abc://, only gs://. Mount it as a "
        "directory, or use a path of this machine"
    )


def test_other_errors_are_not_taken_for_the_storages(url):
    with pytest.raises(KeyError), storage.explaining(url):
        raise KeyError


def test_local_copies_have_the_names_that_the_user_gave(url, tmp_path):
    storage.write(b"a\n", f"{url}/vocab.txt")
    storage.write(b"b\n", f"{url}/deep/er.txt")
    path = storage.local(f"{url}/vocab.txt")
    assert os.path.basename(path) == "vocab.txt" and pathlib.Path(path).read_text() == "a\n"
    assert storage.local(f"{url}/vocab.txt") == path
    storage.write(b"changed\n", f"{url}/vocab.txt")
    changed = storage.local(f"{url}/vocab.txt")
    assert pathlib.Path(changed).read_text() == "changed\n"
    with pytest.raises(storage.StorageError, match=r"c\.txt: is not there"):
        storage.local(f"{url}/c.txt")
    assert storage.shown(f"{path}:1: no") == f"{url}/vocab.txt:1: no"
    folder = storage.local_directory(url, lambda name: "deep" in name)
    assert os.listdir(folder) == ["deep"] and storage.shown(f"{folder}/deep") == f"{url}/deep"
    with pytest.raises(storage.StorageError, match=r"run: is not there, or does not hold the"):
        storage.local_directory(url, lambda name: False)
    assert storage.local("here/a") == "here/a"


@pytest.mark.parametrize(
    ("path", "is_url"),
    [("gs://b/a", True), ("s3a+x://b", True), ("a/b", False), ("C:\\a", False), (None, False)],
)
def test_urls_are_told_from_paths(path, is_url):
    assert storage.is_remote(path) == is_url
