"""What tf.contrib.data had and tf.data.experimental has not: functions for `Dataset.apply`."""

import tensorflow.compat.v1 as tf


def batch_and_drop_remainder(batch_size):
    """Returns a transformation: batches of exactly `batch_size`, an int or int64 scalar tensor."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(batch_size, padded_shapes, padding_values=None):
    """Returns a transformation: as `Dataset.padded_batch`, without a smaller last batch."""
    return lambda dataset: dataset.padded_batch(
        batch_size, padded_shapes, padding_values, drop_remainder=True
    )


def sloppy_interleave(map_func, cycle_length, block_length=1):
    """Returns a transformation: interleaves datasets, in whatever order their elements come."""
    return tf.data.experimental.parallel_interleave(
        map_func, cycle_length, block_length, sloppy=True
    )
