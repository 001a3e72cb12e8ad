"""A copy of what a saver writes: training goes on while the copy is written.

The copy and the operation that writes it are in the training's graph. The operation `Stage` holds
the tensors to be written, until the write takes them. On a CPU a held tensor shares the memory of
its variable: TensorFlow gives a variable new memory when it is updated while somebody else holds
its old value. So taking a snapshot costs milliseconds, and up to one more set of the variables in
memory, until it is written.

Code that reads a directory's checkpoints in the same process calls `wait_for` first, which waits
for the end of the write. At most one checkpoint is being written to a directory at a time.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from bert_estimator.graph import graph_walk
from bert_estimator.system import ticker

_LONG_SECS = 1  # A wait that is longer gets a line.

_pending = {}  # real path of a directory -> its `PendingWrite`


class PendingWrite:
    """Runs a function in a thread, which starts at once; the directory's last write must have
    ended. `what` is for messages, such as "the checkpoint of step 4"."""

    def __init__(
        self,
        directory: str,
        what: str,
        write: Callable[[], None],
        log_every_secs: float | None = None,
    ):
        self._path, self.what, self._write = os.path.realpath(directory), what, write
        self._log_every_secs = log_every_secs
        self._error = None
        self._thread = threading.Thread(target=self._run, name="checkpoint writer")
        _pending[self._path] = self
        self._thread.start()

    def raise_if_failed(self) -> None:
        """Raises the error of the write if it has ended with one, without waiting."""
        if not self._thread.is_alive() and self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Waits for the write's end, and raises its error."""
        self.join()
        self.raise_if_failed()

    def join(self) -> None:
        """Waits for the write's end; only `wait` and `raise_if_failed` say if it fails."""
        # What writes may look for checkpoints itself, and must not wait for its own end.
        if self._thread is threading.current_thread():
            return
        start = time.perf_counter()
        waiting = ticker.so_far(f"Waiting until {self.what} is written")
        with ticker.every(self._log_every_secs, waiting):
            self._thread.join()
        if (secs := time.perf_counter() - start) > _LONG_SECS:
            tf.logging.info("Waited %.0f s until %s was written.", secs, self.what)

    def _run(self):
        try:
            self._write()
        except BaseException as error:  # `wait` raises it in the thread of the training.
            self._error = error
        finally:
            with contextlib.suppress(KeyError):
                del _pending[self._path]


def wait_for(directory: str | None) -> None:
    """Waits until a checkpoint that this process is writing to a directory is complete; training
    raises the error if it fails."""
    write = _pending.get(os.path.realpath(directory)) if _pending and directory else None
    if write is not None:
        write.join()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_pending.clear)  # A forked process lacks the thread.


# Smaller checkpoints are written while training waits. It takes at most some tenths of a second,
# and then everybody who looks at the directory after a step finds the step's checkpoint.
LEAST_BYTES = 2**25

_WRITE = "SaveV2"
_FIRST_DATA_INPUT = 3  # after the prefix, the names and the slices
_KEEPS_MEMORY = ("Identity", "Reshape", "Squeeze", "ExpandDims")  # the output shares it


class Snapshot(tf.train.SessionRunHook):
    """Adds the copy to the graph, for the saver of `scaffold` or of the graph; it must be the last
    hook."""

    def __init__(self, scaffold: tf.train.Scaffold):
        self._scaffold = scaffold
        self.is_possible = False  # until `begin` has added the copy

    def begin(self) -> None:
        """Adds the operations, if the saver writes enough bytes."""
        # Other hooks may add variables, which the saver writes too, in their `begin` before this.
        saver = self._scaffold.saver or next(iter(tf.get_collection(tf.GraphKeys.SAVERS)), None)
        if not isinstance(saver, tf.train.Saver):
            return
        saver.build()  # The session would build it later, when the graph is complete.
        if saves_in_its_own_way(saver):
            return
        graph, definition = tf.get_default_graph(), saver.as_saver_def()
        save, filename = definition.save_tensor_name, definition.filename_tensor_name
        operations = _operations_of_write(graph.get_tensor_by_name(save).op)
        writes = [operation for operation in operations if operation.type == _WRITE]
        tensors = list(dict.fromkeys(t for op in writes for t in op.inputs[_FIRST_DATA_INPUT:]))
        sizes = [(t.shape.num_elements() or 0) * t.dtype.base_dtype.size for t in tensors]
        if sum(sizes) < LEAST_BYTES or not _is_known(operations):
            return
        dtypes = [tensor.dtype.base_dtype for tensor in tensors]
        with tf.device(None), tf.device("/cpu:0"):
            # Values that are not reads may be in memory that is written to later, as a TF1
            # variable's reference is.
            copies = [t if _is_read(t) else tf.raw_ops.DeepCopy(x=t) for t in tensors]
            self._take = tf.raw_ops.Stage(values=copies, shared_name="snapshot")
            values = tf.raw_ops.Unstage(dtypes=dtypes, shared_name="snapshot")
            self._release = tf.raw_ops.StageClear(dtypes=dtypes, shared_name="snapshot")
        # A second set of the saver's operations, which takes the copies in place of the variables.
        graph_def = tf.GraphDef(versions=graph.graph_def_versions)
        graph_def.node.extend(op.node_def for op in operations)
        self._save, self._filename = tf.import_graph_def(
            graph_def,
            {tensor.name: value for tensor, value in zip(tensors, values, strict=True)},
            [save, filename],
            name="snapshot",
        )
        self.is_possible = True

    def take(self, session: tf.Session) -> None:
        """Copies the present values; an earlier copy must have been written, or released."""
        session.run(self._take)

    def release(self, session: tf.Session) -> None:
        """Frees the memory of a copy that was not written."""
        session.run(self._release)

    def run_write(self, session: tf.Session, prefix: str) -> None:
        """Writes the copy to the files of a checkpoint."""
        # The write waits for the disk. In a thread of TensorFlow, training's steps would lack it.
        here = tf.RunOptions(inter_op_thread_pool=-1)
        session.run(self._save, {self._filename: prefix}, here)


def saves_in_its_own_way(saver: tf.train.Saver) -> bool:
    """Returns whether a saver has another method `save` than TensorFlow's, writes another format
    than V2, or has nothing to save."""
    if getattr(saver.save, "__func__", None) is not tf.train.Saver.save:
        return True
    settings = saver.as_saver_def()
    return settings is None or settings.version != settings.V2


def _operations_of_write(operation):
    """Returns the operations of a saver's write, without what computes the tensors to write."""

    def sources(each):
        inputs = each.inputs[:_FIRST_DATA_INPUT] if each.type == _WRITE else each.inputs
        return [*(tensor.op for tensor in inputs), *each.control_inputs]

    return list(graph_walk.reached([operation], sources))


def _is_known(operations):
    """Returns whether operations write nothing but the data of `SaveV2`."""
    others = [operation for operation in operations if operation.type != _WRITE]
    inputs = [tensor for operation in others for tensor in operation.inputs]
    return not any(
        [tensor.dtype == tf.resource or tensor.dtype._is_ref_dtype for tensor in inputs]
        + [operation.type in ("Save", "SaveSlices") for operation in others]
    )


def _is_read(tensor):
    """Returns whether a tensor is the value of a resource variable."""
    while tensor.op.type in _KEEPS_MEMORY:
        tensor = tensor.op.inputs[0]
    return tensor.op.type == "ReadVariableOp"
