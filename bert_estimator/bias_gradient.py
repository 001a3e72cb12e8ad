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
    sum is so much larger than a row that rounding drops most of the row. For 4096 rows of
    independent numbers, the error is 7 % of the sum's standard deviation; for rows that are alike
    it is worse. XLA's sums are float32.

    The graphs of functions (`tf.function`) are not covered. To differentiate a graph that was built
    inside and then imported, a program has to import this module.
    """
    with tf.get_default_graph().gradient_override_map({"BiasAdd": _NAME}):
        yield


@tf.RegisterGradient(_NAME)
def _gradient(op, gradient):
    data_format = op.get_attr("data_format").decode()
    in_xla_program = control_flow_util.GraphOrParentsInXlaContext(tf.get_default_graph())
    if gradient.dtype != tf.bfloat16 or in_xla_program:
        return gradient, tf.raw_ops.BiasAddGrad(out_backprop=gradient, data_format=data_format)
    rank = gradient.shape.rank or tf.rank(gradient)
    if data_format == "NCHW":
        axes = tf.concat([[0], tf.range(2, rank)], axis=0)
    else:
        axes = tf.range(rank - 1)
    return gradient, tf.reduce_sum(gradient, axes)
