"""Names inside files, patterns and arguments: what stays in its place, and what is refused."""

import os
import shutil

import commands
import pytest
from fixtures import DATA
from scripts import PRETRAINING

from bert_estimator import tpu
from bert_estimator.interchange import open_source
from bert_estimator.system import paths


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model" / "sub").mkdir(parents=True)
    for name in ("a.txt", "model/a.txt", "model/sub/b.txt"):
        (tmp_path / name).write_text("")
    return tmp_path / "model"


@pytest.mark.parametrize("name", ["a.txt", "sub/b.txt", "not there", "..a", "a..", "[a]*"])
def test_names_inside(folder, name):
    assert paths.inside(str(folder), name) == f"{folder}/{name}"


@pytest.mark.parametrize(
    "name",
    ["", "..", "../a.txt", "sub/../../a.txt", "/etc/passwd", "//a", "C:\\a", "..\\a.txt",
     "sub//b.txt", "a\0b", "sub/", "."],
)  # fmt: skip
def test_names_that_lead_out(folder, name):
    with pytest.raises(ValueError, match=r"^the name .* is (not the name of a file|a link)"):
        paths.inside(str(folder), name)


def test_links(folder, monkeypatch):
    (folder / "within").symlink_to("sub/b.txt")
    (folder / "out").symlink_to("../a.txt")
    (folder / "out of sub").symlink_to(folder.parent)
    assert paths.inside(str(folder), "within") == f"{folder}/within"
    for name in ("out", "out of sub/a.txt"):
        with pytest.raises(ValueError, match=f"^the name '{name}' is a link that leads out of the"):
            paths.inside(str(folder), name)
    monkeypatch.chdir(folder)
    assert paths.inside("", "a.txt") == "a.txt"
    (folder.parent / "link").symlink_to(folder)  # the directory itself may be a link
    assert paths.inside(str(folder.parent / "link"), "a.txt")


def test_the_links_of_a_cache_of_the_hub(tmp_path):
    snapshot = tmp_path / "models--x" / "snapshots" / "abc"
    (tmp_path / "models--x" / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (tmp_path / "models--x" / "blobs" / "123").write_text("")
    (tmp_path / "123").write_text("")
    (snapshot / "a").symlink_to("../../blobs/123")
    (snapshot / "b").symlink_to("../../../123")
    assert paths.inside(str(snapshot), "a") == f"{snapshot}/a"
    with pytest.raises(ValueError, match="leads out"):
        paths.inside(str(snapshot), "b")


def test_a_file_with_the_name_of_a_pattern(tmp_path):
    for name in ("a1", "a[1]", "b*", "b2", "c\\d"):
        (tmp_path / name).write_text("")
    (tmp_path / "a3").mkdir()
    found = {
        pattern: [os.path.basename(path) for path in paths.matches(f"{tmp_path}/{pattern}")]
        for pattern in ("a[1]", "a[13]", "b*", "b?", "a*", "c\\d", "none*")
    }
    assert found == {
        "a[1]": ["a[1]"],
        "a[13]": ["a1"],
        "b*": ["b*"],
        "b?": ["b*", "b2"],
        "a*": ["a1", "a[1]"],
        "c\\d": ["c\\d"],
        "none*": [],
    }


@pytest.mark.parametrize("path", ["a[b", "a]b", "a*b", "a?b", "a\\b", "[x]/y"])
def test_paths_that_tensorflow_takes_for_patterns(path):
    with pytest.raises(ValueError, match=r"has the character .* choose a path without"):
        paths.check_no_pattern(path)
    paths.check_no_pattern("a b/{c},é#~")


def test_arguments():
    paths.check_arguments(["--a=é", ""])
    with pytest.raises(ValueError, match=r"the argument 'a\\x00b' holds a NUL character"):
        paths.check_arguments(["a\0b"])
    with pytest.raises(ValueError, match=r"the argument '--a=\\udcff' is not UTF-8; rename the"):
        paths.check_arguments(["x", "--a=\udcff"])


@pytest.mark.parametrize("name", ["a[1]", "b*c", "d?e", "f\\g"])
def test_checkpoints_in_directories_with_the_names_of_patterns(tmp_path, name):
    """TensorFlow would train, or find no checkpoint: each way to such a directory is refused."""
    folder = tmp_path / name
    shutil.copytree(DATA / "tf1", folder)
    for path in (folder, folder / "bert_model.ckpt"):
        with pytest.raises(ValueError, match="with which TensorFlow takes the path of a"):
            open_source(str(path))
    for config in (tpu.RunConfig, tpu.RunConfig().replace):
        with pytest.raises(ValueError, match=r"RunConfig: model_dir=.* has the character"):
            config(model_dir=str(folder))
    argv = [str(DATA / "tf1"), str(folder / "as tf1"), "--to=tf1"]
    assert commands.call("convert", argv)[0] == 2
    assert not os.path.exists(folder / "as tf1")
    if name == "a[1]":  # Hugging Face's files may lie there.
        shutil.copytree(DATA / "hf_encoder", folder / "hf")
        assert open_source(str(folder / "hf")).shapes


@pytest.mark.parametrize("name", ["a[1]", "f\\g"])
def test_data_in_directories_with_the_names_of_patterns(tmp_path, name):
    folder = tmp_path / name
    (folder / "p").mkdir(parents=True)
    PRETRAINING.write_data(folder / "p")
    flags = PRETRAINING.flags(folder / "p", tmp_path / "run", max_eval_steps=1)
    assert PRETRAINING.main([*flags, "--do_eval"]) == 0
    (folder / "t[0].txt").write_text(commands.TEXT)
    argv = ["--vocab_size=40", f"--input_file={folder}/t[0].txt", f"--vocab_file={folder}/v.txt"]
    assert commands.call("vocabulary", argv) == (0, "")
