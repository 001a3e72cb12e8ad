"""Variables that have another value on each core, and tensors of the session that a step uses."""

from collections.abc import Iterable

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import cpp_shape_inference_pb2, function_pb2
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
    """A variable of a step that is as many variables of the session, one for each core.

    Args:
      name: its name.
      variables: the session's resource variables, in the order of the cores.

    Attributes:
      name, variables: as above.
      dtype, slice_shape: the dtype and the shape of each variable.
      shape: the shape of the value that a run of a session gives for it: [cores, *slice_shape].
    """

    trainable = False

    def __init__(self, name: str, variables: list[tf.Variable]):
        self.name, self.variables = name, list(variables)
        self.dtype = self.variables[0].dtype
        self.slice_shape = self.variables[0].shape
        self._values = tf.stack([variable.read_value() for variable in self.variables])
        self.shape = self._values.shape

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
    data = cpp_shape_inference_pb2.CppShapeInferenceResult.HandleData(is_set=True)
    data.shape_and_type.add(shape=shape.as_proto(), dtype=dtype.as_datatype_enum)
    handle_data_util.set_handle_data(placeholder, data)
    return placeholder


def computed_in_step(
    step: tf.Graph, variable_handles: Iterable[tf.Tensor], present: set[str]
) -> bool:
    """Makes a step compute what it takes from the session's graph, if it can.

    It can if the tensor depends on constants and variables alone, as a learning rate does that is
    made of the global step.

    Args:
      step: the step's graph, a FuncGraph.
      variable_handles: the handles of the session's variables.
      present: names of the step's operations that matter.

    Returns:
      Whether anything changed. Then `present` is out of date.
    """
    handles = {tensor.op for tensor in variable_handles}
    changed = False
    for outer, inner in list(step.captures):
        if inner.op.name not in present or outer.op in handles:
            continue
        operations = list(graph_walk.all_before([outer.op]))
        nodes = [operation.node_def for operation in operations if operation not in handles]
        called = any(functions_of(node) for node in nodes)
        functions = (
            outer.graph.as_graph_def().library if called else function_pb2.FunctionDefLibrary()
        )
        if not _are_repeatable(nodes, {each.signature.name: each for each in functions.function}):
            continue
        copied = _copied(outer, nodes, functions, [op for op in operations if op in handles], step)
        _replace(inner, copied)
        changed = True
    return changed


def _replace(tensor, other):
    """Has all that takes a tensor, or waits for it, take another tensor."""
    for consumer in list(tensor.consumers()):
        for place, each in enumerate(consumer.inputs):
            if each is tensor:
                consumer._update_input(place, other)
    for waiting in list(tensor.op._control_outputs):
        firsts = [other.op if first is tensor.op else first for first in waiting.control_inputs]
        waiting._remove_all_control_inputs()
        waiting._add_control_inputs(firsts)


def _are_repeatable(nodes, functions):
    """Returns whether operations give the same in the step as in the session.

    Args:
      nodes: their NodeDefs.
      functions: function name -> FunctionDef, for the functions that they run.
    """

    def is_repeatable(node):
        if node.op in CALLERS:
            called = [functions[function.name] for function in functions_of(node)]
            return all(_are_repeatable(function.node_def, functions) for function in called)
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


def _copied(tensor, nodes, functions, handles, step):
    """Returns the tensor of the step that operations of the session, copied to it, give.

    Args:
      tensor: the session's tensor.
      nodes: NodeDefs of the operations that it depends on, apart from the handles.
      functions: the FunctionDefLibrary that the nodes need.
      handles: list of the operations that give the handles of the session's variables.
      step: the step's graph.
    """
    graph_def = tf.GraphDef(versions=tensor.graph.graph_def_versions, library=functions)
    known = {f"^{operation.name}" for operation in handles}  # Nothing need wait for a handle.
    for node in nodes:
        copied = graph_def.node.add()
        copied.CopyFrom(node)
        copied.input[:] = [name for name in node.input if name not in known]
        copied.attr.pop("_class", None)  # the operations beside which it was to run
        copied.device = ""
    used = {name.partition(":")[0] for node in graph_def.node for name in node.input}
    captured = {each.name: each.outputs[0] for each in handles if each.name in used}
    with step.as_default(), tf.control_dependencies(None):
        (copied,) = tf.import_graph_def(
            graph_def,
            input_map={name: step.capture(handle) for name, handle in captured.items()},
            return_elements=[tensor.name],
            name="of_session",
        )
    return copied
