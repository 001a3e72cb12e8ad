"""Initial weights as a function of the graph's seed and the variable's name."""

import math
import zlib

import tensorflow.compat.v1 as tf

from bert_estimator.layers import philox


def weight(
    name: str, shape: list[int], initializer_range: float, dtype: tf.DType | None = None
) -> tf.Variable | tf.Tensor:
    """Creates a variable in the current scope, from a normal truncated at two deviations.

    The values are a function of the graph's seed and the variable's full name. They do not depend
    on what else the graph holds or on the order in which it was built, so a training graph, an
    evaluation graph and a graph of micro-batches begin with the same weights. Without
    `tf.set_random_seed` the seed is TensorFlow's default seed.

    Args:
      name: the name below the current variable scope.
      shape: the variable's shape.
      initializer_range: standard deviation before truncation.
      dtype: the dtype to request; None requests the scope's dtype.

    Returns:
      What `tf.get_variable` returns.
    """
    full_name = f"{tf.get_variable_scope().name}/{name}"

    def initializer(shape, dtype):
        return tf.cast(_truncated_normal(full_name, shape) * initializer_range, dtype)

    return tf.get_variable(name, shape, dtype=dtype, initializer=initializer)


def _truncated_normal(full_name, shape):
    """Returns a float32 tensor of standard normal values truncated at two deviations.

    It applies the inverse of the distribution function to pinned random bits. TensorFlow's own
    truncated normal draws other values under XLA than on the CPU; here the two differ by rounding.
    """
    seed = tf.get_seed(zlib.crc32(full_name.encode()))
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape,
        key=tf.constant([seed[0]], tf.uint64),
        counter=tf.constant([0, seed[1]], tf.uint64),
        alg=philox.ALGORITHM,
        dtype=tf.uint32,
    )
    # float32 holds 24 bits exactly: odd multiples of 1/2 within (-2^23, 2^23).
    odd = tf.cast(tf.bitwise.right_shift(words, tf.constant(8, tf.uint32)), tf.float32)
    odd -= 2.0**23 - 0.5
    two_deviations = math.erf(2.0 / math.sqrt(2.0))
    return math.sqrt(2.0) * tf.math.erfinv(odd * (two_deviations * 2.0**-23))
