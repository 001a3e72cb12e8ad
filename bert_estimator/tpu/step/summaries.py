"""The v1 summaries of a step under TPU rules: they show the last step of a loop."""

import tensorflow.compat.v1 as tf


class StepSummaries:
    """Makes the summaries of the session's graph every `config.save_summary_steps` steps.

    Args:
      config: the `RunConfig`. If it does not have a model_dir, summaries are never due.
      inputs: the step's `Inputs`. A summary that would draw a batch is left out, with a warning.

    Attributes:
      tensors: the tensors that the summaries are made of. A step computes their values, and `write`
        makes the summaries from the values.
    """

    def __init__(self, config, inputs):
        self._every = config.save_summary_steps if config.model_dir else None
        self._merged, self.tensors = None, []
        if not self._every:
            return
        summaries = inputs.without_drawing(tf.get_collection(tf.GraphKeys.SUMMARIES))
        if summaries:
            self._merged = tf.summary.merge(summaries)
        # A summary that waits for the step's update must be computed by the step.
        made = [summary for summary in summaries if summary.op.control_inputs]
        given = [summary for summary in summaries if not summary.op.control_inputs]
        self.tensors = made + [tensor for summary in given for tensor in summary.op.inputs]

    def are_due(self, step: int, iterations: int) -> bool:
        """Returns whether summaries are due in a loop of `iterations` steps after `step`."""
        return self._merged is not None and (
            step // self._every != (step + iterations) // self._every
        )

    def write(self, session: tf.Session, feed: dict) -> bytes:
        """Returns the serialized summaries; `feed` has the values that the step computed."""
        return session.run(self._merged, feed)
