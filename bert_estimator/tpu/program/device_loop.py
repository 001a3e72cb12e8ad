"""The device loop: several steps in one call of the devices, with no visit of Python between them.

The program loops over a chunk of batches that are on the devices already. It runs as many of them
as it is told to, so one program serves chunks of every length. It ends at a loss that is not
finite: the weights are then those of that very step, as where steps run one by one.
"""

import dataclasses
from typing import Any

import numpy as np

from bert_estimator.tpu.program import devices, stablehlo

# can be on a device at a time, so their batches must not take much of its memory.
_MOST_STEPS = 16
_MOST_BYTES = 2**26


@dataclasses.dataclass(frozen=True)
class Chunk:
    """What a call of the loop gives, while the devices still work on it: reading it waits.

    Attributes:
      count: steps that ran, int32 [].
      outputs: list of arrays, one an output of the step: [steps, cores * rows, ...], of which the
        first `count` are meant.
      last: list of arrays, of the outputs that only the last step gives: [cores * rows, ...].
    """

    count: Any
    outputs: list
    last: list


class DeviceLoop:
    """Runs chunks of steps on some devices.

    Args:
      lowered: a `LoweredStep` whose first output is a core's loss, float32 [1].
      mesh: the `CoreMesh` that runs it.
      loop_length: how many steps there are between two visits of the host, at most.
      ends_at_nan: whether a loss that is not finite ends it, on all cores.
      same_batch: whether each core gets the whole of a batch, rather than its share of the rows.
      num_last: how many of the step's outputs, at their end, are wanted of a chunk's last step
        alone.

    Attributes:
      most_steps: how many batches a chunk may have.
    """

    def __init__(self, lowered, mesh, loop_length, ends_at_nan, same_batch=False, num_last=0):
        self._mesh = mesh
        self._batch = mesh.whole if same_batch else mesh.rows
        self._state = mesh.of_state(lowered.state)
        parameters = stablehlo.parameters(lowered.text)[: lowered.num_inputs]
        batch_bytes = sum(np.prod(shape) * dtype.itemsize for shape, dtype in parameters)
        self.most_steps = int(max(1, min(loop_length, _MOST_STEPS, _MOST_BYTES // batch_bytes)))
        self._loop = mesh.jit(
            _one_core_loop(lowered.one_core(), ends_at_nan, num_last, gather=mesh.num_hosts > 1),
            lowered.state,
            inputs=[None, None, 0, None if same_batch else 0],
            # A host can read what its own cores have, and the host functions get everything.
            outputs=[None, None, 1 if mesh.num_hosts == 1 else None, 0],
        )
        self._replica_ids = mesh.replica_ids()
        self._going = self._mesh.put(np.array(True), mesh.whole)

    def put_state(self, values):
        """Returns variables, as a dict of number in the state -> value, on the cores."""
        return self._mesh.put(values, {number: self._state[number] for number in values})

    def put_batch(self, arrays):
        """Returns a batch, a list of arrays, on the cores."""
        return self._mesh.put(arrays, self._batch)

    def run(self, state, batches):
        """Starts a chunk and does not wait for it.

        Args:
          state: list of arrays on the cores, which the devices take over.
          batches: 1 to `most_steps` batches on the cores.

        Returns:
          (new state, `Chunk`). After a loss that was not finite nothing runs any more.
        """
        missing = self.most_steps - len(batches)
        with devices.import_jax().enable_x64(True):
            state, self._going, count, outputs, last = self._loop(
                state,
                self._going,
                np.int32(len(batches)),
                self._replica_ids,
                batches + batches[-1:] * missing,
            )
        return state, Chunk(count, outputs, last)


def _one_core_loop(step, ends_at_nan, num_last, gather):
    """Returns the loop over one core's step, as a function that jax can trace."""
    jax = devices.import_jax()
    numpy, lax = jax.numpy, jax.lax

    def loop(state, going, length, replica_id, batches):
        inputs = [numpy.stack(tensors) for tensors in zip(*batches, strict=True)]
        outputs, _ = jax.eval_shape(step, state, [replica_id, *batches[0]])
        stacked = len(outputs) - num_last
        last = [numpy.zeros(o.shape, o.dtype) for o in outputs[stacked:]]
        outputs = [numpy.zeros((len(batches), *o.shape), o.dtype) for o in outputs[:stacked]]

        def one_more(carry):
            count, going, *_ = carry
            return going & (count < length)

        def one_step(carry):
            count, going, state, outputs, _ = carry
            batch = [lax.dynamic_index_in_dim(x, count, keepdims=False) for x in inputs]
            given, state = step(state, [replica_id, *batch])
            outputs = [
                lax.dynamic_update_index_in_dim(all_steps, output, count, 0)
                for all_steps, output in zip(outputs, given[:stacked], strict=True)
            ]
            if ends_at_nan:
                # The cores must agree on whether they go on.
                finite = numpy.isfinite(given[0][0]).astype(numpy.int32)
                going = lax.pmin(finite, "replica") == 1
            return count + 1, going, state, outputs, given[stacked:]

        start = (numpy.int32(0), going, state, outputs, last)
        count, going, state, outputs, last = lax.while_loop(one_more, one_step, start)
        if gather:
            outputs = [lax.all_gather(o, "replica", axis=1, tiled=True) for o in outputs]
        return state, going, count, outputs, last

    return loop
