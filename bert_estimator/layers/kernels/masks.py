"""The masks of dropout, whatever draws them: their parts, how they are packed, and applied.

A block of random words, see `dropout.py`, decides over eight elements of a row.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.layers import philox

BLOCK_WORDS = 4  # A Philox block has four 32-bit words.
BLOCK_ELEMENTS = 8  # A block decides over eight elements, each by 16 bits.
HALF_BITS = 16
BITS = np.left_shift(1, np.arange(BLOCK_ELEMENTS)).astype(np.uint8)  # 1, 2, 4 to 128

# The rows of a batch, and the shape of a row's blocks.
Shape = Sequence[int | tf.Tensor]
# A function (name, dtype to request or None) that returns a kernel and a bias.
Weights = Callable[..., tuple[tf.Tensor, tf.Tensor]]


class Mask(NamedTuple):
    """Tells which elements of a tensor dropout keeps, and the factor of the kept ones.

    Attributes:
      keep: bool, of the shape of the tensor that the mask was drawn for. For a CPU, which then
        writes and reads less memory, a large mask is packed into bytes: uint8, [B, *shape of a
        row's blocks], where the bits of a byte, from the lowest, belong to the eight parts of a row
        (see `parts`).
      scale: scalar of that tensor's dtype: 1 / (1 - rate), after rounding.
    """

    keep: tf.Tensor
    scale: tf.Tensor


class Drop(NamedTuple):
    """Drops elements of tensors at a rate above 0.

    Attributes:
      apply: function of a tensor [B, ...] that returns a tensor of its shape and dtype.
      mask: function of a tensor that returns the `Mask` that `apply` would apply to it, or None if
        that drops nothing. It is None if the caller has a dropout of another kind.
    """

    apply: Callable[[tf.Tensor], tf.Tensor]
    mask: Callable[[tf.Tensor], Mask | None] | None = None


def parts(words: list[tf.Tensor], threshold: tf.Tensor) -> list[tf.Tensor]:
    """Returns the eight parts of a mask, which follow each other in each row, bool tensors.

    A row's elements are decided by the low halves of all blocks' first words, then of their second
    words, and so on; then by the high halves. In this order, the masks of a word are next to each
    other, and a TPU writes each of them to its place as soon as it has the words. Elements in the
    order of the blocks took several times as long, and minutes to compile.

    Args:
      words: a block's four words, uint32 tensors with an element for each block.
      threshold: uint32 scalar tensor, in 1 / 2^32; the lower half of its bits is 0.
    """
    half_bits = tf.constant(HALF_BITS, tf.uint32)
    low_halves = [tf.bitwise.left_shift(word, half_bits) for word in words]
    return [half >= threshold for half in low_halves + words]


def draw(shape: Shape, key: tf.Tensor, counter: tf.Tensor, threshold: tf.Tensor) -> tf.Tensor:
    """Draws a mask by TensorFlow's operation for random words; see `session.draw_mask`."""
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[*shape, BLOCK_WORDS],
        key=key,
        counter=counter,
        alg=philox.ALGORITHM,
        dtype=tf.uint32,
    )
    return tf.concat(parts(tf.unstack(words, axis=-1), threshold), axis=1)


def draw_rows(
    shape: Shape, key: tf.Tensor, first_blocks: tf.Tensor, step: tf.Tensor, threshold: tf.Tensor
) -> tf.Tensor:
    """Draws a mask as `draw` does, of rows that do not follow each other.

    Args:
      shape, key, threshold: as for `draw`.
      first_blocks: uint64 [rows], the number of each row's first block.
      step: uint64 scalar, the high half of the blocks' numbers.
    """
    in_row = tf.cast(tf.range(math.prod(shape[1:]), dtype=tf.int64), tf.uint64)
    words = philox.blocks_at(key, first_blocks[:, tf.newaxis] + in_row, step)
    return tf.concat(parts([tf.reshape(word, shape) for word in words], threshold), axis=1)


def unpacked(packed: tf.Tensor) -> tf.Tensor:
    """Returns bool [rows, 8, ...], a row's parts, from a packed mask, uint8 [rows, ...]."""
    bits = tf.reshape(BITS, [1, BLOCK_ELEMENTS] + [1] * (packed.shape.rank - 1))
    return tf.not_equal(tf.bitwise.bitwise_and(packed[:, tf.newaxis], bits), np.uint8(0))


@functools.cache
def mask_and_scale_to(dtype: tf.DType) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns a function of (values, keep, scale), which computes in the dtype of the scale."""

    def mask_and_scale(values, keep, scale):
        if keep.dtype == tf.uint8:
            keep = tf.reshape(unpacked(keep), tf.shape(values))
        values = tf.cast(values, scale.dtype)
        return tf.cast(tf.where(keep, values * scale, tf.zeros_like(values)), dtype)

    return mask_and_scale
