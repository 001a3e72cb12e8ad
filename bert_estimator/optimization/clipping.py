"""Clipping by the global norm (Pascanu et al., 2013, "On the difficulty of training RNNs")."""

import math

import tensorflow.compat.v1 as tf

from bert_estimator.optimization import gradients as gradients_lib


def clip_by_global_norm(gradients, max_norm):
    """Scales all gradients by one factor, so that their joint L2 norm is at most `max_norm`.

    The norm is that of all gradients as one long vector, in float32. As in
    `tf.clip_by_global_norm`, a norm that is infinite or NaN makes every clipped gradient NaN: the
    step fails where it can be seen. (max_norm / infinity is 0, which would turn an overflow into
    a step without gradients.) Unlike it, duplicate rows of a sparse gradient count as their sum.

    Args:
        gradients: list of float tensors, `tf.IndexedSlices` and None, of any shapes. They must be
            sums over the whole batch: clipping parts of it and adding them is another algorithm.
        max_norm: Python float > 0.

    Returns:
        (clipped, global_norm): a list of dense float32 tensors, with None where `gradients` has
        it, and the norm before clipping, a float32 scalar, for summaries.

    Raises:
        ValueError: `max_norm` is not a positive finite number, or every gradient is None.
    """
    if not (math.isfinite(max_norm) and max_norm > 0.0):
        raise ValueError(
            f"clip_by_global_norm: max_norm={max_norm} must be finite and > 0; BERT clips to 1.0. "
            "To train without clipping, do not call it."
        )
    with tf.name_scope("clip_by_global_norm"):
        dense = [gradients_lib.to_dense_float32(gradient) for gradient in gradients]
        squares = [tf.reduce_sum(tf.square(each)) for each in dense if each is not None]
        if not squares:
            raise ValueError(
                "clip_by_global_norm: no gradient to clip, all are None; the loss does not depend "
                "on any of the variables."
            )
        norm = tf.sqrt(tf.add_n(squares), name="global_norm")
        scale = tf.where(
            tf.math.is_finite(norm),
            max_norm / tf.maximum(norm, max_norm),
            tf.constant(math.nan, tf.float32),
        )
        return [None if each is None else each * scale for each in dense], norm
