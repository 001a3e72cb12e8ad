"""Activations of the feed-forward layers, by name."""

import math

import tensorflow.compat.v1 as tf

from bert_estimator.layers import primitives


def gelu(x):
    """Gaussian Error Linear Unit (Hendrycks & Gimpel, 2016), the tanh form, of x's dtype.

    Computed in float32, by one fused loop forward and one backward: as single operations, which
    each read and write the whole of memory, it would be a third of a training step on a CPU.
    """
    x = tf.convert_to_tensor(x)
    return primitives.with_gradient("BertEstimatorGelu", primitives.fused(_gelu, x), x)


@tf.RegisterGradient("BertEstimatorGelu")
def _gelu_gradient(op, gradient, *_):
    x = op.inputs[1]
    return None, primitives.fused(_gelu_slope, x, gradient)


def gelu_erf(x):
    """The exact Gaussian Error Linear Unit, x * Phi(x), of x's dtype; otherwise as `gelu`.

    What transformers calls "gelu".
    """
    x = tf.convert_to_tensor(x)
    return primitives.with_gradient("BertEstimatorGeluErf", primitives.fused(_gelu_erf, x), x)


@tf.RegisterGradient("BertEstimatorGeluErf")
def _gelu_erf_gradient(op, gradient, *_):
    x = op.inputs[1]
    return None, primitives.fused(_gelu_erf_slope, x, gradient)


# (1 + tanh(u)) / 2 is sigmoid(2 u), and v * (_LINEAR + _CUBIC * v^2) is that 2 u. By the sigmoid,
# with 1 - sigmoid as exponential * sigmoid, the tails keep their relative precision in float32,
# where 1 + tanh(u) would be 0.
_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def _exponential_and_sigmoid(v):
    # The bound keeps the exponential finite; beyond it the sigmoid is below 1e-34.
    exponential = tf.exp(tf.minimum(-v * (_LINEAR + _CUBIC * v * v), 80.0))
    return exponential, 1.0 / (1.0 + exponential)


def _gelu(x):
    v = tf.cast(x, tf.float32)
    _, sigmoid = _exponential_and_sigmoid(v)
    return tf.cast(v * sigmoid, x.dtype)


def _gelu_slope(x, gradient):
    v = tf.cast(x, tf.float32)
    exponential, sigmoid = _exponential_and_sigmoid(v)
    inner = v * (_LINEAR + 3.0 * _CUBIC * v * v)
    slope = sigmoid * (1.0 + exponential * sigmoid * inner)
    return tf.cast(tf.cast(gradient, tf.float32) * slope, x.dtype)


def _normal_distribution(v):
    # By the complement of erf the lower tail keeps its relative precision.
    return 0.5 * tf.math.erfc(-v * math.sqrt(0.5))


def _gelu_erf(x):
    v = tf.cast(x, tf.float32)
    return tf.cast(v * _normal_distribution(v), x.dtype)


def _gelu_erf_slope(x, gradient):
    v = tf.cast(x, tf.float32)
    density = tf.exp(-0.5 * v * v) / math.sqrt(2.0 * math.pi)
    slope = _normal_distribution(v) + v * density
    return tf.cast(tf.cast(gradient, tf.float32) * slope, x.dtype)


# One for each of bert_config.HIDDEN_ACTS.
ACTIVATIONS = {
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "linear": tf.identity,
}
