"""The device loop: several steps in one call of the devices, without Python between them.

It is told how many of a chunk's batches to run, so one program serves chunks of every length. It
ends at a loss that is not finite, with the weights after that step, as if steps ran one by one.
"""

import dataclasses
from typing import Any

import numpy as np

from bert_estimator.cluster import hosts
from bert_estimator.tpu.program import devices, lowered_step, stablehlo
from bert_estimator.tpu.program.core_mesh import REPLICA, CoreMesh
from bert_estimator.tpu.program.lowered_step import LoweredStep

# A chunk saves a Python call per step, and this many steps save most of that time. Up to three
# chunks are on a device at a time, so their batches must not take much of its memory.
_MOST_STEPS = 16
_MOST_BYTES = 2**26

# The loops of this process. They are compiled when they first run.
LOOPS = lowered_step.KeptPrograms()


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Holds the result of a call of the loop; reading an array waits for the devices."""

    count: Any  # the number of steps that ran, int32 []
    # Arrays [steps, cores * rows, ...], one for each output that every step gives. Only the first
    # `count` steps are valid.
    outputs: list
    last: list  # arrays [cores * rows, ...], the outputs that only the last step gives


class DeviceLoop:
    """Runs chunks of steps on some devices.

    Args:
      lowered: a `LoweredStep` whose first output is a core's loss, float32 [1].
      loop_length: the most steps between two visits of the host.
      ends_at_nan: whether a loss that is not finite ends the loop, on all cores.
      same_batch: whether each core gets the whole batch, rather than its share of the rows.
      num_last: how many outputs, counted from the end of the step's outputs, are needed only from
        the last step of a chunk.
    """

    def __init__(
        self,
        lowered: LoweredStep,
        mesh: CoreMesh,
        loop_length: float,
        ends_at_nan: bool,
        same_batch: bool = False,
        num_last: int = 0,
    ):
        self._mesh = mesh
        self._batch = mesh.whole if same_batch else mesh.rows
        self._state = mesh.of_state(lowered.state)
        self._names = [variable.name for variable in lowered.state]
        self._is_compared = False  # with the values of the other hosts
        self._loop, batch_bytes = LOOPS.get(
            (lowered.key(), mesh.key, ends_at_nan, same_batch, num_last),
            lambda: _jitted(lowered, mesh, ends_at_nan, same_batch, num_last),
        )
        # The most batches that a chunk may have.
        self.most_steps = int(max(1, min(loop_length, _MOST_STEPS, _MOST_BYTES // batch_bytes)))
        self._replica_ids = mesh.replica_ids()
        # It stays on the cores from chunk to chunk: after a loss that is not finite, chunks that
        # are already under way run no steps.
        self._going = self._mesh.put(np.array(True), mesh.whole)

    def put_state(self, values: dict[int, np.ndarray]) -> dict:
        """Copies variables, a dict of index in the state -> value, to the cores; in the first call,
        a RuntimeError says that another host has other values."""
        if not self._is_compared:
            hosts.check_variables({self._names[n]: value for n, value in values.items()})
            self._is_compared = True
        return self._mesh.put(values, {number: self._state[number] for number in values})

    def put_batch(self, arrays: list[np.ndarray]) -> list:
        """Copies a batch, a list of arrays, to the cores."""
        return self._mesh.put(arrays, self._batch)

    def run(self, state: list, batches: list[list]) -> tuple[list, Chunk]:
        """Starts a chunk of 1 to `most_steps` batches on the cores, and does not wait for it;
        returns (new state, `Chunk`), and consumes the state."""
        # The loop is compiled for a full chunk: the last batch fills it, and is not run.
        padding = batches[-1:] * (self.most_steps - len(batches))
        # A list for each tensor of a batch, which the loop makes one array of.
        by_tensor = list(zip(*batches, *padding, strict=True))
        with devices.import_jax().enable_x64(True):
            state, self._going, count, outputs, last = self._loop(
                state,
                self._going,
                np.arange(self.most_steps) < len(batches),
                self._replica_ids,
                by_tensor,
            )
        return state, Chunk(count, outputs, last)


def _jitted(lowered, mesh, ends_at_nan, same_batch, num_last):
    """Returns the loop, which the cores compile when they first run it, and a batch's bytes."""
    lowered_step.keep_on_disk()
    parameters = stablehlo.parameters(lowered.text)[: lowered.num_inputs]
    loop = mesh.jit(
        _one_core_loop(lowered.one_core(), ends_at_nan, num_last, gather=mesh.num_hosts > 1),
        lowered.state,
        inputs=[None, None, 0, None if same_batch else 0],
        # A host can only read the arrays of its own cores, but the host functions get the rows
        # of all cores: with several hosts, the loop gathers them.
        outputs=[None, None, 1 if mesh.num_hosts == 1 else None, 0],
    )
    return loop, sum(np.prod(shape) * dtype.itemsize for shape, dtype in parameters)


def _one_core_loop(step, ends_at_nan, num_last, gather):
    """Returns the loop over one core's step, as a function that jax can trace."""
    jax = devices.import_jax()
    numpy, lax = jax.numpy, jax.lax

    def loop(state, going, are_real, replica_id, batches):
        inputs = [numpy.stack(tensors) for tensors in batches]
        first = [tensors[0] for tensors in batches]
        num_batches, length = len(are_real), numpy.sum(are_real)
        # The loop carries its outputs, so their arrays are made before the first step.
        _, outputs = jax.eval_shape(step, state, [replica_id, *first])
        stacked = len(outputs) - num_last
        last = [numpy.zeros(o.shape, o.dtype) for o in outputs[stacked:]]
        outputs = [numpy.zeros((num_batches, *o.shape), o.dtype) for o in outputs[:stacked]]

        def one_more(carry):
            count, going, *_ = carry
            return going & (count < length)

        def one_step(carry):
            count, going, state, outputs, _ = carry
            batch = [lax.dynamic_index_in_dim(x, count, keepdims=False) for x in inputs]
            state, results = step(state, [replica_id, *batch])
            outputs = [
                lax.dynamic_update_index_in_dim(all_steps, output, count, 0)
                for all_steps, output in zip(outputs, results[:stacked], strict=True)
            ]
            if ends_at_nan:
                # The cores must agree on whether they go on.
                finite = numpy.isfinite(results[0][0]).astype(numpy.int32)
                going = lax.pmin(finite, REPLICA) == 1
            return count + 1, going, state, outputs, results[stacked:]

        start = (numpy.int32(0), going, state, outputs, last)
        count, going, state, outputs, last = lax.while_loop(one_more, one_step, start)
        if gather:
            outputs = [lax.all_gather(o, REPLICA, axis=1, tiled=True) for o in outputs]
        return state, going, count, outputs, last

    return loop
