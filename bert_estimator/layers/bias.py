"""Adding a bias."""

import tensorflow.compat.v1 as tf

from bert_estimator import bias_gradient
from bert_estimator.layers import primitives


def bias_add(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Adds a bias to each row; its gradient is summed in float32, except in portable graphs.

    Args:
      x: float tensor [..., n].
      bias: [n], of x's dtype.

    Returns:
      A tensor of x's shape and dtype.
    """
    if x.dtype != tf.bfloat16 or primitives.is_portable():
        return tf.nn.bias_add(x, bias)
    with bias_gradient.summed_in_float32():
        return tf.nn.bias_add(x, bias)
