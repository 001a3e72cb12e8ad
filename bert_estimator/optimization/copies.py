"""Copies of operations: what is computed alike from many tensors is built once, then copied.

TensorFlow copies an operation several times as fast as it makes one from Python, and an optimizer
has up to 28 operations for each of BERT-base's 206 variables.
"""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from bert_estimator.optimization.compiled_start import CompiledStart
from bert_estimator.optimization.parameter import Parameter, Piece

# Stateful operations that make and read slots. Any other has to run for each parameter: it draws
# random numbers, checks something, or calls Python.
_OF_SLOTS = ("VarHandleOp", "VarIsInitializedOp", "AssignVariableOp", "ReadVariableOp")


class FirstUpdate:
    """Has the pieces compute the first update of a kind, and copies it for other parameters.

    Parameters are of one kind if they have the same shape and dtype, and each piece has the same
    `kind` for them (see `Piece`). If copies would not do what the pieces do, the pieces are called
    for each parameter. If it is worth it, the first operations of all these updates are a
    `CompiledStart`.
    """

    def __init__(self, pieces: Sequence[Piece], gradient: tf.Tensor, parameter: Parameter):
        """Applies the pieces.

        Args:
          pieces: the pieces of the optimizer.
          gradient: float32, of the parameter's shape.
          parameter: the first parameter of its kind.
        """
        graph = tf.get_default_graph()
        context = tf.no_op().control_inputs  # of the caller; an import applies it to the copies
        before = len(graph.get_operations())
        # Copies have another gradient in place of this one, which must not be something that they
        # share, too, such as the learning rate.
        gradient = tf.identity(gradient)
        self._assignments = parameter.apply(pieces, gradient)
        self._operations = graph.get_operations()[before:]
        self._pieces, self._parameter = pieces, parameter
        self._inputs = [gradient, *parameter.inputs]
        self._can_be_copied = _can_be_copied(self._operations, self._inputs, context)
        self._others = []  # (parameter, its inputs)
        self._called = {}  # parameter -> its assignments, if they cannot be copied

    def add(self, gradient: tf.Tensor, parameter: Parameter) -> None:
        """Adds a parameter of the same kind, with its gradient."""
        if self._can_be_copied:
            self._others.append((parameter, [gradient, *parameter.inputs_like(self._parameter)]))
        else:
            self._called[parameter] = parameter.apply(self._pieces, gradient)

    def assignments(self) -> dict[Parameter, list[tuple[tf.Variable, tf.Tensor]]]:
        """Makes the copies; returns the assignments of all parameters."""
        found = {self._parameter: self._assignments, **self._called}
        outputs = [value for _, value in self._assignments]
        ratio = self._parameter.trust_ratio
        outputs += [] if ratio is None else [ratio]
        updates, operations, inputs = self._others, self._operations, self._inputs
        others = [each for _, each in updates]
        start = CompiledStart(operations if self._can_be_copied else [], inputs, outputs)
        if start.operations:
            # The first update becomes a copy, too, so that its start is compiled.
            updates = [(self._parameter, inputs), *updates]
            others = [[*each, *start(each)] for _, each in updates]
            operations = [each for each in operations if each not in start.operations]
            inputs = [*inputs, *start.results]
        copies = copy(operations, outputs, inputs, others, "copies")
        for (parameter, _), values in zip(updates, copies, strict=True):
            if ratio is not None:
                parameter.trust_ratio = values.pop()
            found[parameter] = parameter.assignments_like(self._parameter, values)
        return found


def copy(
    operations: Sequence[tf.Operation],
    outputs: Sequence[tf.Tensor],
    inputs: Sequence[tf.Tensor],
    others: Sequence[Sequence[tf.Tensor]],
    name: str,
) -> list[list[tf.Tensor]]:
    """Computes from other tensors what was computed from the given ones.

    Args:
      operations: operations of the current graph, in the order of their creation. An operation is
        copied if it depends on an input, directly or through other operations. All copies use the
        results of the other operations. They do not wait for other operations that are control
        inputs of the originals. (`FirstUpdate` does not copy operations with such control inputs.)
      outputs: tensors that the operations compute.
      inputs: tensors of the current graph.
      others: for each copy, tensors with the dtypes and static shapes of `inputs`, of the current
        graph or of one around it, such as the graph that has the `tf.cond` of the current one, or
        eager tensors.
      name: name scope of the copies.

    Returns:
      A list with an item for each of `others`: what `outputs` are, computed from them.
    """
    if not others:
        return []
    graph = tf.get_default_graph()
    # A definition is imported by names, so an outer tensor has to enter this graph before.
    others = [[x if is_in(graph, x) else tf.identity(x) for x in each] for each in others]
    positions = {tensor.ref(): i for i, tensor in enumerate(inputs)}
    copied = {operation: operation.node_def for operation in _dependents(operations, positions)}
    definition = tf.GraphDef(versions=graph.graph_def_versions)
    names = {}  # an existing tensor that copies read -> its name in the definition

    def existing(tensor, number):
        """Returns what a copy has in place of a tensor; None if it is the copy's own."""
        if tensor.ref() in positions:
            return others[number][positions[tensor.ref()]]
        return None if is_in(graph, tensor) and tensor.op in copied else tensor

    def input_name(tensor, number):
        found = existing(tensor, number)
        if found is None:
            return f"{number}/{tensor.name}"
        return names.setdefault(found.ref(), f"existing_{len(names)}:0")

    for number in range(len(others)):
        for operation, original in copied.items():
            node = definition.node.add()
            node.CopyFrom(original)
            node.name = f"{number}/{operation.name}"
            # These are the caller's contexts, which the import applies to the copies.
            for attribute in ("_class", "_tpu_replicate", "_xla_compile_id"):
                node.attr.pop(attribute, None)
            node.input[:] = [input_name(tensor, number) for tensor in operation.inputs]
            waits_for = [each for each in operation.control_inputs if each in copied]
            node.input.extend(f"^{number}/{each.name}" for each in waits_for)
    wanted = [(tensor, number) for number in range(len(others)) for tensor in outputs]
    own = [f"{number}/{x.name}" for x, number in wanted if existing(x, number) is None]
    input_map = {name_of: reference.deref() for reference, name_of in names.items()}
    made = iter(tf.import_graph_def(definition, input_map, own, name=name))
    found = [existing(x, number) for x, number in wanted]
    found = [next(made) if tensor is None else tensor for tensor in found]
    return [found[i : i + len(outputs)] for i in range(0, len(found), len(outputs))]


def _dependents(operations, inputs):
    """Returns the operations that depend on the inputs, or wait for an operation that does."""
    found = {}  # the operations, in their order
    for operation in operations:
        before = [tensor.op for tensor in operation.inputs] + operation.control_inputs
        if any(tensor.ref() in inputs for tensor in operation.inputs) or any(
            each in found for each in before
        ):
            found[operation] = None
    return list(found)


def _can_be_copied(operations, inputs, context):
    """Tells whether copies compute what the caller of these operations would build again."""
    copied = set(_dependents(operations, {tensor.ref() for tensor in inputs}))
    if any(
        operation.type == "NextIteration"  # a loop of TF1's control flow
        or (operation.op_def.is_stateful and operation.type not in _OF_SLOTS)
        for operation in operations
    ):
        return False
    waits_for = {each for operation in copied for each in operation.control_inputs}
    return waits_for <= copied | {*context}


def is_in(graph, tensor):
    """Tells whether a tensor is of this graph: not of one around it, nor an eager tensor."""
    return getattr(tensor, "graph", None) is graph
