"""The activations of the feed-forward layers, by name."""

import math
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from bert_estimator.layers import primitives


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Computes the Gaussian Error Linear Unit (Hendrycks & Gimpel, 2016) in its tanh form.

    It computes in float32, by one fused loop forward and one backward. As single operations, each
    of which reads and writes whole tensors, it would take a third of a training step on a CPU.

    Returns:
      A tensor of x's shape and dtype.
    """
    x = tf.convert_to_tensor(x)
    if not primitives.needs_exact_gradients():
        # Each of these operations reads and writes a whole tensor, and there are fewer than in
        # `_gelu`. But where the sigmoid is almost 1, its gradient is less exact.
        v = tf.cast(x, tf.float32)
        return tf.cast(v * tf.sigmoid(v * (_LINEAR + _CUBIC * v * v)), x.dtype)
    return primitives.with_gradient("BertEstimatorGelu", primitives.fused(_gelu, x), x)


@tf.RegisterGradient("BertEstimatorGelu")
def _gelu_gradient(op, gradient, *_):
    x = op.inputs[1]
    return None, primitives.fused(_gelu_slope, x, gradient)


def gelu_erf(x: tf.Tensor) -> tf.Tensor:
    """Computes the exact Gaussian Error Linear Unit, x * Phi(x), in the way `gelu` computes.

    Hugging Face's transformers calls this function "gelu".
    """
    x = tf.convert_to_tensor(x)
    return primitives.with_gradient("BertEstimatorGeluErf", primitives.fused(_gelu_erf, x), x)


@tf.RegisterGradient("BertEstimatorGeluErf")
def _gelu_erf_gradient(op, gradient, *_):
    x = op.inputs[1]
    return None, primitives.fused(_gelu_erf_slope, x, gradient)


# The tanh form is v * (1 + tanh(u)) / 2, which is v * sigmoid(2 u) with
# 2 u = v * (_LINEAR + _CUBIC * v^2). In the lower tail 1 + tanh(u) is 0 in float32, but the sigmoid
# keeps its relative precision. For the same reason 1 - sigmoid is written exponential * sigmoid.
_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def _exponential_and_sigmoid(v):
    # The bound keeps the exponential finite. At the bound the sigmoid is already below 1e-34.
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
    # The lower tail of erfc keeps its relative precision; 1 + erf would lose it.
    return 0.5 * tf.math.erfc(-v * math.sqrt(0.5))


def _gelu_erf(x):
    v = tf.cast(x, tf.float32)
    return tf.cast(v * _normal_distribution(v), x.dtype)


def _gelu_erf_slope(x, gradient):
    v = tf.cast(x, tf.float32)
    density = tf.exp(-0.5 * v * v) / math.sqrt(2.0 * math.pi)
    slope = _normal_distribution(v) + v * density
    return tf.cast(tf.cast(gradient, tf.float32) * slope, x.dtype)


# The keys are those in bert_config.HIDDEN_ACTS.
ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "linear": tf.identity,
}
