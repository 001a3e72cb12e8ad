"""Tests files that are written completely or not at all, and the sentences about broken disks."""

import errno
import os

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.system import disk_files


@pytest.mark.parametrize(("mode", "content"), [("w", "a ü\n"), ("wb", b"\x00\xff")])
def test_the_file_takes_its_place_at_the_end(tmp_path, mode, content):
    path = tmp_path / "file"
    path.write_text("before")
    with disk_files.writer(str(path), mode) as writer:
        writer.write(content)
        writer.flush()
        assert path.read_text() == "before"
    assert path.read_bytes() == (content if mode == "wb" else content.encode())
    assert os.listdir(tmp_path) == ["file"]


def test_an_error_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), disk_files.writer(str(path)) as writer:
        writer.write("half")
        raise KeyboardInterrupt
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]


def test_what_a_killed_process_left_is_overwritten(tmp_path):
    (tmp_path / "file.tmp").write_text("a longer half of it")
    with disk_files.writer(str(tmp_path / "file")) as writer:
        writer.write("whole")
    assert (tmp_path / "file").read_text() == "whole"
    assert os.listdir(tmp_path) == ["file"]


NEXT = "then run the same command again."
FULL = "run/model.ckpt-4_temp/part-0.tempstate1; No space left on device\n\t [[{{node save}}]]"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "x", "a/b"), "a/b: No space left on device. Free space there; "),
        (OSError(errno.ENOSPC, "x"), "A file: No space left on device. Free space there; "),
        (OSError(errno.EDQUOT, "x", "a"), "a: Disk quota exceeded. Free space there, or have the "),
        (OSError(errno.EROFS, "x", "a"), "a: Read-only file system. Mount the file system for wr"),
        (OSError(errno.EFBIG, "x", "a"), "a: File too large. Raise the limit of the size of fil"),
        (PermissionError(errno.EACCES, "x", "a"), "a: Permission denied. Give this user access"),
        (
            tf.errors.ResourceExhaustedError(None, None, FULL),
            "run/model.ckpt-4_temp/part-0.tempstate1: No space left on device. Free space there; ",
        ),
        (IndexError("run/events.x; File too large\n"), "run/events.x: File too large. Raise "),
        (
            tf.errors.ResourceExhaustedError(None, None, f"Save failed: my {FULL}"),
            "my run/model.ckpt-4_temp/part-0.tempstate1: No space left on device. Free space ",
        ),
        (
            tf.errors.UnknownError(None, None, "a/b; Input/output error"),
            "a/b: Input/output error. Have a look at the disk (dmesg); ",
        ),
    ],
)
def test_sentences(error, sentence):
    found = disk_files.explanation(error, NEXT)
    assert found.startswith(sentence)
    assert found.endswith("; " + NEXT)
    assert "\n" not in found


@pytest.mark.parametrize(
    "error",
    [
        lambda path: FileNotFoundError(errno.ENOENT, "x", path),
        lambda path: tf.errors.NotFoundError(None, None, f"{path}; No such file or directory"),
        lambda path: ValueError(f"Parent directory of {path} doesn't exist, can't save."),
    ],
)
def test_a_directory_that_has_vanished(tmp_path, error):
    path = f"{tmp_path}/gone away/run/model.ckpt"
    gone = f"{tmp_path}/gone away"
    assert disk_files.explanation(error(path), NEXT) == (
        f"{path} cannot be reached: the directory {gone} is gone. Bring it back; {NEXT}"
    )
    os.makedirs(os.path.dirname(path))
    assert disk_files.explanation(error(path), NEXT) is None  # only the file is missing


@pytest.mark.parametrize(
    "error", [ValueError("x"), OSError("x"), KeyError("No space left on device"), ConnectionError()]
)
def test_other_errors(error):
    assert disk_files.explanation(error, NEXT) is None
