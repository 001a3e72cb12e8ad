"""Variables that have another value on each core, and tensors of the session that a step uses."""

from collections.abc import Iterable

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import cpp_shape_inference_pb2
from tensorflow.python.ops import handle_data_util

from bert_estimator.graph import graph_walk
from bert_estimator.graph.variable_uses import READERS, functions_of


class PerCoreVariable:
    """A variable of a step that is as many variables of the session, one for each core.

    Args:
      name: its name.
      variables: the session's resource variables, in the order of the cores.

    Attributes:
      name, variables: as above.
      dtype, slice_shape: those of each variable.
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
        if inner.op.name not in present or outer.op in handles or not inner.consumers():
            continue
        operations = list(graph_walk.all_before([outer.op]))
        if not all(each in handles or _is_repeatable(each) for each in operations):
            continue
        copied = _copied(outer, operations, handles, step)
        for consumer in list(inner.consumers()):
            for place, tensor in enumerate(consumer.inputs):
                if tensor is inner:
                    consumer._update_input(place, copied)
        changed = True
    return changed


def _is_repeatable(operation):
    """Returns whether an operation gives the same in the step as in the session."""
    if operation.type.startswith("Placeholder"):
        return False
    stateful = operation.op_def is None or operation.op_def.is_stateful
    return operation.type in READERS or not stateful


def _copied(tensor, operations, handles, step):
    graph_def = tf.GraphDef(versions=tensor.graph.graph_def_versions)
    for operation in operations:
        if operation not in handles:
            node = graph_def.node.add()
            node.CopyFrom(operation.node_def)
            node.attr.pop("_class", None)  # the operations beside which it was to run
            node.device = ""
    if any(functions_of(node) for node in graph_def.node):
        graph_def.library.CopyFrom(tensor.graph.as_graph_def().library)
    captured = {o.outputs[0].name: o.outputs[0] for o in operations if o in handles}
    with step.as_default(), tf.control_dependencies(None):
        (copied,) = tf.import_graph_def(
            graph_def,
            input_map={name: step.capture(handle) for name, handle in captured.items()},
            return_elements=[tensor.name],
            name="of_session",
        )
    return copied
