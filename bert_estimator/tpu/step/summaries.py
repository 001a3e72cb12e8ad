"""The v1 summaries of a step by the TPU's rules: the last step of a loop carries them."""

import tensorflow.compat.v1 as tf


class StepSummaries:
    """Writes the summaries of the session's graph, every so many steps.

    Args:
      config: the `RunConfig`, which says how often, and whether there is a directory.
      inputs: the step's `Inputs`. A summary of what they draw is left out, with a warning.

    Attributes:
      tensors: what the summaries are made of: a step computes these, and `write` makes the
        summaries of their values.
    """

    def __init__(self, config, inputs):
        self._every = config.save_summary_steps if config.model_dir else None
        self._merged, self.tensors = None, []
        if not self._every:
            return
        summaries = inputs.without_drawing(tf.get_collection(tf.GraphKeys.SUMMARIES))
        if summaries:
            self._merged = tf.summary.merge(summaries)
        # A summary that waits for the step's update must be made within the step.
        made = [summary for summary in summaries if summary.op.control_inputs]
        given = [summary for summary in summaries if not summary.op.control_inputs]
        self.tensors = made + [tensor for summary in given for tensor in summary.op.inputs]

    def are_due(self, step, iterations):
        """Returns whether summaries are due in a loop of so many steps after the step `step`."""
        return self._merged is not None and (
            step // self._every != (step + iterations) // self._every
        )

    def write(self, session, feed):
        """Returns the serialized summaries, with `feed` for what the step computed."""
        return session.run(self._merged, feed)
