"""Files that are written completely or not at all."""

import os

import pytest

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


def test_a_directory_that_is_missing_is_an_error(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match="no_directory"),
        disk_files.writer(str(tmp_path / "no_directory" / "file")),
    ):
        pass


def test_what_a_killed_process_left_is_overwritten(tmp_path):
    (tmp_path / "file.tmp").write_text("a longer half of it")
    with disk_files.writer(str(tmp_path / "file")) as writer:
        writer.write("whole")
    assert (tmp_path / "file").read_text() == "whole"
    assert os.listdir(tmp_path) == ["file"]
