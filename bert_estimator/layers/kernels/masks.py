"""The masks of dropout: the random words, how they decide, how masks are packed and applied.

The words come from Philox 4x32-10, a counter-based random generator (Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3", SC 2011). TensorFlow's `StatelessRandomUniformFullIntV2` gives
the same words, but on a CPU it writes them to memory, and XLA's own version of it is slower still.
Here they are made of elementwise operations, which XLA fuses with what is computed from the words.
A block of words, see `dropout.py`, decides over eight elements of a row.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

# Philox, as `alg` of TensorFlow's stateless operations, whose default varies by device.
ALGORITHM = 1

_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85


def blocks(key: tf.Tensor, counter: tf.Tensor, number: int) -> list[tf.Tensor]:
    """Returns the words of consecutive blocks, four tensors uint32 [number], for key uint64 [1] and
    the number of the first block, uint64 [2]: (its low half, its high half)."""
    # The low half must not overflow within these blocks. TensorFlow's
    # StatelessRandomUniformFullIntV2 with alg=ALGORITHM gives these words as uint32 [number, 4].
    return blocks_at(
        key, counter[0] + tf.cast(tf.range(number, dtype=tf.int64), tf.uint64), counter[1]
    )


def blocks_at(key: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> list[tf.Tensor]:
    """Returns the words of any blocks, four uint32 tensors like `low`, uint64 [...], the low halves
    of the blocks' numbers, which share the scalar `high`."""
    high = tf.fill(tf.shape(low), high)
    c0, c1 = _halves(low)
    c2, c3 = _halves(high)
    k0, k1 = _halves(key[0])
    xor = tf.bitwise.bitwise_xor
    for _ in range(_ROUNDS):
        low0, high0 = _halves(_product(c0, _MULTIPLIERS[0]))
        low1, high1 = _halves(_product(c2, _MULTIPLIERS[1]))
        c0, c1, c2, c3 = xor(xor(high1, c1), k0), low1, xor(xor(high0, c3), k1), low0
        k0, k1 = (
            k + tf.constant(step, tf.uint32) for k, step in zip((k0, k1), _KEY_STEPS, strict=True)
        )
    return [c0, c1, c2, c3]


def _product(words, factor):
    """Returns the products of uint32 words and a factor, in uint64."""
    return tf.cast(words, tf.uint64) * tf.constant(factor, tf.uint64)


def _halves(values):
    """Returns the low and the high halves of uint64 values, as uint32."""
    high = tf.bitwise.right_shift(values, tf.constant(32, tf.uint64))
    return tf.cast(values, tf.uint32), tf.cast(high, tf.uint32)


BLOCK_WORDS = 4  # A Philox block has four 32-bit words.
BLOCK_ELEMENTS = 8  # A block decides over eight elements, each by 16 bits.
HALF_BITS = 16
BITS = np.left_shift(1, np.arange(BLOCK_ELEMENTS)).astype(np.uint8)  # 1, 2, 4 to 128

# The rows of a batch, and the shape of a row's blocks.
Shape = Sequence[int | tf.Tensor]


class Mask(NamedTuple):
    """Tells which elements of a tensor dropout keeps, and the factor of the kept ones."""

    # bool, of the shape of the tensor that the mask was drawn for. For a CPU, which then writes and
    # reads less memory, a large mask is packed into bytes: uint8, [B, *shape of a row's blocks],
    # where the bits of a byte, from the lowest, belong to the eighths of a row (see `eighths`).
    keep: tf.Tensor
    # A scalar of that tensor's dtype: 1 / (1 - rate), after rounding.
    scale: tf.Tensor


def eighths(words: list[tf.Tensor], threshold: tf.Tensor) -> list[tf.Tensor]:
    """Returns the eighths of a mask, bool, which follow each other in each row, from a block's
    four words, uint32, and a threshold in 1 / 2^32, the lower half of whose bits is 0."""
    # A row's elements are decided by the low halves of all blocks' first words, then of their
    # second words, and so on; then by the high halves. In this order, the masks of a word are next
    # to each other, and a TPU writes each of them to its place as soon as it has the words.
    # Elements in the order of the blocks took several times as long, and minutes to compile.
    half_bits = tf.constant(HALF_BITS, tf.uint32)
    low_halves = [tf.bitwise.left_shift(word, half_bits) for word in words]
    return [half >= threshold for half in low_halves + words]


def draw(shape: Shape, key: tf.Tensor, counter: tf.Tensor, threshold: tf.Tensor) -> tf.Tensor:
    """Draws a mask by TensorFlow's operation for random words; see `session.draw_mask`."""
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[*shape, BLOCK_WORDS],
        key=key,
        counter=counter,
        alg=ALGORITHM,
        dtype=tf.uint32,
    )
    return tf.concat(eighths(tf.unstack(words, axis=-1), threshold), axis=1)


def draw_rows(
    shape: Shape, key: tf.Tensor, first_blocks: tf.Tensor, step: tf.Tensor, threshold: tf.Tensor
) -> tf.Tensor:
    """Draws a mask as `draw` does, of rows that do not follow each other: first_blocks, uint64
    [rows], has their first blocks, and `step` is the high half of the blocks' numbers."""
    in_row = tf.cast(tf.range(math.prod(shape[1:]), dtype=tf.int64), tf.uint64)
    words = blocks_at(key, first_blocks[:, tf.newaxis] + in_row, step)
    return tf.concat(eighths([tf.reshape(word, shape) for word in words], threshold), axis=1)


def unpacked(packed: tf.Tensor) -> tf.Tensor:
    """Returns bool [rows, 8, ...], a row's eighths, from a packed mask, uint8 [rows, ...]."""
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
