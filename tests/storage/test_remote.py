"""Remote files, by TensorFlow's file system in memory, ram://."""

import os
import pathlib

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.storage import remote
from bert_estimator.system import paths


@pytest.fixture
def waits(monkeypatch):
    """The seconds that are waited for another trial, which take no time here."""
    made = []
    monkeypatch.setattr(remote.time, "sleep", made.append)
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
    assert remote.files(url) == {} and not remote.check(url)
    remote.upload(str(tmp_path / "a"), f"{url}/best/a")
    remote.write(b"{}", f"{url}/b.json")
    remote.write(b"[1]", f"{url}/b.json")
    assert {name: size for name, (size, _) in remote.files(url).items()} == {
        "best/a": 8 * 999,
        "b.json": 3,
    }
    assert remote.files(url) == remote.files(url + "/")
    remote.download(f"{url}/best/a", str(tmp_path / "new" / "copy"))
    assert (tmp_path / "new" / "copy").read_bytes() == b"weights\n" * 999
    assert remote.read(f"{url}/b.json") == b"[1]" and remote.read(f"{url}/c") is None
    assert remote.read_json(f"{url}/b.json", list) == [1]
    for _ in range(2):
        remote.remove(f"{url}/best/a")
    assert list(remote.files(url)) == ["b.json"]
    assert remote.matches(f"{url}/*.json") == [f"{url}/b.json"]
    assert remote.matches(f"{url}/*.txt") == []


def test_a_write_that_was_cut_short_leaves_no_file(url, tmp_path, monkeypatch, waits):
    remote.write(b"old", f"{url}/a")
    fail(monkeypatch, tf.errors.UnavailableError, 99, "rename")
    with pytest.raises(remote.StorageError, match=r"a: ram:// does not answer .*\(no answer\)"):
        remote.write(b"new", f"{url}/a")
    assert remote.read(f"{url}/a") == b"old" and list(remote.files(url)) == ["a"]


def test_what_may_pass_is_tried_again_a_few_times(url, tmp_path, monkeypatch, waits, caplog):
    (tmp_path / "a").write_bytes(b"a")
    with monkeypatch.context() as patched:
        fail(patched, tf.errors.UnavailableError, 4)
        remote.upload(str(tmp_path / "a"), f"{url}/a")
    assert waits == [1, 2, 4, 8] and remote.read(f"{url}/a") == b"a"
    assert "Trying again in 1 s (1 of 5 failed)." in caplog.text
    with monkeypatch.context() as patched:
        calls = fail(patched, tf.errors.UnavailableError, 99)
        with pytest.raises(remote.StorageError, match="Look at the name, the network and the"):
            remote.upload(str(tmp_path / "a"), f"{url}/a")
    assert len(calls) == 5
    for error in (tf.errors.PermissionDeniedError, tf.errors.UnauthenticatedError):
        with monkeypatch.context() as patched:
            calls = fail(patched, error, 99)
            with pytest.raises(remote.StorageError, match=r"access is denied \(no answer\). Give"):
                remote.upload(str(tmp_path / "a"), f"{url}/a")
        assert len(calls) == 1


def test_a_copy_that_was_cut_short_is_not_taken(url, tmp_path, monkeypatch, waits):
    remote.write(b"abc", f"{url}/a")
    monkeypatch.setattr(tf.io.gfile, "copy", lambda _, path, overwrite: open(path, "wb").close())
    with pytest.raises(remote.StorageError, match="a: 0 bytes were read, but it has 3"):
        remote.download(f"{url}/a", str(tmp_path / "a"))


@pytest.mark.parametrize("name", ["exists", "listdir", "stat"])
def test_a_directory_that_does_not_answer_is_not_an_empty_one(url, monkeypatch, waits, name):
    remote.write(b"a", f"{url}/a")
    fail(monkeypatch, tf.errors.UnavailableError, 99, name)
    with pytest.raises(remote.StorageError, match="does not answer"):
        remote.files(url)


def test_names_are_those_of_the_directory_alone(url):
    assert remote.names(url) == []
    for name in ("a", "b.json", "best/c"):
        remote.write(b"a", f"{url}/{name}")
    assert sorted(remote.names(url)) == ["a", "b.json", "best"]


def test_a_file_that_vanishes_while_it_is_listed_is_left_out(url, monkeypatch):
    for name in "ab":
        remote.write(b"a", f"{url}/{name}")
    fail(monkeypatch, tf.errors.NotFoundError, 1, "stat")
    assert len(remote.files(url)) == 1


@pytest.mark.parametrize("name", ["..", "../", "."])
def test_a_name_that_leads_out_of_the_directory_is_refused(url, monkeypatch, name):
    """Objects may have any names, such as `run/../evil`."""
    remote.write(b"a", f"{url}/a")
    listdir = tf.io.gfile.listdir
    monkeypatch.setattr(tf.io.gfile, "listdir", lambda path: [*listdir(path), name])
    with pytest.raises(ValueError, match=r"run/\.+: is not a name that a file here may have"):
        remote.files(url)


def test_an_unknown_scheme_is_named_with_the_known_ones():
    with pytest.raises(remote.StorageError) as raised:
        remote.check("abc://bucket/run")
    assert str(raised.value) == (
        "abc://bucket/run: this TensorFlow does not know abc://, only gs://. Mount it as a "
        "directory, or use a path of this machine"
    )


def test_other_errors_are_not_taken_for_the_storages(url):
    with pytest.raises(KeyError), remote.explaining(url):
        raise KeyError


def test_local_copies_have_the_names_that_the_user_gave(url, tmp_path):
    remote.write(b"a\n", f"{url}/vocab.txt")
    remote.write(b"b\n", f"{url}/deep/er.txt")
    path = remote.local(f"{url}/vocab.txt")
    assert os.path.basename(path) == "vocab.txt" and pathlib.Path(path).read_text() == "a\n"
    assert remote.local(f"{url}/vocab.txt") == path
    remote.write(b"changed\n", f"{url}/vocab.txt")
    changed = remote.local(f"{url}/vocab.txt")
    assert pathlib.Path(changed).read_text() == "changed\n"
    with pytest.raises(remote.StorageError, match=r"c\.txt: is not there"):
        remote.local(f"{url}/c.txt")
    assert remote.shown(f"{path}:1: no") == f"{url}/vocab.txt:1: no"
    folder = remote.local_directory(url, lambda name: "deep" in name)
    assert os.listdir(folder) == ["deep"] and remote.shown(f"{folder}/deep") == f"{url}/deep"
    with pytest.raises(remote.StorageError, match=r"run: is not there, or does not hold the"):
        remote.local_directory(url, lambda name: False)
    assert remote.local("here/a") == "here/a"


@pytest.mark.parametrize(
    ("path", "is_url"),
    [("gs://b/a", True), ("s3a+x://b", True), ("a/b", False), ("C:\\a", False), (None, False)],
)
def test_urls_are_told_from_paths(path, is_url):
    assert paths.is_remote(path) == is_url
