"""`tf.tpu.outside_compilation`: Python, prints and summaries of a model that run on the host.

A core cannot run them, and does not wait for the host within a step. So the outfeed sends the
tensors that they take, and the host runs them after the step, once for each core.
"""

from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from bert_estimator.graph import graph_walk
from bert_estimator.graph.variable_uses import READERS, functions_of


def effects(operations: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Returns those operations of an outside compilation that run for what they do.

    These have effects, such as prints and Python functions, and nothing outside of `operations`
    takes their results.
    """
    operations = set(operations)
    return [
        operation
        for operation in sorted(operations, key=lambda each: each._id)
        if operation.op_def.is_stateful
        and operation.graph.is_fetchable(operation)  # not in a condition or a loop of the old kind
        and operation.type not in {"VarHandleOp", *READERS}
        and not operation.type.startswith(("Random", "Truncated", "Multinomial"))
        and {c for t in operation.outputs for c in t.consumers()} <= operations
    ]


class HostComputation:
    """Holds a copy of a step's outside compilations in the host's graph, the current graph.

    Args:
      step: the graph of a core's step, a FuncGraph.
      operations: the operations of the step's graph that were built in outside compilations.
      num_runs: how many cores' tensors arrive, concatenated along axis 0.

    Attributes:
      tensors: the step's tensors to send. Their first axis is added, for the concatenation.
      operations: the operations of the host that run for each core.

    Raises:
      ValueError: an operation updates a variable.
    """

    name = "outside_compilation"

    def __init__(self, step: tf.Graph, operations: list[tf.Operation], num_runs: int):
        self._num_runs = num_runs
        wanted = effects(operations)
        copied, sent, outer_of = _parts(step, wanted, set(operations))
        with step.as_default():
            self.tensors = [tensor[tf.newaxis] for tensor in sent]
        self._placeholders = [tf.placeholder(tensor.dtype, tensor.shape) for tensor in sent]
        graph_def = tf.GraphDef(versions=step.graph_def_versions)
        graph_def.node.extend(each.node_def for each in copied)
        names = {each.name for each in copied}
        for node in graph_def.node:
            node.attr.pop("_class", None)
            # What the step does has been done when this runs.
            needed = [name for name in node.input if name[0] != "^" or name[1:] in names]
            node.input[:] = needed
        if any(functions_of(node) for node in graph_def.node):
            graph_def.library.CopyFrom(step.as_graph_def().library)
        given = {tensor.name: p for tensor, p in zip(sent, self._placeholders, strict=True)}
        self.operations = tf.import_graph_def(
            graph_def,
            input_map={**given, **{inner.name: outer for inner, outer in outer_of}},
            return_elements=[each.name for each in wanted],
            name="outside_compilation",
        )

    def run(self, session: tf.Session, operations, values: list) -> None:
        """Runs operations with the values of one step, core after core."""
        for core in range(self._num_runs):
            of_core = [value[core] for value in values]
            session.run(operations, dict(zip(self._placeholders, of_core, strict=True)))


def _parts(step, wanted, operations):
    """Finds what the wanted operations of a step need on the host.

    Returns:
      (the operations to copy, the step's tensors to send, pairs of a captured tensor and the tensor
      of the host's graph that it is).
    """
    captured = {inner.ref(): outer for outer, inner in step.captures}
    copied, sent, outer_of, waiting = [], {}, {}, list(wanted)
    while waiting:
        operation = waiting.pop()
        if operation in copied:
            continue
        copied.append(operation)
        for tensor in operation.inputs:
            if tensor.ref() in captured:
                outer = captured[tensor.ref()]
                if outer.op.type == "VarHandleOp":
                    raise ValueError(
                        f"tf.tpu.outside_compilation: {operation.name} ({operation.type}) takes "
                        f"the variable {outer.op.name}, which is on the cores. Read it before, and "
                        "update it outside of outside_compilation"
                    )
                outer_of[tensor.ref()] = (tensor, outer)
            elif _is_copied(tensor.op, operations):
                waiting.append(tensor.op)
            else:
                sent[tensor.ref()] = tensor
        waiting += [each for each in operation.control_inputs if each in operations]
    return copied, list(sent.values()), list(outer_of.values())


def _is_copied(operation, operations):
    """Returns whether the host runs an operation itself, and does not get its results."""
    if operation.type == "Const":
        return True
    return operation in operations and operation.type not in READERS


def without_host(operations: list[tf.Operation]) -> None:
    """Lets no operation of the step's graph wait for what the host runs."""
    on_host = set(effects(operations))
    for operation in graph_walk.all_after(on_host) if on_host else ():
        waits_for = list(operation.control_inputs)
        if operation not in on_host and not on_host.isdisjoint(waits_for):
            operation._remove_all_control_inputs()
            operation._add_control_inputs([each for each in waits_for if each not in on_host])
