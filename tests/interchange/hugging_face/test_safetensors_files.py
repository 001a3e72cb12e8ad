"""Reading and writing safetensors files."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from bert_estimator.interchange.hugging_face import safetensors_files

TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.float16([0.1, -2]),
    "c": np.array([1.5, 3], ml_dtypes.bfloat16),
}


def test_tensors_are_read_as_float32(tmp_path):
    safetensors.numpy.save_file(TENSORS, tmp_path / "model.safetensors")
    shapes, read = safetensors_files.open_directory(str(tmp_path))
    assert shapes == {"a": [2, 3], "b": [2], "c": [2]}
    for name, value in TENSORS.items():
        assert read(name).dtype == np.float32
        np.testing.assert_array_equal(read(name), value.astype(np.float32))


def test_what_is_written_is_read_back_from_any_layout(tmp_path):
    value = np.arange(6, dtype=np.float32).reshape(2, 3).T
    safetensors_files.write(str(tmp_path / "model.safetensors"), {"a": value})
    _, read = safetensors_files.open_directory(str(tmp_path))
    np.testing.assert_array_equal(read("a"), value)
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}


def sharded(tmp_path):
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    for tensor, name in names.items():
        safetensors.numpy.save_file({tensor: TENSORS[tensor]}, tmp_path / name)
    index = json.dumps({"metadata": {}, "weight_map": names})
    (tmp_path / "model.safetensors.index.json").write_text(index)


def test_a_model_in_several_files(tmp_path):
    sharded(tmp_path)
    shapes, read = safetensors_files.open_directory(str(tmp_path))
    assert shapes == {"a": [2, 3], "b": [2]}
    for name in shapes:
        np.testing.assert_array_equal(read(name), TENSORS[name].astype(np.float32))


@pytest.mark.parametrize("length", [0, 4, 100, -1])
def test_a_file_cut_short(tmp_path, length):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(TENSORS, path)
    os.truncate(path, length if length >= 0 else path.stat().st_size + length)
    with pytest.raises(ValueError, match=f"^{path}: is not a complete safetensors file: "):
        safetensors_files.open_directory(str(tmp_path))


def test_types_that_float32_does_not_hold(tmp_path):
    safetensors.numpy.save_file({"a": np.ones(2)}, tmp_path / "model.safetensors")
    _, read = safetensors_files.open_directory(str(tmp_path))
    with pytest.raises(ValueError, match=r"a is F64; allowed are F32, F16, BF16$"):
        read("a")


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(safetensors_files, "safetensors", None)
    message = r"need safetensors, which is not installed: pip install 'bert-estimator\[hf\]'"
    with pytest.raises(ValueError, match=message):
        safetensors_files.open_directory(str(tmp_path))
    with pytest.raises(ValueError, match=message):
        safetensors_files.write(str(tmp_path / "model.safetensors"), {})
