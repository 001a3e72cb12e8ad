"""What targets compute alike: heads, logits, biases, GELU, layer norm, lookups.

Logits, GELU and layer norm are computed in float32, whatever the dtype of the arguments.
"""

import functools
import math
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from bert_estimator.graph import patches
from bert_estimator.layers import primitives

# Added to the scores of padding. Its exponential is 0 in float32, unless a row has only padding:
# then all scores shift by the same amount, and attention is over all positions, as in BERT.
_MASK_ADDER = -10000.0

# The least number of elements for which layer norm is one compiled pass, and what stands for a
# number of tokens that is not known when the graph is built.
_LEAST_OF_LAYER_NORM = 1 << 20
_USUAL_TOKENS = 4096

# The tanh form of GELU is v * (1 + tanh(u)) / 2, which is v * sigmoid(2 u) with
# 2 u = v * (LINEAR + CUBIC * v^2). In the lower tail 1 + tanh(u) is 0 in float32, but the sigmoid
# keeps its relative precision. For the same reason 1 - sigmoid is written exponential * sigmoid.
LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
CUBIC = 0.044715 * LINEAR


# Pairs of a kernel [H, H] and a bias [H].
Projections = Sequence[tuple[tf.Tensor, tf.Tensor]]


def heads(
    bias_add: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    x: tf.Tensor,
    projections: Projections,
    length: int | tf.Tensor,
    num_heads: int,
) -> list[tf.Tensor]:
    """Projects x [B * F, H], and divides each result among the heads: [B, N, F, D]."""
    head_size = x.shape.as_list()[1] // num_heads
    all_heads = []
    for kernel, bias in projections:
        values = bias_add(tf.matmul(x, kernel), bias)
        values = tf.reshape(values, [-1, length, num_heads, head_size])
        all_heads.append(tf.transpose(values, [0, 2, 1, 3]))
    return all_heads


def masked_logits(scores: tf.Tensor, input_mask: tf.Tensor, is_packed: bool) -> tf.Tensor:
    """Returns the logits of attention, float32 [B, N, F, T], from scores of this shape."""
    function, tensor = masking(input_mask, is_packed)
    return function(scores, tensor)


def masking(
    input_mask: tf.Tensor, is_packed: bool
) -> tuple[Callable[[tf.Tensor, tf.Tensor], tf.Tensor], tf.Tensor]:
    """Returns a function of scores and a tensor that returns `masked_logits`, and the tensor."""
    if is_packed:
        # The comparisons are part of the pass over the scores, which reads F numbers for a row and
        # not F * T.
        return _mask_other_sequences, input_mask
    adder = (1.0 - tf.cast(input_mask[:, tf.newaxis, tf.newaxis, :], tf.float32)) * _MASK_ADDER
    return _add, adder  # [B, 1, 1, T]


def _add(scores, adder):
    return tf.cast(scores, tf.float32) + adder


def _mask_other_sequences(scores, numbers):
    # Padding, number 0, attends to padding, so that each position attends to something.
    is_other = tf.not_equal(
        numbers[:, tf.newaxis, :, tf.newaxis], numbers[:, tf.newaxis, tf.newaxis, :]
    )
    return _add(scores, tf.cast(is_other, tf.float32) * _MASK_ADDER)


