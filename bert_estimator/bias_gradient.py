"""The gradient of a bias: TensorFlow's own, but summed in float32 if it is bfloat16."""

import contextlib
from collections.abc import Iterator

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_util

_NAME = "BertEstimatorBiasAdd"


@contextlib.contextmanager
def summed_in_float32() -> Iterator[None]:
    """Gives each `tf.nn.bias_add` that is called inside a gradient that is summed in float32.

    On a CPU TensorFlow's gradient adds rows of bfloat16 in bfloat16, one after the other: soon the
    sum is so much larger than a row that rounding drops most of the row. For 4096 rows of normally
    distributed numbers it is wrong by half of its standard deviation. XLA's sums are float32.
    """
    with tf.get_default_graph().gradient_override_map({"BiasAdd": _NAME}):
        yield


@tf.RegisterGradient(_NAME)
def _gradient(op, gradient):
    data_format = op.get_attr("data_format").decode()
    in_xla_program = control_flow_util.GraphOrParentsInXlaContext(tf.get_default_graph())
    # If channels come first, TensorFlow's sum is float32, too.
    if gradient.dtype != tf.bfloat16 or data_format == "NCHW" or in_xla_program:
        return gradient, tf.raw_ops.BiasAddGrad(out_backprop=gradient, data_format=data_format)
    # A product is summed in float32, and takes half the time of TensorFlow's own gradient.
    rows = tf.reshape(gradient, [-1, gradient.shape.as_list()[-1]])
    num_rows = rows.shape.as_list()[0] or tf.shape(rows)[0]
    total = tf.matmul(tf.ones([1, num_rows], rows.dtype), rows)
    return gradient, tf.reshape(total, op.inputs[1].shape)
