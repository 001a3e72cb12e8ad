"""The v1 summaries of a model that runs on devices.

A summary operation makes a string, which a core cannot do. So its input tensors are outputs of the
step, and a copy of the operation in the session's graph makes the summary on the host. Summaries
show the last step of a loop, with the values of core 0.
"""

import tensorflow.compat.v1 as tf


class DeviceSummaries:
    """Copies the summary operations of a step's graph into the current graph.

    Args:
      summaries: list of the operations' output tensors, in the step's graph.

    Attributes:
      tensors: list of the tensors in the step's graph that the summaries are made of.
    """

    def __init__(self, summaries: list[tf.Tensor]):
        self.tensors, self._placeholders = [], []
        for summary in summaries:
            self._copy(summary.op)

    def feed(self, values: list) -> dict:
        """Returns the feed_dict for the copies, from the values that one core has of `tensors`."""
        return dict(zip(self._placeholders, values, strict=True))

    def _copy(self, operation):
        constants = [tf.get_static_value(tensor) for tensor in operation.inputs]
        taken = [t for t, c in zip(operation.inputs, constants, strict=True) if c is None]
        if any(tensor.dtype == tf.string for tensor in taken):
            tf.logging.warning(
                "The summary %s is not written: its input is a string, which a core cannot make",
                operation.name,
            )
            return
        placeholders = [tf.placeholder(tensor.dtype, tensor.shape) for tensor in taken]
        self.tensors += taken
        self._placeholders += placeholders
        given = iter(placeholders)
        copy = tf.get_default_graph().create_op(
            operation.type,
            [tf.constant(c, t.dtype) if c is not None else next(given)
             for t, c in zip(operation.inputs, constants, strict=True)],
            [tf.string],
            name=operation.name,
            attrs={k: v for k, v in operation.node_def.attr.items() if not k.startswith("_")},
        )  # fmt: skip
        tf.add_to_collection(tf.GraphKeys.SUMMARIES, copy.outputs[0])
