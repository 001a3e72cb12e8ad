"""Compares the bias's gradient with float64 numpy."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_ops

from bert_estimator.graph import patches
from bert_estimator.layers import kernels, primitives

# With these, the error of TensorFlow's own gradient is a tenth of the gradient's largest element.
ROWS, COLUMNS = 4096, 64


def bias_add(x, b):
    return kernels.of_graph().bias_add(x, b)


def evaluate(dtype, values, shape, addition=bias_add):
    """Returns the outputs, the two gradients, and the kinds of the graph's operations."""
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(dtype, shape)
        b = tf.constant(np.linspace(-1.0, 1.0, COLUMNS), dtype)
        y = addition(x, b)
        assert y.dtype == dtype
        gradients = tf.gradients(y, [x, b], tf.reshape(x, tf.shape(y)) * 2.0)
        outputs = [tf.cast(tensor, tf.float32) for tensor in (y, *gradients)]
        with tf.Session() as session:
            kinds = [op.type for op in graph.get_operations()]
            return *session.run(outputs, {x: values.astype(dtype.as_numpy_dtype)}), kinds


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize(
    "shape", [[ROWS, COLUMNS], [None, COLUMNS], [None, 32, COLUMNS]], ids=["known", "rows", "3d"]
)
def test_the_gradient_is_a_float32_sum(dtype, shape):
    values = np.random.RandomState(0).normal(size=[ROWS, COLUMNS]).astype(dtype.as_numpy_dtype)
    values = np.float64(values)
    given = values.reshape([-1, 32, COLUMNS]) if len(shape) == 3 else values
    y, x_gradient, b_gradient, _ = evaluate(dtype, given, shape)
    added = np.linspace(-1.0, 1.0, COLUMNS).astype(dtype.as_numpy_dtype)
    rounding = 2.0**-8 if dtype == tf.bfloat16 else 1e-6
    np.testing.assert_allclose(y, given + np.float64(added), rtol=rounding, atol=rounding)
    np.testing.assert_array_equal(x_gradient, given * 2.0)
    expected = values.sum(0) * 2.0
    smallest = 2e-6 * np.abs(expected).max()  # what a sum in float32 may lose
    np.testing.assert_allclose(b_gradient, expected, rtol=rounding, atol=smallest)


def test_tensorflows_own_gradient_is_not():
    """If this fails, TensorFlow has fixed its gradient, and ours can be removed."""
    values = np.random.RandomState(0).normal(size=[ROWS, COLUMNS])
    *_, gradient, _ = evaluate(tf.bfloat16, values, [ROWS, COLUMNS], tf.nn.bias_add)
    expected = values.sum(0) * 2.0
    assert np.abs(gradient - expected).max() > 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_shapes_and_formats_of_scripts(data_format, known):
    values = np.random.RandomState(0).normal(1.0, size=[4096, 2, 2, 8]).astype(np.float32)
    values = values if data_format == "NHWC" else values.transpose([0, 3, 1, 2])
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.bfloat16, values.shape if known else None)
        b = tf.placeholder_with_default(tf.zeros([8], tf.bfloat16), [8] if known else None)
        with patches.biases_summed_in_float32():
            y = tf.nn.bias_add(x, b, data_format)
        (gradient,) = tf.gradients(y, b, x)
        found = session.run(tf.cast(gradient, tf.float32), {x: values})
    rounded = np.float64(values.astype(tf.bfloat16.as_numpy_dtype))
    expected = rounded.sum((0, 1, 2) if data_format == "NHWC" else (0, 2, 3))
    np.testing.assert_allclose(found, expected, rtol=2.0**-8)


def test_programs_for_xla_have_tensorflows_gradient():
    with tf.Graph().as_default() as graph:
        control_flow_ops.XLAControlFlowContext().Enter()
        x, b = tf.ones([4, 8], tf.bfloat16), tf.ones([8], tf.bfloat16)
        tf.gradients(bias_add(x, b), b)
        assert "BiasAddGrad" in {op.type for op in graph.get_operations()}


def test_portable_graphs_have_tensorflows_gradient():
    values = np.ones([ROWS, COLUMNS])
    with primitives.portable():
        *_, kinds = evaluate(tf.bfloat16, values, [ROWS, COLUMNS])
    assert "BiasAddGrad" in kinds
    assert "BiasAddGrad" not in evaluate(tf.bfloat16, values, [ROWS, COLUMNS])[-1]
