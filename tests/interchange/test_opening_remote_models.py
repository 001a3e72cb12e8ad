"""Models in remote storage, by TensorFlow's file system in memory: what is copied, and when."""

import os
import shutil

import fixtures
import hub_modules
import pytest

from bert_estimator.interchange import open_source
from bert_estimator.storage import remote

MODELS = {"tf1": fixtures.TF1, "hf": fixtures.DATA / "hf_encoder"}


@pytest.fixture
def url(tmp_path):
    return f"ram:/{tmp_path}/model"


@pytest.fixture
def copied(monkeypatch):
    """The names of the files that are copied here."""
    names, download = [], remote.download

    def noted(url, path):
        names.append(url.rpartition("/")[2])
        download(url, path)

    monkeypatch.setattr(remote, "download", noted)
    return names


def upload(folder, url):
    for path in folder.rglob("*"):
        if path.is_file():
            remote.upload(str(path), f"{url}/{path.relative_to(folder)}")


def weights(path):
    source = open_source(path)
    return {name: source.read(name).tolist() for name in source.shapes}


@pytest.mark.parametrize("kind", MODELS)
def test_a_remote_model_is_copied_once_until_it_changes(url, copied, kind):
    upload(MODELS[kind], url)
    for _ in range(3):
        assert weights(url) == weights(str(MODELS[kind]))
    assert len(copied) == len(set(copied)) and "vocab.txt" in copied
    vocabulary = remote.read(f"{url}/vocab.txt")
    copied.clear()
    remote.write(vocabulary + b"new\n", f"{url}/vocab.txt")
    with open(open_source(url).vocab_file, "rb") as reader:
        assert reader.read() == vocabulary + b"new\n"
    assert copied.count("vocab.txt") == 1


def test_of_a_directory_of_several_checkpoints_the_named_one_is_copied(url, tmp_path, copied):
    folder = tmp_path / "several"
    shutil.copytree(fixtures.TF1, folder)
    for path in fixtures.TF1.glob("bert_model.ckpt.*"):
        shutil.copy(path, folder / path.name.replace("bert_model", "other"))
    upload(folder, url)
    path = f"{url}/bert_model.ckpt"
    for _ in range(2):
        assert weights(path) == weights(str(fixtures.TF1))
    assert not [name for name in copied if name.startswith("other")]
    assert remote.shown(open_source(path).checkpoint) == path
    assert len(copied) == len(os.listdir(fixtures.TF1))


def test_the_weights_of_a_module_of_tf_hub_are_the_module(url, tmp_path):
    """Its graph and its vocabulary are opened with its variables, as with a local path."""
    source = open_source(str(fixtures.TF1))
    module = hub_modules.write_tf2(
        tmp_path / "hub", source.config, fixtures.weights_of(source), source.vocab_file, True
    )
    upload(module, url)
    expected = weights(str(module))
    for path in (url, f"{url}/variables/variables"):
        assert open_source(path).format == "hub" and weights(path) == expected
