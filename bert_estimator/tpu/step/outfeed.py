"""The outfeed: what the steps send to the host, and the host functions that receive it.

A host function is the `host_call` or the metric function of a `TPUEstimatorSpec`. It is built
once, in the host's graph, on placeholders for the step's tensors concatenated over the cores, and
run for every step on the outfeed's own thread, in order.
"""

import collections
import queue
import threading

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import summary_ops_v2

from bert_estimator.tpu.graph_walk import is_computed_from
from bert_estimator.tpu.spec import call_host_fn

# Bounds the memory held for a host function slower than the steps; then the steps wait for it.
_DEPTH = 64
_POLL_SECS = 0.1


class HostFunction:
    """A (function, tensors) pair of a spec, built on the host.

    Args:
      name: "host_call" or "eval_metrics", for messages.
      pair: the (function, list or dict of tensors) pair; its tensors live in the step.
      step_inputs: the placeholders that the step is fed through.
      num_replicas: how many cores' tensors are concatenated along axis 0.

    Attributes:
      tensors: the step's tensors to send out, in the order `feed` expects their values.
      result: what the function returned.

    Raises:
      RuntimeError: a tensor has no batch axis to concatenate along.
      ValueError: the function made a v1 summary, which nothing would write, or uses a tensor of
        the step that it was not given.
    """

    def __init__(self, name, pair, step_inputs, num_replicas):
        self.name = name
        own = pair[1]
        keys = sorted(own) if isinstance(own, dict) else range(len(own))
        self.tensors = [tf.convert_to_tensor(own[key]) for key in keys]
        for key, tensor in zip(keys, self.tensors, strict=True):
            if tensor.shape.rank == 0:
                raise RuntimeError(
                    f"{name} tensor {key!r} ({tensor.name}) is a scalar. Its values are "
                    "concatenated over the cores along axis 0, so it needs one: use "
                    "tf.reshape(tensor, [1])"
                )
        self.placeholders = [
            tf.placeholder(tensor.dtype, _gathered_shape(tensor.shape, num_replicas))
            for tensor in self.tensors
        ]
        summaries_before = len(tf.get_collection(tf.GraphKeys.SUMMARIES))
        given = (
            dict(zip(keys, self.placeholders, strict=True))
            if isinstance(own, dict)
            else self.placeholders
        )
        self.result = call_host_fn(pair, given)
        if len(tf.get_collection(tf.GraphKeys.SUMMARIES)) > summaries_before:
            raise ValueError(
                f"{name}: tf.compat.v1.summary cannot be used here, nothing would ever write it. "
                "Use bert_estimator.tpu.summary (or a tf.summary writer) with an explicit step"
            )
        for returned in tf.nest.flatten(self.result):
            if is_computed_from(returned, step_inputs):
                raise ValueError(
                    f"{name}: {returned.name}, which its function returns, uses a tensor of the "
                    f"step itself. The function runs on the host: add the tensor to {name}[1] and "
                    "use the argument in its place"
                )

    def feed(self, values):
        return dict(zip(self.placeholders, values, strict=True))

    def run(self, session, operations, values):
        """Runs operations that are computed from the placeholders, for one step's values."""
        session.run(operations, self.feed(values))


class Predictions:
    """A step's predictions, which go to the caller of `predict` rather than to a function.

    Args:
      predictions: dict name -> tensor of the step.

    Attributes:
      tensors: as those of a `HostFunction`.
      waiting: deque of the predictions that nobody has taken yet: a dict of arrays each.
    """

    name = "predictions"

    def __init__(self, predictions):
        self._keys = list(predictions)
        self.tensors = [tf.convert_to_tensor(predictions[key]) for key in self._keys]
        self.waiting = collections.deque()

    def run(self, session, operations, values):
        self.waiting.append(dict(zip(self._keys, values, strict=True)))


class Outfeed:
    """Hands values over to a function that runs on a thread of its own, in order.

    Args:
      receive: function of what `put` was given.
      error: the `FirstError` that all outfeeds of a step share.
      depth: how many values may wait; then `put` waits.
    """

    def __init__(self, receive, error, depth=_DEPTH):
        self._receive = receive
        self._values = queue.Queue(maxsize=depth)
        self._error = error
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outfeed", daemon=True)

    def start(self):
        self._thread.start()

    def put(self, values):
        """Hands values over. Raises the first error of any outfeed, from values before them."""
        while not self._stopping.is_set():
            self._error.raise_if_any()
            try:
                return self._values.put(values, timeout=_POLL_SECS)
            except queue.Full:
                continue

    def drain(self):
        """Returns when all values handed over have been processed; raises the first error."""
        with self._values.all_tasks_done:
            while self._values.unfinished_tasks and self._thread.is_alive():
                self._values.all_tasks_done.wait(_POLL_SECS)
        self._error.raise_if_any()

    def stop(self):
        self._stopping.set()

    def join(self, timeout_secs):
        if self._thread.is_alive():
            self._thread.join(timeout_secs)

    def _run(self):
        with self._error.recorded():
            while not self._stopping.is_set():
                try:
                    values = self._values.get(timeout=_POLL_SECS)
                except queue.Empty:
                    continue
                self._receive(values)
                self._values.task_done()


def summary_writer_init_ops():
    """Operations that open the `tf.summary` writers made in the current graph so far."""
    return summary_ops_v2.summary_writer_initializer_op()


def summary_writer_flush_ops():
    """Operations that flush them. Made before the graph is finalized."""
    writers = {op.inputs[0].ref(): op.inputs[0] for op in summary_writer_init_ops()}
    return [tf.raw_ops.FlushSummaryWriter(writer=writer) for writer in writers.values()]


def _gathered_shape(shape, num_replicas):
    if shape.rank is None:
        return shape
    first, *rest = shape.as_list()
    return [None if first is None else first * num_replicas, *rest]
