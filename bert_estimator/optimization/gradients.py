"""Gradients as the optimizers want them: dense and float32."""

import tensorflow.compat.v1 as tf


def to_dense_float32(gradient):
    """Makes a gradient dense and float32. The one place where sparse gradients become dense.

    The gradient of an embedding lookup is an `IndexedSlices`, with one row per looked-up id. Rows
    of the same id are summed here, in float32. Nothing downstream may look at the rows singly: the
    norm of a sum is not the norm of its parts.

    Args:
        gradient: float tensor of any shape, a `tf.IndexedSlices` with a dense shape, or None.

    Returns:
        A float32 tensor of the variable's shape; None for None.

    Raises:
        ValueError: an `IndexedSlices` that does not know its dense shape.
    """
    if gradient is None:
        return None
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.cast(gradient, tf.float32)
    if gradient.dense_shape is None:
        raise ValueError(
            f"Sparse gradient {gradient.values.name} has no dense_shape, so its duplicate rows "
            "cannot be summed; build the IndexedSlices with dense_shape=tf.shape(variable)."
        )
    return tf.math.unsorted_segment_sum(
        tf.cast(gradient.values, tf.float32), gradient.indices, gradient.dense_shape[0]
    )
