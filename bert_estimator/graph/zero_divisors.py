"""Finds a division by zero that comes from a read of the global step at its first value.

By the TPU's rules, what a step computes from the global step sees it as before the step: 0 in the
first one. TF1 scripts that divide by `1 - beta**global_step` rely on another order.
"""

import tensorflow.compat.v1 as tf

from bert_estimator.graph import graph_walk

_DIVISIONS = ("RealDiv", "Div", "Xdivy")


def name_at(update: tf.Operation | tf.Tensor, step: int) -> str | None:
    """Returns the name of an operation of an update that divides by zero; None if none is known.

    Only divisors that depend on the global step and on constants alone are looked at.

    Args:
      update: the operation that updates the variables, or a tensor of it.
      step: the value of the global step.
    """
    graph, reads = update.graph, _reads_of_the_global_step(update.graph)
    for operation in graph_walk.all_before([getattr(update, "op", update)]):
        if operation.type not in _DIVISIONS:
            continue
        divisor = operation.inputs[1]
        before = set(graph_walk.all_before([divisor.op]))
        of_step = before & reads
        if not of_step or not _depends_on_nothing_else(before, reads):
            continue
        if not _value(graph, divisor, of_step, step).all():
            return operation.name
    return None


def _reads_of_the_global_step(graph):
    """Returns the operations of a graph that read the global step, if it is a resource."""
    handle = getattr(tf.train.get_global_step(), "handle", None)
    handles = [
        handle,
        *(inner for outer, inner in getattr(graph, "captures", ()) if outer is handle),
    ]
    return {
        operation
        for operation in graph.get_operations()
        if operation.type == "ReadVariableOp" and any(operation.inputs[0] is h for h in handles)
    }


def _depends_on_nothing_else(before, reads):
    handles = {read.inputs[0].op for read in reads}
    return all(
        operation.inputs or operation.type in ("Const", "NoOp") or operation in handles
        for operation in before
    )


def _value(graph, tensor, reads, step):
    """Returns the value of a tensor if the global step has a value."""
    names = [read.outputs[0].name for read in reads]
    definition = tf.graph_util.extract_sub_graph(graph.as_graph_def(), [tensor.op.name])
    with tf.Graph().as_default(), tf.Session() as session:
        values = [tf.constant(step, read.outputs[0].dtype) for read in reads]
        input_map = dict(zip(names, values, strict=True))
        (copy,) = tf.import_graph_def(definition, input_map, [tensor.name], name="")
        return session.run(copy)
