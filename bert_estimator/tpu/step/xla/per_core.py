"""Variables that have another value on each core, and the handles of a step's own variables."""

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import cpp_shape_inference_pb2
from tensorflow.python.ops import handle_data_util


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
