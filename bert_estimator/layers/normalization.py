"""Layer norm (Ba et al., 2016), of a sum of tensors."""

import tensorflow.compat.v1 as tf

from bert_estimator.layers import primitives

_EPSILON = 1e-12

# One computation for fewer elements saves less in a whole training than the second or more that
# every session takes to compile it.
_LEAST_ELEMENTS = 1 << 20
_USUAL_ROWS = 4096  # stands for a number of rows that is not known


def layer_norm(*addends: tf.Tensor) -> tf.Tensor:
    """Normalizes the last dimension of a sum, and scales and shifts it by LayerNorm/gamma and beta.

    The statistics and the gradients are computed in float32, for large tensors by one computation
    forward and one backward. As single operations, each of which reads and writes whole tensors,
    they would take a sixth of a training step of BERT-base on a CPU.

    Args:
      *addends: tensors of one shape, [..., H] with a static H, and one dtype.

    Returns:
      A tensor of that shape and dtype.
    """
    width = addends[0].shape.as_list()[-1]
    with tf.variable_scope("LayerNorm"):
        beta = tf.get_variable("beta", [width], tf.float32, tf.zeros_initializer())
        gamma = tf.get_variable("gamma", [width], tf.float32, tf.ones_initializer())
        inputs = [tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta), *addends]
        num_elements = addends[0].shape.num_elements()
        if num_elements is None:
            num_elements = _USUAL_ROWS * width
        if num_elements < _LEAST_ELEMENTS:
            return _layer_norm(*inputs)
        return primitives.fused_both_ways(_layer_norm, *inputs)


def _layer_norm(gamma, beta, *addends):
    total = tf.cast(sum(addends[1:], addends[0]), tf.float32)
    if addends[0].dtype == tf.float32:
        mean, variance = tf.nn.moments(total, [-1], keep_dims=True)
    else:
        mean, variance = _moments_in_one_pass(total)
    normalized = tf.nn.batch_normalization(total, mean, variance, beta, gamma, _EPSILON)
    return tf.cast(normalized, addends[0].dtype)


def _moments_in_one_pass(x):
    """Returns the mean and the variance of the last dimension, [..., 1], from sums of x and x^2.

    `tf.nn.moments` reads x once more, to subtract the mean from it. That is more exact: here
    float32 rounds squares of x, and the variance may be wrong by about x^2 / 2^22. But rounding x
    itself to bfloat16, by up to |x| / 2^9, has changed the variance by up to x^2 / 2^18.

    Args:
      x: float32 [..., H], with the values of a bfloat16 tensor.
    """
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
