"""Reading and writing safetensors files: the one module that needs the `safetensors` package."""

import os
from collections.abc import Callable, Mapping

import numpy as np

from bert_estimator.system import json_files, paths

try:
    import safetensors
    import safetensors.numpy
except ImportError:
    safetensors = None

FILE = "model.safetensors"
INDEX = f"{FILE}.index.json"  # of several files

# The stored types whose values float32 represents exactly.
_EXACT = ("F32", "F16", "BF16")


def open_directory(folder: str) -> tuple[dict[str, list[int]], Callable[[str], np.ndarray]]:
    """Opens `model.safetensors`, or the files that `model.safetensors.index.json` lists; returns
    tensor name -> shape, and a function of a name that gives its float32 array."""
    _check_installed()
    # Tensors are read one by one when they are needed, not a whole file at a time.
    shapes, places = {}, {}
    for path in parts(folder, FILE):
        for name, entry in _header(path).items():
            shapes[name], places[name] = entry["shape"], (path, entry["dtype"])

    def read(name):
        path, dtype = places[name]
        if dtype not in _EXACT:
            raise ValueError(f"{path}: {name} is {dtype}; allowed are {', '.join(_EXACT)}")
        with safetensors.safe_open(path, framework="np") as file:
            return np.asarray(file.get_tensor(name), np.float32)

    return shapes, read


def parts(folder: str, name: str) -> list[str]:
    """Returns the files of a directory's weights: the one of a name, or else the parts that its
    index lists; raises ValueError if a part is missing."""
    single, index = os.path.join(folder, name), os.path.join(folder, f"{name}.index.json")
    if os.path.exists(single):
        return [single]
    weight_map = json_files.field(json_files.read(index), "weight_map", dict, index)
    names = sorted(set(json_files.items(list(weight_map.values()), str, f"{index}: weight_map")))
    files = []
    for name in names:
        try:
            # A model may come from others: its index must not name files elsewhere.
            files.append(paths.inside(folder, name))
        except ValueError as error:
            raise ValueError(f"{index}: {error}") from None
        if not os.path.isfile(files[-1]):
            raise ValueError(f"{index}: names {name}, which is missing")
    return files


def write(path: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a file of tensors by name."""
    _check_installed()
    contiguous = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    # transformers refuses a file that does not name the framework of its layout.
    safetensors.numpy.save_file(contiguous, path, metadata={"format": "pt"})


def _header(path):
    """Returns tensor name -> {"shape", "dtype"}."""
    try:
        with safetensors.safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: {"shape": list(part.get_shape()), "dtype": part.get_dtype()}
                for name, part in slices.items()
            }
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path}: is not a complete safetensors file: {error}") from None


def _check_installed():
    if safetensors is None:
        raise ValueError(
            "Hugging Face's files need safetensors, which is not installed: "
            "pip install 'bert-estimator[hf]'"
        )
