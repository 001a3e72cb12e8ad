"""A training program in a directory, to run without TensorFlow: the step, its state, some batches.

step.stablehlo   the step of one core, as a portable StableHLO artifact
program.json     names, shapes and dtypes of its inputs and state; the cores that share a batch
state.npz        the values that the state starts from, by name
batches.npz      batches: for each input an array [number of batches, batch, ...], by name

program.json is written last: where it is, the rest is whole.
"""

import contextlib
import dataclasses
import json
import os
import zipfile
import zlib

import numpy as np

from bert_estimator.tpu.program import stablehlo
from bert_estimator.tpu.program.lowered_step import LoweredStep, StateVariable


@dataclasses.dataclass(frozen=True)
class ExportedProgram:
    """What a directory holds.

    Attributes:
      lowered: the `LoweredStep`. The first of its outputs is the loss, float32 [1].
      num_cores: cores that share a global batch.
      batch_size: examples in it.
      inputs: a name for each of the step's inputs but the first, which is the core's number: of a
        dict of features their keys.
      state: arrays, in the order of `lowered.state`.
      batches: list of batches, each a list of arrays in the order of `inputs`.
    """

    lowered: LoweredStep
    num_cores: int
    batch_size: int
    inputs: list
    state: list
    batches: list

    def save(self, directory):
        """Writes all of it into a directory, which is made if need be."""
        os.makedirs(directory, exist_ok=True)
        described_path = os.path.join(directory, "program.json")
        with contextlib.suppress(FileNotFoundError):
            os.remove(described_path)  # of another program, whose files are written over now
        lowered = self.lowered
        with open(os.path.join(directory, "step.stablehlo"), "wb") as writer:
            writer.write(stablehlo.portable(lowered.text))
        described = {
            "num_cores": self.num_cores,
            "batch_size": self.batch_size,
            "inputs": self.inputs,
            "num_outputs": lowered.num_outputs,
            "state": [dataclasses.asdict(variable) for variable in lowered.state],
            "order": lowered.order,
        }
        values = zip(lowered.state, self.state, strict=True)
        np.savez(
            os.path.join(directory, "state.npz"), **{variable.name: a for variable, a in values}
        )
        save_batches(os.path.join(directory, "batches.npz"), self.inputs, self.batches)
        with open(described_path + ".part", "w", encoding="utf-8") as writer:
            json.dump(described, writer, indent=2)
            writer.write("\n")
        os.replace(described_path + ".part", described_path)


def save_batches(path, inputs, batches):
    """Writes batches, lists of arrays in the order of the names `inputs`, as an npz file."""
    arrays = [np.stack(each) for each in zip(*batches, strict=True)]
    np.savez(path, **dict(zip(inputs, arrays, strict=True)))


def load(directory, batches_path=None):
    """Returns the `ExportedProgram` of a directory.

    Args:
      batches_path: an npz file to take the batches from, in place of the directory's.

    Raises:
      ValueError: the directory holds no program or not all of it, a file is damaged, or the batches
        are not those of its inputs.
    """
    described_path = os.path.join(directory, "program.json")
    if not os.path.isfile(described_path):
        raise ValueError(
            f"{directory} holds no exported program: there is no program.json in it, which is "
            "written last, when all else is whole. Export it (again)"
        )
    with open(described_path, encoding="utf-8") as reader:
        described = json.load(reader)
    with open(os.path.join(directory, "step.stablehlo"), "rb") as reader:
        text = stablehlo.from_portable(reader.read())
    layout = [
        StateVariable(**{**variable, "shape": tuple(variable["shape"])})
        for variable in described["state"]
    ]
    inputs = described["inputs"]
    lowered = LoweredStep(
        text, 1 + len(inputs), described["num_outputs"], layout, described["order"]
    )
    state_path = os.path.join(directory, "state.npz")
    values = _arrays(state_path)
    missing = [each.name for each in layout if each.name not in values]
    if missing:
        raise ValueError(f"{state_path} lacks {missing}, which program.json lists: export it again")
    state = [_typed(values[each.name], stablehlo.dtype(each.dtype)) for each in layout]
    path = batches_path or os.path.join(directory, "batches.npz")
    return ExportedProgram(
        lowered=lowered,
        num_cores=described["num_cores"],
        batch_size=described["batch_size"],
        inputs=inputs,
        state=state,
        batches=_batches(path, inputs, lowered, described["num_cores"]),
    )


def _batches(path, inputs, lowered, num_cores):
    arrays, found = [], _arrays(path)
    if set(found) != set(inputs):
        raise ValueError(f"{path} holds {sorted(found)}; the program's inputs are {sorted(inputs)}")
    wanted = stablehlo.parameters(lowered.text)[1 : lowered.num_inputs]
    for name, (shape, dtype) in zip(inputs, wanted, strict=True):
        array = _typed(found[name], dtype)
        expected = (num_cores * shape[0], *shape[1:])
        if array.shape[1:] != expected or not len(array):
            raise ValueError(
                f"{path}: {name} has shape {array.shape}; it must be [batches, "
                + ", ".join(map(str, expected))
                + "]"
            )
        arrays.append(array)
    if len({len(array) for array in arrays}) > 1:
        raise ValueError(f"{path}: {dict(zip(inputs, map(len, arrays), strict=True))} batches")
    return [list(batch) for batch in zip(*arrays, strict=True)]


def _arrays(path):
    """Returns the arrays of an npz file, by name.

    Raises:
      ValueError: it is none, or is damaged. numpy's own errors are of many kinds, without the path.
    """
    try:
        with open(path, "rb") as reader:
            return dict(np.load(reader))
    except (zipfile.BadZipFile, zlib.error, EOFError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is no npz file, or is cut short or damaged ({error}): write it again"
        ) from error


def _typed(array, dtype):
    """Gives an array its dtype: numpy reads bfloat16 as bytes without a type."""
    return array.view(dtype) if array.dtype.kind == "V" else array.astype(dtype)
