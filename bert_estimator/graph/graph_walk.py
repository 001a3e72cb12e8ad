"""Walks a graph along its operations, copies some, and says if it becomes a program for XLA."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_util

from bert_estimator.graph.variable_uses import functions_of


def operations_of(structure: object) -> set[tf.Operation]:
    """Returns the operations in a structure, and the operations of its tensors, whatever else is in
    it."""
    elements = tf.nest.flatten(structure, expand_composites=True)
    elements = [each for each in elements if isinstance(each, tf.Tensor | tf.Operation)]
    return {getattr(each, "op", each) for each in elements}


def sources_of(operation: tf.Operation) -> list[tf.Operation]:
    """Returns the operations that an operation takes tensors from, or waits for."""
    return [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]


def users_of(operation: tf.Operation) -> list[tf.Operation]:
    """Returns the operations that take tensors from an operation, or wait for it."""
    consumers = [c for tensor in operation.outputs for c in tensor.consumers()]
    return [*consumers, *operation._control_outputs]


def reached(
    operations: Iterable[tf.Operation],
    neighbours_of: Callable[[tf.Operation], Iterable[tf.Operation]],
) -> Iterator[tf.Operation]:
    """Yields operations, their neighbours, the neighbours of these, and so on, each once."""
    seen, waiting = set(), list(operations)
    while waiting:
        operation = waiting.pop()
        if operation not in seen:
            seen.add(operation)
            yield operation
            waiting += neighbours_of(operation)


def all_before(
    operations: Iterable[tf.Operation], ends: Collection[tf.Operation] = ()
) -> Iterator[tf.Operation]:
    """Yields the operations, and all operations that they depend on, without what only `ends`
    depend on."""
    return reached(operations, lambda each: [] if each in ends else sources_of(each))


def all_after(operations: Iterable[tf.Operation]) -> Iterator[tf.Operation]:
    """Yields the operations, and all operations that depend on them."""
    return reached(operations, users_of)


def is_computed_from(value: object, placeholders: Iterable[tf.Tensor]) -> bool:
    """Returns whether a tensor or operation depends on one of the placeholders."""
    if not isinstance(value, tf.Tensor | tf.Operation):
        return False
    sources = {placeholder.op for placeholder in placeholders}
    start = value if isinstance(value, tf.Operation) else value.op
    return any(operation in sources for operation in all_before([start]))


def copied(
    tensor: tf.Tensor, replaced: dict[tf.Operation, Sequence[tf.Tensor]], name: str
) -> tf.Tensor:
    """Copies a tensor to the current graph, with the operations that it depends on, except the
    replaced ones: operation -> what stands for its outputs; the copies' names begin with `name`."""
    new = [each for each in all_before([tensor.op], replaced) if each not in replaced]
    graph_def = tf.GraphDef(versions=tensor.graph.graph_def_versions)
    # A control input from a replaced operation without outputs has no stand-in: it is dropped.
    without_outputs = {
        f"^{operation.name}" for operation, outputs in replaced.items() if not outputs
    }
    for operation in new:
        node = graph_def.node.add()
        node.CopyFrom(operation.node_def)
        node.input[:] = [source for source in node.input if source not in without_outputs]
        node.attr.pop("_class", None)  # the operations beside which it was to run
        node.device = ""
    # A graph's whole library is only copied if it is needed: it may be large.
    if any(functions_of(node) for node in graph_def.node):
        graph_def.library.CopyFrom(tensor.graph.as_graph_def().library)
    used = {source for node in graph_def.node for source in node.input}
    used = {source if ":" in source or source[0] == "^" else f"{source}:0" for source in used}
    stand_ins = {
        **{f"{o.name}:{i}": t for o, outputs in replaced.items() for i, t in enumerate(outputs)},
        **{f"^{o.name}": outputs[0] for o, outputs in replaced.items() if outputs},
    }
    copies = tf.import_graph_def(
        graph_def,
        input_map={source: stand_ins[source] for source in used & stand_ins.keys()},
        return_elements=[operation.name for operation in new],
        name=name,
    )
    # A later call with the same dict takes these copies, so that what two tensors have in common is
    # computed once.
    replaced.update(zip(new, (copy.outputs for copy in copies), strict=True))
    return replaced[tensor.op][tensor.value_index]


def in_xla_program() -> bool:
    """Returns whether the current graph, built within an `XLAControlFlowContext`, becomes a program
    for XLA as a whole, as a TPU's step does."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.get_default_graph())