def bias_add(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Adds a bias [n] to each row of x [..., n]; in bfloat16 its gradient is summed in float32."""
    if x.dtype != tf.bfloat16:
        return tf.nn.bias_add(x, bias)
    with patches.biases_summed_in_float32():
        return tf.nn.bias_add(x, bias)


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Returns GELU in its tanh form, by one fused loop forward and one backward."""
    return primitives.with_gradient("BertEstimatorGelu", primitives.fused(_gelu, x), x)


@tf.RegisterGradient("BertEstimatorGelu")
def _gelu_gradient(op, gradient, *_):
    return None, primitives.fused(_gelu_slope, op.inputs[1], gradient)


def _exponential_and_sigmoid(v):
    # The bound keeps the exponential finite. At the bound the sigmoid is already below 1e-34.
    exponential = tf.exp(tf.minimum(-v * (LINEAR + CUBIC * v * v), 80.0))
    return exponential, 1.0 / (1.0 + exponential)


def _gelu(x: tf.Tensor) -> tf.Tensor:
    v = tf.cast(x, tf.float32)
    _, sigmoid = _exponential_and_sigmoid(v)
    return tf.cast(v * sigmoid, x.dtype)


def _gelu_slope(x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Returns the gradient of `_gelu`."""
    v = tf.cast(x, tf.float32)
    exponential, sigmoid = _exponential_and_sigmoid(v)
    inner = v * (LINEAR + 3.0 * CUBIC * v * v)
    slope = sigmoid * (1.0 + exponential * sigmoid * inner)
    return tf.cast(tf.cast(gradient, tf.float32) * slope, x.dtype)


def gelu_erf(x: tf.Tensor) -> tf.Tensor:
    """Returns the exact GELU, x * Phi(x), in the way `gelu` computes."""
    value = primitives.fused(_gelu_erf, x)
    return primitives.with_gradient("BertEstimatorGeluErf", value, x)


@tf.RegisterGradient("BertEstimatorGeluErf")
def _gelu_erf_gradient(op, gradient, *_):
    return None, primitives.fused(_gelu_erf_slope, op.inputs[1], gradient)


def _normal_distribution(v):
    # The lower tail of erfc keeps its relative precision; 1 + erf would lose it.
    return 0.5 * tf.math.erfc(-v * math.sqrt(0.5))


def _gelu_erf(x: tf.Tensor) -> tf.Tensor:
    v = tf.cast(x, tf.float32)
    return tf.cast(v * _normal_distribution(v), x.dtype)


def _gelu_erf_slope(x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Returns the gradient of `_gelu_erf`."""
    v = tf.cast(x, tf.float32)
    density = tf.exp(-0.5 * v * v) / math.sqrt(2.0 * math.pi)
    slope = _normal_distribution(v) + v * density
    return tf.cast(tf.cast(gradient, tf.float32) * slope, x.dtype)


def layer_norm(epsilon: float, gamma: tf.Tensor, beta: tf.Tensor, *addends: tf.Tensor) -> tf.Tensor:
    """Normalizes the last dimension of a sum [..., H], and scales and shifts it."""
    function = _layer_norm_with(epsilon)
    if primitives.num_elements(addends[0].shape, _USUAL_TOKENS) < _LEAST_OF_LAYER_NORM:
        return function(gamma, beta, *addends)
    return primitives.fused_both_ways(function, gamma, beta, *addends)


@functools.cache  # a function that is compiled must be the same object in each call
def _layer_norm_with(epsilon: float) -> Callable[..., tf.Tensor]:
    """Returns `layer_norm` as a function of its tensors."""

    def layer_norm(gamma, beta, *addends):
        total = tf.cast(sum(addends[1:], addends[0]), tf.float32)
        if addends[0].dtype == tf.float32:
            mean, variance = tf.nn.moments(total, [-1], keep_dims=True)
        else:
            mean, variance = _moments_in_one_pass(total)
        normalized = tf.nn.batch_normalization(total, mean, variance, beta, gamma, epsilon)
        return tf.cast(normalized, addends[0].dtype)

    return layer_norm


def _moments_in_one_pass(x):
    """Returns mean and variance of the last dimension, [..., 1], of float32 from bfloat16."""
    # `tf.nn.moments` reads x once more, to subtract the mean from it. That is more exact: here
    # float32 rounds squares of x, and the variance may be wrong by about x^2 / 2^22. But rounding x
    # itself to bfloat16, by up to |x| / 2^9, has changed the variance by up to x^2 / 2^18.
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)
    mean_square = tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)
    square = tf.square(mean)
    # If all numbers are equal, what is left of the difference is its rounding error.
    variance = tf.maximum(mean_square - square, square * 2.0**-22)
    return mean, primitives.with_gradient("BertEstimatorVariance", variance, x, mean)


@tf.RegisterGradient("BertEstimatorVariance")
def _variance_gradient(op, gradient, *_):
    """Gives the gradient of `tf.nn.moments`, which subtracts the mean before it multiplies."""
    _, x, mean = op.inputs
    return None, gradient * (x - mean) * (2.0 / x.shape.as_list()[-1]), None


def gather(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Gathers rows of a table [V, E] by ids [B, F]; the gradient is dense, a sum by row."""
    # The table of words is also the output layer of the masked language model, whose gradient is
    # dense: TensorFlow would add the IndexedSlices of a plain `tf.gather` to it row by row.
    return primitives.with_gradient("BertEstimatorGather", tf.gather(table, ids), table, ids)


@tf.RegisterGradient("BertEstimatorGather")
def _gather_gradient(op, gradient, *_):
    _, table, ids = op.inputs
    vocab_size, width = table.shape.as_list()
    rows = tf.reshape(gradient, [-1, width])
    return None, tf.math.unsorted_segment_sum(rows, tf.reshape(ids, [-1]), vocab_size), None
