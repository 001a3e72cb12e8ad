"""The functions of tf.contrib.data for `Dataset.apply` that tf.data.experimental lacks."""

import tensorflow.compat.v1 as tf


def batch_and_drop_remainder(batch_size):
    """Returns a transformation that makes batches of exactly `batch_size` elements."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(batch_size, padded_shapes, padding_values=None):
    """Returns a transformation that pads batches, and drops a smaller last batch."""
    return lambda dataset: dataset.padded_batch(
        batch_size, padded_shapes, padding_values, drop_remainder=True
    )


def sloppy_interleave(map_func, cycle_length, block_length=1):
    """Returns a transformation that interleaves datasets in the order their elements arrive."""
    return tf.data.experimental.parallel_interleave(
        map_func, cycle_length, block_length, sloppy=True
    )
