"""Opening weights wherever they are: paths, directories and archives."""

import json
import pickle
import shutil
import sys
import types
import zipfile

import fixtures
import numpy as np
import pytest

from bert_estimator.interchange import open_source, opening
from bert_estimator.storage import remote


def packed(tmp_path, folder, inside="", name="model.zip"):
    """Packs a directory's files into a directory of an archive or at its root; returns its path."""
    with zipfile.ZipFile(tmp_path / name, "a") as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, inside + path.name)
    return str(tmp_path / name)


@pytest.mark.parametrize("inside", ["", "a/uncased_L-2_H-8_A-2/"])
@pytest.mark.parametrize("folder", [fixtures.TF1, fixtures.DATA / "hf_encoder"])
def test_an_archive_is_what_was_packed(tmp_path, folder, inside):
    path = packed(tmp_path, folder, inside)
    source, expected = open_source(path), open_source(str(folder))
    assert source.path == path
    for part in ("format", "shapes", "left_out", "config"):
        assert getattr(source, part) == getattr(expected, part)
    np.testing.assert_equal(fixtures.weights_of(source), fixtures.weights_of(expected))
    with open(source.vocab_file, encoding="utf-8") as reader:
        assert reader.read() == (folder / "vocab.txt").read_text()


def test_a_checkpoints_path_and_its_directory_are_the_same():
    by_path = open_source(str(fixtures.TF1 / "bert_model.ckpt"))
    by_folder = open_source(str(fixtures.TF1))
    assert (by_path.shapes, by_path.config) == (by_folder.shapes, by_folder.config)
    assert by_folder.path == str(fixtures.TF1)


@pytest.mark.parametrize("has_model", [True, False])
def test_an_adapter_is_not_left_out(tmp_path, has_model):
    folder = fixtures.changed(tmp_path, "hf_encoder") if has_model else tmp_path
    (folder / "adapter_config.json").write_text("{}")
    message = rf"^{folder}: holds an adapter \(adapter_config.json\), .* \(merge_and_unload\), save"
    with pytest.raises(ValueError, match=message):
        open_source(str(folder))


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (
            None,
            "is read by torch, which is not installed: pip install torch; or, where transformer",
        ),
        (
            "1.13.1",
            "is read by torch 2.6 or newer, but this is 1.13.1: pip install --upgrade torch",
        ),
        ("2.5.1+cu121", r"is read by torch 2.6 or newer, but this is 2.5.1\+cu121: pip install"),
        ("2.6.0", "torch cannot read it as weights alone"),
        ("2.13.0a0+git1", "torch cannot read it as weights alone"),
    ],
)
def test_what_torch_does_not_read_is_refused_with_the_way_out(
    tmp_path, monkeypatch, version, message
):
    torch = version and types.ModuleType("torch")
    folder = fixtures.changed(tmp_path, "hf_encoder")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    if torch is not None:
        torch.__version__ = version
        torch.load = lambda path, **_: pickle.loads(b"not a pickle")
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(ValueError, match=f"^{folder}/pytorch_model.bin: {message}"):
        open_source(str(folder))


def test_a_model_in_a_directory_of_sentence_transformers(tmp_path):
    """Its first versions kept the network in a directory of its own."""
    folder = fixtures.changed(tmp_path, "hf_encoder").rename(tmp_path / "0_Transformer")
    steps = [("0_Transformer", "models.Transformer"), ("1_Pooling", "models.Pooling")]
    modules = [{"path": path, "type": f"sentence_transformers.{name}"} for path, name in steps]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    source = open_source(str(tmp_path))
    assert (source.path, source.pooling, source.max_seq_length) == (str(tmp_path), "mean", 20)
    assert source.shapes == open_source(str(folder)).shapes


def test_an_archive_of_two_models(tmp_path):
    packed(tmp_path, fixtures.TF1, "a/")
    path = packed(tmp_path, fixtures.TF1, "b/")
    with pytest.raises(ValueError, match=f"^{path}: holds models in a, b; unpack it"):
        open_source(path)


def test_an_archive_of_a_run(tmp_path):
    """Its best checkpoint and its exported models belong to it."""
    for part in ("run/", "run/best/", "run/export/17/variables/"):
        path = packed(tmp_path, fixtures.TF1, part)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("run/export/17/saved_model.pb", b"")
    assert open_source(path).vocab_file.endswith("/run/vocab.txt")


def test_a_damaged_archive(tmp_path):
    path = packed(tmp_path, fixtures.TF1)
    whole = (tmp_path / "model.zip").read_bytes()
    place = whole.index(b"bert_model.ckpt.data-00000-of-00001") + 2000
    (tmp_path / "model.zip").write_bytes(whole[:place] + b"?" + whole[place + 1 :])
    with pytest.raises(ValueError, match=f"^{path}: the archive cannot be read: Bad CRC-32"):
        open_source(path)


def test_an_archive_is_unpacked_once_until_it_changes(tmp_path):
    path = packed(tmp_path, fixtures.TF1)
    first = open_source(path).vocab_file
    assert open_source(path).vocab_file == first
    shutil.copy(packed(tmp_path, fixtures.DATA / "hf_encoder", name="other.zip"), path)
    assert open_source(path).format == "hf"


def test_the_next_process_names_a_file_of_an_archive_in_the_same_way(tmp_path):
    """A run that was started with the vocabulary of an archive compares the names when resumed."""
    path = packed(tmp_path, fixtures.TF1)
    files = []
    for _ in range(2):
        opening._unpacked_once.cache_clear()
        files.append(open_source(path).vocab_file)
    assert files[0] != files[1]
    assert [remote.shown(file) for file in files] == [f"{path}/vocab.txt"] * 2
