"""Reading pytorch_model.bin: the one module that needs the package torch."""

import fnmatch
import glob
import os
import re
import zipfile
from collections.abc import Callable

import numpy as np

from bert_estimator.interchange.hugging_face import safetensors_files

_FILE, _FILES = "pytorch_model.bin", "pytorch_model*.bin"  # one file, or parts of a large model
_EXACT = ("float32", "float16", "bfloat16")


def is_file(path: str) -> bool:
    """Returns whether a file has the name of weights."""
    return fnmatch.fnmatch(os.path.basename(path), _FILES)


def is_model(folder: str) -> bool:
    """Returns whether a directory holds weights of torch."""
    return bool(glob.glob(os.path.join(glob.escape(folder), _FILES)))


def open_directory(folder: str) -> tuple[dict[str, list[int]], Callable[[str], np.ndarray]]:
    """Opens the files of a directory; returns what `safetensors_files.open_directory` does."""
    tensors = {}
    # Not all that have such a name: others may be variants, such as pytorch_model.fp16.bin.
    for path in safetensors_files.parts(folder, _FILE):
        tensors.update({name: (path, tensor) for name, tensor in _load(path).items()})

    def read(name):
        path, tensor = tensors[name]
        if (dtype := str(tensor.dtype).removeprefix("torch.")) not in _EXACT:
            raise ValueError(f"{path}: {name} is {dtype}; allowed are {', '.join(_EXACT)}")
        return tensor.detach().float().numpy()

    return {name: list(tensor.shape) for name, (_, tensor) in tensors.items()}, read


def _load(path):
    """Returns name -> tensor of a file."""
    try:
        import torch
    except ImportError:
        raise ValueError(
            f"{path}: is read by torch, which is not installed: pip install torch; or, where "
            "transformers is, open the model with its class and write model.safetensors with "
            'save_pretrained("NEW_DIRECTORY")'
        ) from None
    # Before 2.6, such a file may have torch run code of its own (CVE-2025-32434).
    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < (2, 6):
        raise ValueError(
            f"{path}: is read by torch 2.6 or newer, but this is {torch.__version__}: pip install "
            "--upgrade torch"
        )
    # Files of torch before 1.6 are not zip archives; the others are read as tensors are needed.
    options = {"map_location": "cpu", "weights_only": True, "mmap": zipfile.is_zipfile(path)}
    try:
        tensors = torch.load(path, **options)
    # What torch raises for a damaged file depends on the place of the damage.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{path}: torch cannot read it as weights alone (weights_only=True): {reason}"
        ) from None
    if not isinstance(tensors, dict) or not all(map(torch.is_tensor, tensors.values())):
        raise ValueError(
            f"{path}: does not hold tensors by name; save the model's state_dict() instead"
        )
    return tensors
