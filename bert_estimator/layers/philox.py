"""Philox 4x32-10, a counter-based random generator, made of elementwise operations.

From Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. TensorFlow's operation
`StatelessRandomUniformFullIntV2` gives the same words, but on a CPU it writes them to memory, and
XLA's own version of it is slower still. XLA fuses the operations of this module, and what is
computed from the words, into one loop.
"""

import tensorflow.compat.v1 as tf

# Philox, as `alg` of TensorFlow's stateless operations, whose default varies by device.
ALGORITHM = 1

_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85


def blocks(key: tf.Tensor, counter: tf.Tensor, number: int) -> list[tf.Tensor]:
    """Returns the words of consecutive blocks: four tensors, uint32 [number], of a word each.

    `StatelessRandomUniformFullIntV2` with alg=ALGORITHM gives them as uint32 [number, 4].

    Args:
      key: uint64 [1].
      counter: uint64 [2], the number of the first block: its low half, which must not overflow
        within these blocks, and its high half.
      number: how many blocks.
    """
    return blocks_at(
        key, counter[0] + tf.cast(tf.range(number, dtype=tf.int64), tf.uint64), counter[1]
    )


def blocks_at(key: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> list[tf.Tensor]:
    """Returns the words of any blocks: four tensors like `low`, uint32, of a word each.

    Args:
      key: uint64 [1].
      low: uint64 [...], the low halves of the blocks' numbers.
      high: uint64 scalar, the high half of all of them.
    """
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
