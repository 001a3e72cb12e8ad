"""What a step has of the session's graph: variables, by their handles, and tensors, which the step
computes, if it can."""

from collections.abc import Iterable

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import cpp_shape_inference_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import handle_data_util

from bert_estimator.graph import graph_walk
from bert_estimator.graph.variable_uses import CALLERS, READERS, functions_of

# Operations that are not stateful, but that a step on cores cannot run: they run Python or read
# files, or are a condition or a loop of the old kind.
_NOT_ON_CORES = {
    "Enter", "Exit", "LoopCond", "MatchingFiles", "Merge", "NextIteration", "PyFuncStateless",
    "ReadFile", "Switch",
}  # fmt: skip


class PerCoreVariable:
    """Holds a variable of a step that is as many variables of the session, one for each core, in
    the order of the cores."""

    trainable = False

    def __init__(self, name: str, variables: list[tf.Variable]):
        self.name, self.variables = name, list(variables)
        self.dtype = self.variables[0].dtype
        self.slice_shape = self.variables[0].shape
        self._values = tf.stack([variable.read_value() for variable in self.variables])
        self.shape = self._values.shape  # [cores, *slice_shape]

    def _as_graph_element(self):  # what a session runs in its place
        return self._values

    def ref(self) -> "PerCoreVariable":
        return self  # A tf.Variable has a reference that can be a key of a dict.

    def deref(self) -> "PerCoreVariable":
        return self


def handle(name: str, shape: tf.TensorShape, dtype: tf.DType) -> tf.Tensor:
    """Returns a placeholder, in the current graph, of the handle of a variable."""
    with tf.control_dependencies(None):
        placeholder = tf.placeholder(tf.resource, [], name)
    # Operations infer the shapes of what they read from this.
    data = cpp_shape_inference_pb2.CppShapeInferenceResult.HandleData(is_set=True)
    data.shape_and_type.add(shape=shape.as_proto(), dtype=dtype.as_datatype_enum)
    handle_data_util.set_handle_data(placeholder, data)
    return placeholder


def computed_in_step(
    step: tf.Graph, variable_handles: Iterable[tf.Tensor], present: set[str]
) -> bool:
    """Makes a step compute what it takes from the session's graph, if it can; returns whether
    anything changed. Then `present`, names of the step's operations, is out of date."""
    handles = {tensor.op for tensor in variable_handles}
    changed = False
    for outer, inner in list(step.captures):
        if inner.op.name not in present or outer.op in handles:
            continue
        # It can if the tensor depends on constants and variables alone, as a learning rate does
        # that is made of the global step.
        operations = set(graph_walk.all_before([outer.op]))
        if not _are_repeatable([each.node_def for each in operations - handles], outer.graph):
            continue
        with step.as_default(), tf.control_dependencies(None):
            captured = {o: [step.capture(o.outputs[0])] for o in operations & handles}
            _replace(inner, graph_walk.copied(outer, captured, "of_session"))
        changed = True
    return changed


def _replace(tensor, other):
    """Has all that takes a tensor, or waits for it, take another tensor."""
    for consumer in list(tensor.consumers()):
        for place, each in enumerate(consumer.inputs):
            if each is tensor:
                consumer._update_input(place, other)
    # Control dependencies cannot be replaced one by one, so all are set anew.
    for waiting in list(tensor.op._control_outputs):
        firsts = [other.op if first is tensor.op else first for first in waiting.control_inputs]
        waiting._remove_all_control_inputs()
        waiting._add_control_inputs(firsts)


def _are_repeatable(nodes, graph):
    """Returns whether operations (NodeDefs) of the session's graph give the same in the step."""
    functions = {}
    if any(functions_of(node) for node in nodes):
        library = graph.as_graph_def().library.function
        functions = {function.signature.name: function for function in library}

    def is_repeatable(node):
        if node.op in CALLERS:
            called = [functions[function.name] for function in functions_of(node)]
            return all(map(is_repeatable, (inner for each in called for inner in each.node_def)))
        if node.op in READERS or node.op == "Assert":  # Cores do not run an Assert.
            return True
        definition = op_def_registry.get(node.op)
        runs_functions = any(value.HasField("func") for value in node.attr.values())
        return not (
            node.op.startswith("Placeholder")
            or node.op in _NOT_ON_CORES
            or runs_functions
            or definition is None
            or definition.is_stateful
        )

    return all(map(is_repeatable, nodes))
