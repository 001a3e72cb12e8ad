"""Dropout as a function of (seed, step, row in the global batch, site in the network).

The random bits come from Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011), a counter-based generator: block number `counter` of stream `key` is a pure function of
these two numbers. So the generator does not have a state to save, and any rows of a batch can be
drawn alone. Here the key is (seed, site) and the counter is (block, step). Each row of the global
batch has the same whole number of blocks, so a row's number says which blocks are its own. The
masks do not depend on the number of cores, on micro-batches, or on how often a graph was built, and
a resumed run draws the masks that an uninterrupted run would draw.
"""

import math
import zlib

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.layers import kernels, primitives
from bert_estimator.layers.kernels import masks
from bert_estimator.layers.kernels.masks import BLOCK_ELEMENTS, HALF_BITS, Mask

_LEVELS = 1 << HALF_BITS


class Dropout:
    """Draws dropout masks for a batch, or for the rows of a batch from `first_row` on.

        dropout = Dropout(seed=1, step=tf.train.get_global_step())
        with tf.variable_scope("attention"):
            probs = dropout(probs, rate=0.1)

    A site is identified by the name of the variable scope of the call, and by the number of earlier
    calls of this object in that scope. So code may be moved without a change of the masks.
    """

    def __init__(
        self,
        seed: int,
        step: int | tf.Tensor,
        first_row: int | tf.Tensor = 0,
        longest: int | None = None,
    ):
        """Sets what the masks depend on.

        Args:
          seed: Python int, 0 <= seed < 2^32.
          step: the training step; an int, or a scalar int32 or int64 tensor.
          first_row: the index in the global batch of the first row of x in each call; an int, or
            a scalar int32 or int64 tensor. A tensor [B] has the index of every row.
          longest: the greatest sequence length of any batch, if lengths differ. If a length of x is
            not static, x gets the first part of the mask that it would have if it were as long as
            this. So the masks do not depend on how much padding a batch has.

        Raises:
          ValueError: the seed is out of range.
        """
        if not 0 <= seed < 1 << 32:
            raise ValueError(
                f"Dropout: seed={seed} is out of range; choose a seed from 0 to {(1 << 32) - 1}."
            )
        self._seed = seed
        self._step = _as_uint64(step)
        self._first_row = _as_uint64(first_row)
        self._longest = longest
        # The step is below 2^63, so this is 0, but the compiler cannot know. With it added to the
        # keys, layers that differ only in their keys are one computation, which is compiled once
        # (for a TPU v3, eight layers of a product and a mask take 19 seconds instead of 48).
        self._unknown_zero = tf.bitwise.right_shift(self._step, tf.constant(63, tf.uint64))
        self._calls = {}

    def __call__(self, x: tf.Tensor, rate: float) -> tf.Tensor:
        """Zeroes elements of x with probability `rate`, and scales the others by 1 / (1 - rate).

        The rate is rounded so that x's dtype can represent the scale, and then to a multiple of
        2^-16. So the expected output is x, with a relative error of at most scale * 2^-17. In
        bfloat16 a rate of 0.1 becomes 0.0986, and its scale is 1.109375.

        Args:
          x: float tensor [B, ...], with every dimension static but the first one and, if `longest`
            is given, sequence lengths. Row b of x is row first_row + b of the global batch.
          rate: Python float, 0 <= rate < 1. For 0, and for a rate that is rounded to 0 (below
            0.0039 in bfloat16, below 2^-17 in float32), x itself is returned.

        Returns:
          A tensor of x's shape and dtype. Its gradient uses the same mask, which takes a byte for
          each element until then, or a bit if it is packed (see `Mask`).

        Raises:
          ValueError: the rate is out of range, or too near 1 for masks of 16 bits, or x does not
            have a static row shape.
        """
        return masked(x, self.mask(x, rate), x.dtype)

    def mask(self, x: tf.Tensor, rate: float) -> Mask | None:
        """Returns the mask that a call would apply to x; None if it would drop nothing.

        Use it instead of a call: it counts as one.

        Args:
          x: float tensor [B, ...], as for a call.
          rate: the dropout rate, 0 <= rate < 1.

        Raises:
          ValueError: the rate is out of range, or a dimension of x but the first is not static.
        """
        if not 0.0 <= rate < 1.0:
            raise ValueError(
                f"Dropout of {x.name}: rate {rate} is outside 0 <= rate < 1; 0 turns dropout off."
            )
        threshold, scale = _quantise(rate, x.dtype)
        if threshold == 0:
            return None
        if threshold >= _LEVELS or not math.isfinite(scale):
            raise ValueError(
                f"Dropout of {x.name}: rate {rate} is too near 1 for masks of 16 bits in "
                f"{x.dtype.name}; 0.999 is not."
            )
        return Mask(self._kept(x, threshold), tf.constant(scale, x.dtype))

    @property
    def state(self) -> list[tf.Tensor]:
        """Returns the uint64 scalar tensors that the masks depend on: [step, first_row]."""
        return [self._step, self._first_row]

    def fork(self, state: list[tf.Tensor] | None = None) -> "Dropout":
        """Returns another Dropout, which draws the masks that this one would draw from here on.

        Args:
          state: uint64 scalar tensors to use instead of `self.state`, with equal values; None uses
            `self.state`.
        """
        fork = Dropout(self._seed, *(state or self.state), longest=self._longest)
        fork._calls = dict(self._calls)
        return fork

    def at_rows(self, rows: tf.Tensor) -> "Dropout":
        """Returns a Dropout for an x whose rows are any rows, int64 [B], of the global batch.

        Its calls count as calls of this object.
        """
        dropout = self.fork([self._step, _as_uint64(rows)])
        # A site is known by the number of calls before it, so that they share the count.
        dropout._calls = self._calls
        return dropout

    def _kept(self, x, threshold):
        """Returns `Mask.keep` for x: whether 16 random bits reach the threshold."""
        row_shape = x.shape.as_list()[1:] if x.shape.rank is not None else []
        is_cut = None in row_shape and self._longest is not None
        if is_cut:
            row_shape = [self._longest if size is None else size for size in row_shape]
        if not row_shape or None in row_shape:
            raise ValueError(
                f"Dropout of {x.name}: shape {x.shape} must be [batch, ...] with every dimension "
                "after the first one static; set the shape, or batch with drop_remainder=True."
            )
        # The blocks have x's last dimensions since a TPU would move every mask from a flat layout
        # into x's.
        block_shape = _block_shape(row_shape)
        row_blocks = math.prod(block_shape)
        rows = x.shape.as_list()[0]
        if rows is None:
            rows = tf.shape(x)[0]
        # A row takes a whole number of blocks, so that it begins with a block in every batch.
        first_block = self._first_row * tf.constant(row_blocks, tf.uint64)
        # So row b depends only on (seed, site, step, first_row + b) and the shape of a row.
        key = tf.constant([self._next_site() << 32 | self._seed], tf.uint64) + self._unknown_zero
        shape = (rows, *block_shape)
        row_elements = math.prod(row_shape)
        threshold = tf.constant(threshold << HALF_BITS, tf.uint32)
        may_pack = not is_cut and row_elements % BLOCK_ELEMENTS == 0
        if first_block.shape.rank:
            keep = masks.draw_rows(shape, key, first_block, self._step, threshold)
        else:
            counter = tf.stack([first_block, self._step])
            keep = kernels.of_graph().draw_mask(shape, key, counter, threshold, may_pack)
        if keep.dtype == tf.uint8:
            return keep
        if row_elements % BLOCK_ELEMENTS:
            keep = tf.reshape(keep, [rows, row_blocks * BLOCK_ELEMENTS])[:, :row_elements]
        keep = tf.reshape(keep, [rows, *row_shape])
        return tf.slice(keep, [0] * x.shape.rank, tf.shape(x)) if is_cut else keep

    def _next_site(self):
        name = tf.get_variable_scope().name
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        return zlib.crc32(f"{name}:{call}".encode())


