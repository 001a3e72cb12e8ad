"""The v1 summaries of a step. Under TPU rules they show the last step of a loop.

A session prepares a step anew for each set of tensors that it fetches, which takes seconds for a
large network. So summaries that a step need not compute anything for, such as the loss, are fetched
in every step, not only when they are due.

On devices, a summary operation makes a string, which a core cannot do. So its input tensors are
outputs of the step, and a copy of the operation in the session's graph makes the summary on the
host. Summaries show the last step of a loop, with the values of core 0.
"""

import tensorflow.compat.v1 as tf


class LocalSummaries(tf.train.SummarySaverHook):
    """Writes the v1 summaries of a step in local mode; every step computes `loss`."""

    def __init__(self, loss: tf.Tensor, **options):
        super().__init__(**options)
        self._loss = loss

    def before_run(self, run_context):
        arguments = super().before_run(run_context)
        # A summary_op that is an operation, such as tf.no_op(), turns summaries off.
        summaries = [s for s in self._get_summary_op() or [] if isinstance(s, tf.Tensor)]
        if all(self._shows_loss(summary) for summary in summaries):
            # Fetched in every step, so that the session need not prepare a second set of fetches.
            arguments.fetches["summary"] = summaries
        return arguments

    def _shows_loss(self, summary):
        """Returns whether a summary shows scalars and all of these are the loss."""
        operation = summary.op
        if operation.type == "MergeSummary":
            return all(map(self._shows_loss, operation.inputs))
        return operation.type == "ScalarSummary" and operation.inputs[1] is self._loss


class StepSummaries:
    """Makes the summaries of the session's graph every `config.save_summary_steps` steps, without
    a summary that would draw a batch; if there is no model_dir, they are never due."""

    def __init__(self, config, inputs, scaffold):
        self._every = config.save_summary_steps if config.model_dir else None
        # A step computes the values of `tensors`, from which `write` makes the summaries.
        self._merged, self.tensors = None, []
        if not self._every:
            return
        summaries = tf.get_collection(tf.GraphKeys.SUMMARIES)
        if isinstance(scaffold.summary_op, tf.Operation):
            return  # Summaries are turned off, as by tf.no_op().
        if scaffold.summary_op is not None:
            known = {summary.ref() for summary in summaries}
            merged = _merged_in(tf.convert_to_tensor(scaffold.summary_op))
            summaries += [each for each in merged if each.ref() not in known]
        summaries = inputs.without_drawing(summaries)
        if summaries:
            self._merged = tf.summary.merge(summaries)
        # A summary that waits for the step's update must be computed by the step.
        made = [summary for summary in summaries if summary.op.control_inputs]
        given = [summary for summary in summaries if not summary.op.control_inputs]
        self.tensors = made + [tensor for summary in given for tensor in summary.op.inputs]

    def in_every_step(self, loss: tf.Tensor) -> bool:
        """Returns whether every step may compute `tensors`: they are constants, and the loss."""
        return all(tensor is loss or tensor.op.type == "Const" for tensor in self.tensors)

    def are_due(self, step: int, iterations: int) -> bool:
        """Returns whether summaries are due in a loop of `iterations` steps after `step`."""
        return self._merged is not None and (
            step // self._every != (step + iterations) // self._every
        )

    def write(self, session: tf.Session, feed: dict) -> bytes:
        """Returns the serialized summaries; `feed` has the values that the step computed."""
        return session.run(self._merged, feed)


def _merged_in(summary):
    """Returns the summaries that a summary was merged of, or a list of only the summary."""
    if summary.op.type != "MergeSummary":
        return [summary]
    return [each for merged in summary.op.inputs for each in _merged_in(merged)]


class DeviceSummaries:
    """Copies the summary operations of a step's graph into the current graph; `tensors` are the
    step's tensors that the summaries are made of."""

    def __init__(self, summaries: list[tf.Tensor]):
        self.tensors, self._placeholders = [], []
        for summary in summaries:
            self._copy(summary.op)

    def feed(self, values: list) -> dict:
        """Returns the feed_dict for the copies, from the values that one core has of `tensors`."""
        return dict(zip(self._placeholders, values, strict=True))

    def _copy(self, operation):
        # Tags and the like are constants, which the copy has too; the rest comes from the core.
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
