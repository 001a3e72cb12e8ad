"""Saves a training program in a directory, and loads it, to run it without TensorFlow.

The directory holds four files:
    step.stablehlo   the step of all cores, as jax writes it
    state.npz        the initial values of the state, by name
    batches.npz      some batches: an array [number of batches, batch, ...] for each input, by name
    program.json     what belongs to the step

program.json is written last: if it exists, the other files are complete.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_estimator.system import disk_files, json_files, zip_files
from bert_estimator.system.errors import listed
from bert_estimator.tpu.program import devices
from bert_estimator.tpu.program.core_mesh import CoreMesh


@dataclasses.dataclass(frozen=True)
class ExportedProgram:
    """Holds a step, its state and some batches."""

    # A `jax.export.Exported` of (state, batch), which are dicts as below, that returns the new
    # state and a list of outputs; the first is the loss of each core, float32 [cores].
    step: Any
    num_shards: int  # how many cores, one after the other, share the update of the weights
    batch_size: int  # examples in a global batch
    state: dict[str, np.ndarray]
    batches: list[dict[str, np.ndarray]]

    @property
    def num_cores(self) -> int:
        """Returns the number of cores that share a global batch."""
        return self.step.nr_devices

    def save(self, directory: str) -> None:
        """Writes the program into a directory, which is made if it does not exist."""
        os.makedirs(directory, exist_ok=True)
        description_path = os.path.join(directory, "program.json")
        with contextlib.suppress(FileNotFoundError):
            os.remove(description_path)  # an earlier program's, whose files are overwritten now
        step = bytes(self.step.serialize())
        with open(os.path.join(directory, "step.stablehlo"), "wb") as writer:
            writer.write(step)
        np.savez(os.path.join(directory, "state.npz"), **self.state)
        save_batches(os.path.join(directory, "batches.npz"), self.batches)
        description = {
            "batch_size": self.batch_size,
            "num_shards": self.num_shards,
            "step_sha256": hashlib.sha256(step).hexdigest(),
        }
        # Last, as the mark of a complete program.
        with disk_files.writer(description_path) as writer:
            json.dump(description, writer, indent=2)
            writer.write("\n")

    def on_cores(self, cores: list) -> tuple[Callable, dict, list[dict]]:
        """Returns the step for as many devices as the program has cores, compiled when it first
        runs, and the state and the batches there; the step consumes the state."""
        jax = devices.import_jax()
        mesh = CoreMesh(cores, num_shards=self.num_shards)
        (of_state, of_batch), _ = self.step.in_tree.unflatten(self.step.in_shardings_jax(mesh.mesh))
        step = jax.jit(
            self.step.call,
            donate_argnums=0,
            out_shardings=(of_state, mesh.rows),
            compiler_options=devices.compiler_options(cores),
        )

        def run(state, batch):
            with jax.enable_x64(True):
                return step(state, batch)

        batches = [mesh.put(batch, of_batch) for batch in self.batches]
        return run, mesh.put(self.state, of_state), batches


def save_batches(path: str, batches: list[dict[str, np.ndarray]]) -> None:
    """Writes batches as an npz file."""
    np.savez(path, **{name: np.stack([batch[name] for batch in batches]) for name in batches[0]})


def load(directory: str, batches_path: str | None = None) -> ExportedProgram:
    """Loads the program of a directory, or raises ValueError if it is not complete and valid;
    `batches_path` is an npz file to read instead of the directory's batches.npz."""
    step, values = load_step(directory)
    (of_state, of_batch), _ = step.in_tree.unflatten(step.in_avals)
    state_path = os.path.join(directory, "state.npz")
    state = _arrays(state_path)
    missing = sorted(of_state.keys() - state.keys())
    if missing:
        raise ValueError(f"{state_path} lacks {missing}: export the program again")
    state = {name: _typed(state[name], wanted.dtype) for name, wanted in of_state.items()}
    for name, value in state.items():
        if value.shape != of_state[name].shape:
            raise ValueError(
                f"{state_path}: {name} has the shape {list(value.shape)}, but the program's is "
                f"{list(of_state[name].shape)}: export the program again"
            )
    # A program that starts from NaN would only show NaN losses.
    bad = [name for name, value in state.items() if not np.isfinite(value).all()]
    if bad:
        raise ValueError(f"{state_path}: these variables are not finite: {listed(bad)}")
    batches = _batches(batches_path or os.path.join(directory, "batches.npz"), of_batch)
    return ExportedProgram(step, values["num_shards"], values["batch_size"], state, batches)


def load_step(directory: str) -> tuple[Any, dict[str, Any]]:
    """Loads the step of a directory's program, as `jax.export.Exported`, and its program.json, or
    raises ValueError."""
    path, step_path = (os.path.join(directory, n) for n in ("program.json", "step.stablehlo"))
    if not os.path.isfile(path):
        raise ValueError(
            f"{directory} does not hold a complete exported program: program.json, which is "
            "written last, is missing. Export the program (again)"
        )
    values = json_files.read(path)
    kinds = {"batch_size": int, "num_shards": int, "step_sha256": str}
    values = {name: json_files.field(values, name, kind, path) for name, kind in kinds.items()}
    with open(step_path, "rb") as reader:
        step = reader.read()
    # jax does not check what it reads.
    if hashlib.sha256(step).hexdigest() != values["step_sha256"]:
        raise ValueError(
            f"{step_path} is truncated or damaged, or {path} belongs to another program: export "
            "it again"
        )
    devices.import_jax()
    from jax import export

    step = export.deserialize(bytearray(step))
    if values["num_shards"] < 1 or step.nr_devices % values["num_shards"]:
        raise ValueError(f"{path} does not describe the program beside it: export it again")
    return step, values


def _batches(path, of_batch):
    arrays = _arrays(path)
    # The file may be the user's own.
    if set(arrays) != set(of_batch):
        raise ValueError(
            f"{path} holds {sorted(arrays)}; the program's inputs are {sorted(of_batch)}"
        )
    arrays = {name: _typed(arrays[name], wanted.dtype) for name, wanted in of_batch.items()}
    for name, array in arrays.items():
        if array.shape[1:] != of_batch[name].shape or not len(array):
            raise ValueError(
                f"{path}: {name} has shape {array.shape}; it must be [batches, "
                + ", ".join(map(str, of_batch[name].shape))
                + "]"
            )
    lengths = {name: len(array) for name, array in arrays.items()}
    if len({*lengths.values()}) > 1:
        raise ValueError(f"{path}: the inputs differ in their number of batches: {lengths}")
    rows = zip(*arrays.values(), strict=True)
    return [dict(zip(arrays, batch, strict=True)) for batch in rows]


def _arrays(path):
    """Returns the arrays of an npz file by name; numpy's errors, of many kinds, become a ValueError
    or OSError that names the path."""
    try:
        with zip_files.opened(path) as archive, open(path, "rb") as reader:
            # An archive may claim any size: its members are checked before numpy unpacks them.
            zip_files.check(archive, archive.namelist(), None)
            num_bytes = sum(member.file_size for member in archive.infolist())
            with zip_files.reading(path):
                try:
                    return dict(np.load(reader))
                except MemoryError:
                    reason = f"There is too little memory for its {num_bytes} bytes"
                    raise OSError(errno.ENOMEM, reason, path) from None
    except zip_files.ZipError as error:
        raise ValueError(
            f"{path} is not an npz file, or is truncated or damaged ({error}): write it again"
        ) from None


def _typed(array, dtype):
    """Returns an array with a dtype; numpy reads bfloat16 as bytes without a type."""
    return array.view(dtype) if array.dtype.kind == "V" else array.astype(dtype)