def masked(x: tf.Tensor, mask: Mask | None, dtype: tf.DType) -> tf.Tensor:
    """Applies a mask of `Dropout.mask` to a float tensor x, and casts the result, of x's shape, to
    a dtype; None keeps all elements."""
    if mask is None:
        return tf.cast(x, dtype)
    value = kernels.of_graph().mask_and_scale(mask, x, dtype)
    return primitives.with_gradient("BertEstimatorDropout", value, x, *mask)


@tf.RegisterGradient("BertEstimatorDropout")
def _dropout_gradient(op, gradient, *_):
    _, x, keep, scale = op.inputs
    mask = Mask(keep, scale)
    return None, kernels.of_graph().mask_and_scale(mask, gradient, x.dtype), None, None


def _block_shape(row_shape):
    """Returns the dimensions in which a row's blocks are laid out: an eighth of the row's."""
    # The first dimensions, as many as are needed for a multiple of eight, become one.
    for merged in range(1, len(row_shape) + 1):
        blocks, rest = divmod(math.prod(row_shape[:merged]), BLOCK_ELEMENTS)
        if not rest:
            return [blocks, *row_shape[merged:]]
    return [blocks + 1]


def _quantise(rate, dtype):
    """Returns (threshold in 1 / 2^16, scale); elements whose 16 bits are below it become 0."""
    # The scale is rounded to the dtype before the threshold is derived from it. Since bfloat16 has
    # 8 bits of mantissa, a scale that is rounded afterwards would bias the output by up to 2^-9.
    numpy_dtype = dtype.as_numpy_dtype
    with np.errstate(over="ignore"):  # An infinite scale is refused.
        scale = float(numpy_dtype(1.0 / (1.0 - rate)))
        threshold = round(_LEVELS * (1.0 - 1.0 / scale))
        left = max(_LEVELS - threshold, 1)  # of a rate too near 1, nothing
        return threshold, float(numpy_dtype(_LEVELS / left))


def _as_uint64(value):
    return tf.cast(tf.convert_to_tensor(value, dtype_hint=tf.int64), tf.uint64)
