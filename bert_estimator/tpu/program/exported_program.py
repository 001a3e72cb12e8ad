"""Saves a training program in a directory, and loads it, to run it without TensorFlow.

The directory holds four files:
    step.stablehlo   the step of one core, as a portable StableHLO artifact
    program.json     names, shapes and dtypes of its inputs and state; the cores that share a batch
    state.npz        the initial values of the state, by name
    batches.npz      some batches: an array [number of batches, batch, ...] for each input, by name

program.json is written last: if it exists, the other files are complete.
"""

import contextlib
import dataclasses
import errno
import json
import os

import numpy as np

from bert_estimator.system import disk_files, json_files, zip_files
from bert_estimator.system.errors import listed
from bert_estimator.tpu.program import stablehlo
from bert_estimator.tpu.program.lowered_step import LoweredStep, StateVariable


@dataclasses.dataclass(frozen=True)
class ExportedProgram:
    """Holds a step, its state and some batches."""

    lowered: LoweredStep  # its first output is the loss, float32 [1]
    num_cores: int  # the cores that share a global batch
    batch_size: int  # examples in a global batch
    # Names of the step's inputs after the first, which is the core's number. If the features are a
    # dict, the names are its keys.
    inputs: list[str]
    state: list[np.ndarray]  # in the order of `lowered.state`
    batches: list[list[np.ndarray]]  # arrays in the order of `inputs`

    def save(self, directory: str) -> None:
        """Writes the program into a directory, which is made if it does not exist."""
        os.makedirs(directory, exist_ok=True)
        description_path = os.path.join(directory, "program.json")
        with contextlib.suppress(FileNotFoundError):
            os.remove(description_path)  # an earlier program's, whose files are overwritten now
        lowered = self.lowered
        with open(os.path.join(directory, "step.stablehlo"), "wb") as writer:
            writer.write(stablehlo.portable(lowered.text))
        description = {
            "num_cores": self.num_cores,
            "batch_size": self.batch_size,
            "inputs": self.inputs,
            "num_outputs": lowered.num_outputs,
            "state": [dataclasses.asdict(variable) for variable in lowered.state],
            "order": lowered.order,
            "num_shards": lowered.num_shards,
        }
        values = zip(lowered.state, self.state, strict=True)
        np.savez(
            os.path.join(directory, "state.npz"), **{variable.name: a for variable, a in values}
        )
        save_batches(os.path.join(directory, "batches.npz"), self.inputs, self.batches)
        # Last, as the mark of a complete program.
        with disk_files.writer(description_path) as writer:
            json.dump(description, writer, indent=2)
            writer.write("\n")


def save_batches(path: str, inputs: list[str], batches: list[list[np.ndarray]]) -> None:
    """Writes batches, lists of arrays in the order of the names `inputs`, as an npz file."""
    arrays = [np.stack(column) for column in zip(*batches, strict=True)]
    np.savez(path, **dict(zip(inputs, arrays, strict=True)))


def load(directory: str, batches_path: str | None = None) -> ExportedProgram:
    """Loads the program of a directory, or raises ValueError if it is not complete and valid;
    `batches_path` is an npz file to read instead of the directory's batches.npz."""
    description_path = os.path.join(directory, "program.json")
    if not os.path.isfile(description_path):
        raise ValueError(
            f"{directory} does not hold a complete exported program: program.json, which is "
            "written last, is missing. Export the program (again)"
        )
    lowered, inputs, num_cores, batch_size = _description(directory, description_path)
    layout = lowered.state
    state_path = os.path.join(directory, "state.npz")
    values = _arrays(state_path)
    missing = [variable.name for variable in layout if variable.name not in values]
    if missing:
        raise ValueError(
            f"{state_path} lacks {missing}, which program.json lists: export the program again"
        )
    state = [_typed(values[v.name], stablehlo.dtype(v.dtype)) for v in layout]
    for variable, value in zip(layout, state, strict=True):
        if value.shape != variable.shape:
            raise ValueError(
                f"{state_path}: {variable.name} has the shape {list(value.shape)}, but "
                f"program.json says {list(variable.shape)}: export the program again"
            )
    # A program that starts from NaN would only show NaN losses.
    bad = [v.name for v, value in zip(layout, state, strict=True) if not np.isfinite(value).all()]
    if bad:
        raise ValueError(f"{state_path}: these variables are not finite: {listed(bad)}")
    path = batches_path or os.path.join(directory, "batches.npz")
    return ExportedProgram(
        lowered=lowered,
        num_cores=num_cores,
        batch_size=batch_size,
        inputs=inputs,
        state=state,
        batches=_batches(path, inputs, lowered, num_cores),
    )


