"""The functions of tf.contrib.data for `Dataset.apply` that tf.data.experimental lacks."""

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf


def batch_and_drop_remainder(batch_size: int) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Returns a transformation that makes batches of exactly `batch_size` elements."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(
    batch_size: int, padded_shapes: Any, padding_values: Any = None
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Returns a transformation that pads batches, and drops a smaller last batch."""
    return lambda dataset: dataset.padded_batch(
        batch_size, padded_shapes, padding_values, drop_remainder=True
    )


def sloppy_interleave(
    map_func: Callable[..., tf.data.Dataset], cycle_length: int, block_length: int = 1
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Returns a transformation that interleaves datasets in the order their elements arrive."""
    return tf.data.experimental.parallel_interleave(
        map_func, cycle_length, block_length, sloppy=True
    )
