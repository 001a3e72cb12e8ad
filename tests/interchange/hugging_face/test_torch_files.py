"""Compares what is read of torch's files, with the torch of transformers, with their tensors."""

import json
import os
import pathlib
import subprocess
import sys

import fixtures
import numpy as np
import pytest

import bert_estimator
from bert_estimator.interchange.hugging_face import torch_files

ONE_FILE = "pytorch_model.bin"
ROOT = pathlib.Path(bert_estimator.__file__).parent.parent

# torch is in another Python, which has numpy but not this project's other packages.
WRITE = """
import json, sys, safetensors.torch, torch
source, target, dtype, is_new = sys.argv[1:]
tensors = safetensors.torch.load_file(source)
tensors = {n: t.to(getattr(torch, dtype)) for n, t in tensors.items()}
names, weight_map = sorted(tensors), {}
for part, own in ((1, names[::2]), (2, names[1::2])):
    file = f"pytorch_model-0000{part}-of-00002.bin"
    torch.save(
        {n: tensors[n] for n in own}, f"{target}/{file}",
        _use_new_zipfile_serialization=is_new == "True")
    weight_map |= dict.fromkeys(own, file)
with open(f"{target}/pytorch_model.bin.index.json", "w") as writer:
    json.dump({"weight_map": weight_map}, writer)
"""
READ = """
import sys, numpy
from bert_estimator.interchange.hugging_face import torch_files
shapes, read = torch_files.open_directory(sys.argv[1])
values = {name: read(name) for name in shapes}
assert all(list(values[name].shape) == shapes[name] for name in shapes)
numpy.savez(sys.argv[2], **values)
"""


def with_torch(code, *arguments):
    python, env = os.environ["TRANSFORMERS_PYTHON"], {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [python, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True)


@fixtures.needs_transformers
@pytest.mark.parametrize("is_new", [True, False], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensors_are_those_that_were_saved(tmp_path, dtype, is_new):
    source = fixtures.DATA / "hf_pretraining"
    written = with_torch(WRITE, source / "model.safetensors", tmp_path, dtype, is_new)
    assert written.returncode == 0, written.stderr
    read = with_torch(READ, tmp_path, tmp_path / "values.npz")
    assert read.returncode == 0, read.stderr
    tolerance = {"float32": 0, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    expected = fixtures.tensors_of(source)
    with np.load(tmp_path / "values.npz") as values:
        assert set(values) == set(expected)
        for name, value in expected.items():
            assert values[name].dtype == np.float32
            np.testing.assert_allclose(values[name], value, rtol=tolerance, atol=tolerance)


@fixtures.needs_transformers
@pytest.mark.parametrize("has_parts", [True, False], ids=["parts", "one file"])
def test_files_of_other_names_are_not_read(tmp_path, has_parts):
    source = fixtures.DATA / "hf_pretraining"
    expected = fixtures.tensors_of(source)
    if has_parts:
        with_torch(WRITE, source / "model.safetensors", tmp_path, "float32", True)
    else:
        code = "import sys, torch, safetensors.torch as s; torch.save(s.load_file(*sys.argv[1:2]), "
        with_torch(f"{code}sys.argv[2])", source / "model.safetensors", tmp_path / ONE_FILE)
    # A variant of the hub, and a copy that was kept; all that they hold is wrong.
    code = "import sys, torch; torch.save({n: torch.zeros(1) for n in sys.argv[2:]}, sys.argv[1])"
    for name in ("pytorch_model.fp16.bin", "pytorch_model_old.bin"):
        with_torch(code, tmp_path / name, *expected)
        assert (tmp_path / name).exists()
    read = with_torch(READ, tmp_path, tmp_path / "values.npz")
    assert read.returncode == 0, read.stderr
    with np.load(tmp_path / "values.npz") as values:
        np.testing.assert_equal(dict(values), expected)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["part.bin", "absent.bin"], "{index}: names absent.bin, which is missing"),
        (
            ["../part.bin"],
            "{index}: the name '../part.bin' is not the name of a file in the same dir",
        ),
        (None, "[Errno 2] No such file or directory: '{index}'"),
    ],
    ids=["missing part", "part elsewhere", "no index"],
)
def test_an_index_must_name_the_parts(tmp_path, names, message):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("part.bin", "pytorch_model-00001-of-00002.bin"):
        (folder / name).write_bytes(b"")
    index = folder / f"{ONE_FILE}.index.json"
    if names is not None:
        index.write_text(json.dumps({"weight_map": {str(i): n for i, n in enumerate(names)}}))
    assert torch_files.is_model(str(folder))
    with pytest.raises((ValueError, OSError)) as raised:
        torch_files.open_directory(str(folder))
    assert str(raised.value).startswith(message.format(index=index))


@fixtures.needs_transformers
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("torch.nn.Linear(2, 3)", "torch cannot read it as weights alone (weights_only=True): "),
        ("[torch.zeros(2)]", "does not hold tensors by name; save the model's state_dict() instea"),
        ("{'state_dict': {}}", "does not hold tensors by name; save the model's state_dict() inst"),
        ("{'a': torch.zeros(2, dtype=torch.int8)}", "a is int8; allowed are float32, float16, bf"),
    ],
)
def test_what_is_not_weights_is_refused(tmp_path, content, message):
    path = tmp_path / "pytorch_model.bin"
    with_torch(f"import sys, torch; torch.save({content}, sys.argv[1])", path)
    read = with_torch(READ, tmp_path, tmp_path / "values.npz")
    assert f"ValueError: {path}: {message.removesuffix('bf')}" in read.stderr


# The Pythons must be of one version, since torch is compiled for one.
START = """
import sys
sys.path.append(sys.argv.pop(1))
from bert_estimator.interchange import __main__
sys.exit(__main__.main(sys.argv))
"""


@fixtures.needs_transformers
def test_a_pickled_model_is_converted_where_torch_is(tmp_path):
    code = "import sys, sysconfig; print(sysconfig.get_path('purelib'), *sys.version_info[:2])"
    folder, *version = with_torch(code).stdout.split()
    if version != [str(number) for number in sys.version_info[:2]]:
        pytest.skip("TRANSFORMERS_PYTHON is another version of Python")
    model = fixtures.changed(tmp_path, "hf_pretraining")
    with_torch(WRITE, model / "model.safetensors", model, "float32", True)
    (model / "model.safetensors").unlink()
    command = [sys.executable, "-c", START, folder, model, tmp_path / "new", "--to=hf"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(list(map(str, command)), env=env, check=True)
    expected = fixtures.tensors_of(fixtures.DATA / "hf_pretraining")
    np.testing.assert_equal(fixtures.tensors_of(tmp_path / "new"), expected)