def _description(directory, path):
    """Returns (`LoweredStep`, names of its inputs, number of cores, batch size)."""
    values = json_files.read(path)
    num_cores, batch_size, num_outputs = (
        json_files.field(values, name, int, path)
        for name in ("num_cores", "batch_size", "num_outputs")
    )
    inputs, order, state = (
        json_files.items(json_files.field(values, name, list, path), kind, f"{path}: {name}")
        for name, kind in (("inputs", str), ("order", int), ("state", dict))
    )
    layout = [_state_variable(variable, path) for variable in state]
    step_path = os.path.join(directory, "step.stablehlo")
    with open(step_path, "rb") as reader:
        artifact = reader.read()
    try:
        text = stablehlo.from_portable(artifact)
        parameters = stablehlo.parameters(text)
    except (ValueError, RuntimeError, KeyError) as error:
        raise ValueError(
            f"{step_path} is not a program, or is truncated or damaged ({error}): export it again"
        ) from None
    # Programs that were exported before updates were shared do not have this number.
    num_shards = json_files.field(values, "num_shards", int, path, default=1)
    # The text and program.json are read apart. What does not fit would fail in the compiler, with a
    # message that names neither file.
    fits = len(parameters) == 1 + len(inputs) + len(order) and num_outputs > 0 and num_cores > 0
    fits = fits and num_shards > 0 and num_cores % num_shards == 0
    split = [(v.shape[v.split_axis]) for v in layout if v.split_axis is not None]
    fits = fits and all(num_shards > 1 and size % num_shards == 0 for size in split)
    if not fits or not all(0 <= number < len(layout) for number in order):
        raise ValueError(f"{path} does not describe the program beside it: export it again")
    lowered = LoweredStep(text, 1 + len(inputs), num_outputs, layout, order, num_shards)
    return lowered, inputs, num_cores, batch_size


def _state_variable(values, path):
    name, dtype = (json_files.field(values, key, str, path) for key in ("name", "dtype"))
    shape = json_files.items(json_files.field(values, "shape", list, path), int, f"{path}: shape")
    try:
        stablehlo.dtype(dtype)
    except TypeError:
        raise ValueError(f"{path}: {name} has the unknown dtype {dtype!r}") from None
    trainable = json_files.field(values, "trainable", bool, path)
    split_axis = values.get("split_axis")
    if split_axis is not None:
        split_axis = json_files.field(values, "split_axis", int, path)
        if not 0 <= split_axis < len(shape):
            raise ValueError(f"{path}: {name} does not have the split_axis {split_axis}")
    return StateVariable(name, tuple(shape), dtype, trainable, split_axis)


def _batches(path, inputs, lowered, num_cores):
    arrays, by_name = [], _arrays(path)
    # The file may be the user's own.
    if set(by_name) != set(inputs):
        raise ValueError(
            f"{path} holds {sorted(by_name)}; the program's inputs are {sorted(inputs)}"
        )
    wanted = stablehlo.parameters(lowered.text)[1 : lowered.num_inputs]
    for name, (shape, dtype) in zip(inputs, wanted, strict=True):
        array = _typed(by_name[name], dtype)
        expected = (num_cores * shape[0], *shape[1:])
        if array.shape[1:] != expected or not len(array):
            raise ValueError(
                f"{path}: {name} has shape {array.shape}; it must be [batches, "
                + ", ".join(map(str, expected))
                + "]"
            )
        arrays.append(array)
    if len({len(array) for array in arrays}) > 1:
        lengths = dict(zip(inputs, map(len, arrays), strict=True))
        raise ValueError(f"{path}: the inputs differ in their number of batches: {lengths}")
    return [list(batch) for batch in zip(*arrays, strict=True)]


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
