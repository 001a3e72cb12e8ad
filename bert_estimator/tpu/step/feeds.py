"""The infeed and the outfeed: threads that bring batches to the steps, and take results from them.

The infeed draws batches ahead of the compute, up to a bounded number. The outfeed hands what the
steps send to the host functions that receive it. A host function is the `host_call` or the metric
function of a `TPUEstimatorSpec`. It is built once, in the host's graph, on placeholders. It runs
for every step, in order, on the outfeed's own thread, and is fed the values of the step's tensors,
concatenated over the cores.
"""

import collections
import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import summary_ops_v2

from bert_estimator.graph.graph_walk import is_computed_from
from bert_estimator.tpu import errors
from bert_estimator.tpu.errors import FirstError
from bert_estimator.tpu.spec import call_host_fn

# Two batches in flight and two waiting hide the jitter of an input pipeline. More only cost memory.
INFEED_DEPTH = 4
_POLL_SECS = 0.1


class EndOfInput(Exception):
    """Is raised when the data has ended: by `draw`, and by `Infeed.get` after the last batch."""


class _Worker:
    """Runs a subclass's `_run` on a thread of its own."""

    def __init__(self, name: str):
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_secs: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout_secs)


class Infeed(_Worker):
    """Runs `draw()` on a thread, at most `limit` times (None: to the end of the data), and hands
    the batches out in order; `depth` of them may wait."""

    def __init__(
        self, draw: Callable, limit: int | None = None, delay_secs: float = 0, depth=INFEED_DEPTH
    ):
        super().__init__("infeed")
        self._draw = draw
        # More would consume data that no step uses.
        self._limit = limit
        self._delay_secs = delay_secs
        self._depth = depth
        self._error = errors.FirstError()
        self._batches = collections.deque()
        self._has_ended = self._is_at_limit = False
        # Notified when batches come or go, when the thread ends, and when it is to end.
        self._changed = threading.Condition()
        self.drawn = 0  # batches
        self.waited_secs = 0.0  # by `get`, in total

    def get(self, interrupted: Callable[[], bool] = lambda: False):
        """Returns the next batch, or None if `interrupted()` becomes true while waiting for it; at
        the end it raises `EndOfInput`, or the error of `draw`."""
        start = time.perf_counter()
        try:
            with self._changed:
                while not interrupted():
                    if self._batches:
                        self._changed.notify_all()
                        return self._batches.popleft()
                    # Only here, so that the batches drawn before an error are used first.
                    if self._has_ended or self._is_at_limit:
                        self._error.raise_if_any()
                        raise EndOfInput
                    self._changed.wait(_POLL_SECS)  # `interrupted` tells nobody when it changes
            return None
        finally:
            self.waited_secs += time.perf_counter() - start

    def has_batch(self) -> bool:
        """Returns whether `get` would not have to wait."""
        return bool(self._batches)

    def raise_limit(self, number: int) -> None:
        """Lets so many more batches be drawn, or fewer if the number is negative."""
        if self._limit is not None and number:
            with self._changed:
                self._limit += number
                # `get` must not take the old limit for the end before the thread wakes.
                self._is_at_limit &= not self._may_go_on()
                self._changed.notify_all()

    def _may_go_on(self):
        return self._limit is None or self.drawn < self._limit or self._stopping.is_set()

    def stop(self) -> None:
        """Asks the thread to end, without waiting for a `draw` that is running."""
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()

    def _run(self):
        try:
            with self._error.recorded():
                self._draw_all()
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _draw_all(self):
        self._stopping.wait(self._delay_secs)
        while True:
            with self._changed:
                self._is_at_limit = not self._may_go_on()
                self._changed.notify_all()
                # The thread stays at the limit, which may still be raised.
                self._changed.wait_for(self._may_go_on)
            if self._stopping.is_set():
                return
            try:
                batch = self._draw()
            except EndOfInput:
                return
            self.drawn += 1
            with self._changed:
                self._changed.wait_for(
                    lambda: len(self._batches) < self._depth or self._stopping.is_set()
                )
                if not self._stopping.is_set():
                    self._batches.append(batch)
                    self._changed.notify_all()


# If a host function is slower than the steps, the steps wait when so many values wait for it. This
# bounds the memory.
_OUTFEED_DEPTH = 64
_LOOK_SECS = 0.1
_WAKE = object()  # what an outfeed gets when it is stopped


