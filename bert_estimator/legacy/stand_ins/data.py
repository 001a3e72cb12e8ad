"""What TensorFlow 1's datasets did; the functions of tf.contrib.data that TensorFlow lacks."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.data.ops import interleave_op

from bert_estimator.graph import read_ahead


def put_back() -> None:
    """Makes datasets do again what they did: they draw ahead only what the program asks for.

    `interleave` with `num_parallel_calls` reads two blocks of each source of its cycle ahead, as it
    did, and nothing of the sources after them. The whole process sees this.
    """
    read_ahead.off_everywhere()
    dataset = interleave_op._ParallelInterleaveDataset
    dataset.__init__ = _reading_two_blocks(dataset.__init__)


def _reading_two_blocks(initialize):
    @functools.wraps(initialize)
    def initialize_dataset(self, source, function, cycle_length, block_length, *args, **kwargs):
        sizes = {"prefetch_input_elements": 0, "buffer_output_elements": 2 * block_length}
        initialize(self, source, function, cycle_length, block_length, *args, **sizes, **kwargs)

    return initialize_dataset


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
