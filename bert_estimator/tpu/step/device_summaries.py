"""The v1 summaries of a model that runs on devices: written on the host, from the last step of a
loop, with what core 0 has.

A summary's operation makes text, which no core can. So the values that it takes leave the step, and
a copy of it in the session's graph takes them there.
"""

import tensorflow.compat.v1 as tf


class DeviceSummaries:
    """The summaries that a model_fn made.

    Args:
      summaries: what their operations gave, tensors of the step's graph.

    Attributes:
      tensors: the step's tensors that they take.
    """

    def __init__(self, summaries):
        self.tensors, self._placeholders = [], []
        for summary in summaries:
            self._copy(summary.op)

    def feed(self, values):
        """Returns the feed of the copies, of the values of `tensors` on one core."""
        return dict(zip(self._placeholders, values, strict=True))

    def _copy(self, operation):
        constants = [tf.get_static_value(tensor) for tensor in operation.inputs]
        taken = [t for t, c in zip(operation.inputs, constants, strict=True) if c is None]
        if any(tensor.dtype == tf.string for tensor in taken):
            tf.logging.warning(
                "The summary %s is not written: it takes text that a core would have to make",
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
