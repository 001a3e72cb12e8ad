"""Clipping by the global norm (Pascanu et al., 2013, "On the difficulty of training RNNs")."""

import dataclasses
import math
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from bert_estimator.optimization.chain import to_dense_float32
from bert_estimator.optimization.piece import Part


def clip_by_global_norm(
    gradients: Sequence[tf.Tensor | tf.IndexedSlices | Part | None], max_norm: float
) -> tuple[list[tf.Tensor | Part | None], tf.Tensor]:
    """Scales all gradients by one factor, so that their joint L2 norm is at most `max_norm`.

    The joint norm is the float32 norm of all gradients as one long vector. If it is infinite or
    NaN, every clipped gradient is NaN, as in `tf.clip_by_global_norm`, so that the failure is
    seen. (max_norm / infinity is 0, which would turn an overflow into a step without gradients.)
    Unlike in `tf.clip_by_global_norm`, duplicate rows of a sparse gradient count as their sum.

    Args:
      gradients: float tensors, `tf.IndexedSlices`, `Part`s and None, of any shapes. Each gradient
        must be the sum over the whole batch: clipping addends before adding them is another
        algorithm.
      max_norm: number > 0.

    Returns:
      (clipped, global_norm): a list of dense float32 tensors, with None in the places of None in
      `gradients`, and `Part`s in the places of `Part`s; and the norm before clipping, a float32
      scalar, for summaries.

    Raises:
      ValueError: `max_norm` is not a finite number > 0, or every gradient is None.
    """
    if not (math.isfinite(max_norm) and max_norm > 0.0):
        raise ValueError(
            f"clip_by_global_norm: max_norm={max_norm} must be finite and > 0; BERT clips to 1.0. "
            "To train without clipping, do not call it."
        )
    with tf.name_scope("clip_by_global_norm"):
        parts = [gradient for gradient in gradients if isinstance(gradient, Part)]
        dense = [g if isinstance(g, Part) else to_dense_float32(g) for g in gradients]
        halves = [tf.nn.l2_loss(g) for g in dense if g is not None and not isinstance(g, Part)]
        if parts:
            halves.append(
                parts[0].shards.sum(tf.add_n([tf.nn.l2_loss(part.value) for part in parts]))
            )
        if not halves:
            raise ValueError(
                "clip_by_global_norm: every gradient is None: the loss does not depend on any of "
                "the variables."
            )
        # An l2_loss is half a sum of squares. On a CPU it reads a gradient once, writes nothing,
        # and takes a third of the time of a square and a sum.
        norm = tf.sqrt(2.0 * tf.add_n(halves), name="global_norm")
        scale = tf.where(
            tf.math.is_finite(norm),
            max_norm / tf.maximum(norm, max_norm),
            tf.constant(math.nan, tf.float32),
        )
        return [_scaled(gradient, scale) for gradient in dense], norm


def _scaled(gradient, scale):
    if isinstance(gradient, Part):
        return dataclasses.replace(gradient, value=gradient.value * scale)
    return None if gradient is None else gradient * scale