class HostFunction:
    """Builds the function of a spec's (function, list or dict of the step's tensors) pair on the
    host, for the tensors of `num_replicas` replicas, concatenated along axis 0."""

    def __init__(self, name: str, pair: tuple, step_inputs: list[tf.Tensor], num_replicas: int):
        self.name = name
        sent = pair[1]
        keys = sorted(sent) if isinstance(sent, dict) else range(len(sent))
        self.tensors = [sent[key] for key in keys]
        for key, tensor in zip(keys, self.tensors, strict=True):
            if tensor.shape.rank == 0:
                raise RuntimeError(
                    f"{name} tensor {key!r} ({tensor.name}) is a scalar. Its values are "
                    "concatenated over the cores along axis 0, so it needs an axis: use "
                    "tf.reshape(tensor, [1])"
                )
        self.placeholders = [
            tf.placeholder(tensor.dtype, _gathered_shape(tensor.shape, num_replicas))
            for tensor in self.tensors
        ]
        summaries_before = len(tf.get_collection(tf.GraphKeys.SUMMARIES))
        given = (
            dict(zip(keys, self.placeholders, strict=True))
            if isinstance(sent, dict)
            else self.placeholders
        )
        self.result = call_host_fn(pair, given)
        self.operations = [] if self.result is None else self.result  # that run for each step
        if len(tf.get_collection(tf.GraphKeys.SUMMARIES)) > summaries_before:
            raise ValueError(
                f"{name}: tf.compat.v1.summary cannot be used here: it would never be written. "
                "Use bert_estimator.tpu.summary (or a tf.summary writer) with an explicit step"
            )
        for returned in tf.nest.flatten(self.result):
            if is_computed_from(returned, step_inputs):
                raise ValueError(
                    f"{name}: {returned.name}, which its function returns, uses a tensor of the "
                    f"step itself. The function runs on the host: add the tensor to {name}[1] and "
                    "use the function's argument instead"
                )

    def run(self, session: tf.Session, values: list) -> None:
        """Runs the operations with the values of one step."""
        session.run(self.operations, dict(zip(self.placeholders, values, strict=True)))


class Predictions:
    """Receives a step's predictions, for the caller of `predict`."""

    name, operations = "predictions", ()

    def __init__(self, predictions: dict[str, tf.Tensor]):
        self._keys = list(predictions)
        self.tensors = [tf.convert_to_tensor(predictions[key]) for key in self._keys]
        self.waiting = collections.deque()

    def run(self, session: tf.Session, values: list) -> None:
        self.waiting.append(dict(zip(self._keys, values, strict=True)))


class Outfeed(_Worker):
    """Hands values, in order, to a function that runs on a thread of its own; `put` waits if there
    are more than `depth`. All outfeeds of a step share the `FirstError`."""

    def __init__(self, receive: Callable, error: FirstError, depth: int = _OUTFEED_DEPTH):
        super().__init__("outfeed")
        self._receive = receive
        self._values = queue.Queue(maxsize=depth)
        self._error = error

    def put(self, values) -> None:
        """Hands values over; if an outfeed has failed on earlier values, raises its error."""
        while not self._stopping.is_set():
            self._error.raise_if_any()
            try:
                return self._values.put(values, timeout=_LOOK_SECS)
            except queue.Full:
                continue

    def drain(self, secs: float = math.inf) -> None:
        """Waits, at most so many seconds, until all values that were handed over are processed;
        raises the first error."""
        # Not `join`: it would never return if the thread has ended by an error.
        end = time.monotonic() + secs
        with self._values.all_tasks_done:
            while (
                self._values.unfinished_tasks and self._thread.is_alive() and time.monotonic() < end
            ):
                self._values.all_tasks_done.wait(_LOOK_SECS)
        self._error.raise_if_any()

    def stop(self) -> None:
        self._stopping.set()
        with contextlib.suppress(queue.Full):  # then the thread does not wait for a value
            self._values.put_nowait(_WAKE)

    def _run(self):
        with self._error.recorded():
            while True:
                values = self._values.get()
                if self._stopping.is_set():
                    return
                self._receive(values)
                self._values.task_done()


def summary_writer_flush_ops() -> list[tf.Operation]:
    """Returns operations that flush the `tf.summary` writers of the graph, and adds them to it."""
    # A writer may have several operations that open it.
    opening = summary_ops_v2.summary_writer_initializer_op()
    writers = {op.inputs[0].ref(): op.inputs[0] for op in opening}
    return [tf.raw_ops.FlushSummaryWriter(writer=writer) for writer in writers.values()]


def _gathered_shape(shape, num_replicas):
    if shape.rank is None:
        return shape
    first, *rest = shape.as_list()
    return [None if first is None else first * num_replicas, *rest]
