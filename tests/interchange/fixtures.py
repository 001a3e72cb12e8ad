"""The models that the oracles of this directory wrote, and changed copies of them."""

import json
import pathlib
import shutil

import numpy as np
import safetensors.numpy

DATA = pathlib.Path(__file__).parent / "data"
HUGGING_FACE = ("hf_pretraining", "hf_classifier", "hf_masked_lm", "hf_encoder")
TF1 = DATA / "tf1"


def tensors_of(folder):
    return safetensors.numpy.load_file(folder / "model.safetensors")


def changed(tmp_path, model, change_tensors=None, **config):
    """A copy of a Hugging Face model, some of its tensors and its configuration changed."""
    folder = tmp_path / "changed"
    shutil.copytree(DATA / model, folder)
    values = {**json.loads((folder / "config.json").read_text()), **config}
    (folder / "config.json").write_text(json.dumps(values))
    if change_tensors is not None:
        tensors = change_tensors(tensors_of(folder))
        tensors = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
        safetensors.numpy.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def weights_of(source):
    return {name: source.read(name) for name in source.shapes}
