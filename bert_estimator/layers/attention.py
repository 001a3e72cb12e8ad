"""Attention (Vaswani et al., 2017, "Attention is all you need", section 3.2.1).

Letters of the shapes: B examples, N heads, F queries, T keys, D size of a head.
"""

import functools
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from bert_estimator.layers import primitives
from bert_estimator.layers.dropout import Dropout, Mask

# Added to the scores of padding. Its exponential is 0 in float32, unless a row has only padding:
# then all scores shift by the same amount, and attention is over all positions, as in BERT.
_MASK_ADDER = -10000.0

# One computation for fewer scores saves less in a whole training than the time to compile it.
_LEAST_SCORES = 1 << 20


def attend(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    input_mask: tf.Tensor,
    dropout: Callable[[tf.Tensor, float], tf.Tensor] | None,
    rate: float,
    columns: bool,
    scale: float | None,
) -> tf.Tensor:
    """Returns the means of the values, with softmax(query key^T * scale) as weights.

    With `columns`, the result can be differentiated only once. Without it, if `dropout` is a
    `Dropout` or the rate is 0, gradients reach the query, the key and the value, but `tf.gradients`
    with respect to the weights returns None.

    Args:
      query: [B, N, F, D]; with `columns` [B, N, D, F].
      key, value: [B, N, T, D]; with `columns` [B, N, D, T].
      input_mask: int32 [B, T], 1 for positions that may be attended to.
      dropout: a `Dropout`, or any function (weights, rate) that returns a tensor of the weights'
        shape; the weights are float32 [B, N, F, T]. A subclass of `Dropout` counts as any function.
        With `columns`, it must multiply each weight by a factor that does not depend on the
        weights, as dropout does. It may be None if the rate is 0.
      rate: the dropout rate; for 0, `dropout` is not called.
      columns: whether positions come last in the first three, as is best in a program for XLA.
      scale: the factor of the scores, 1 / sqrt(D), in float32; None if the query has it already.

    Returns:
      [B, F, N, D] in the values' dtype.
    """
    # `scores` = [B, N, F, T]; `adder` = [B, 1, 1, T] is broadcast over N and F.
    scores = tf.matmul(query, key, transpose_a=columns, transpose_b=not columns)
    adder = (1.0 - tf.cast(input_mask[:, tf.newaxis, tf.newaxis, :], tf.float32)) * _MASK_ADDER
    logits = primitives.fused_if_large(_LEAST_SCORES, _scale_and_add(scale), scores, adder)
    probs = tf.nn.softmax(logits)
    if columns:
        probs = primitives.with_gradient("BertEstimatorSoftmax", probs, logits)
        weights = tf.cast(dropout(probs, rate) if rate else probs, value.dtype)
        # `context` = [B, N, D, F]
        context = tf.matmul(value, weights, transpose_b=True)
        context = primitives.with_gradient("BertEstimatorContext", context, context, logits, probs)
        return tf.transpose(context, [0, 3, 1, 2])
    if rate and type(dropout) is not Dropout:
        context = tf.matmul(tf.cast(dropout(probs, rate), value.dtype), value)
    else:
        mask = dropout.mask(probs, rate) if rate else None
        weights = mask.apply(probs, value.dtype) if mask else tf.cast(probs, value.dtype)
        context = tf.matmul(weights, value)
        factor = tf.constant(1.0 if scale is None else scale, tf.float32)
        inputs = (scores, value, weights, context, probs, factor, *(mask or ()))
        context = primitives.with_gradient("BertEstimatorAttention", context, *inputs)
    return tf.transpose(context, [0, 2, 1, 3])


@functools.cache
def _scale_and_add(scale):
    """Returns a function of (scores, adder) that returns the logits, in float32."""

    def scale_and_add(scores, adder):
        scores = tf.cast(scores, tf.float32)
        return (scores if scale is None else scores * scale) + adder

    return scale_and_add


# The gradient of the logits is probs * (g - sum(probs * g)), with the gradient g of the weights and
# a sum over T. The sum needs all of g, so g, which is as large as the weights, would be written
# once and read twice. But it equals the sum over D of the context times its gradient: dropout's
# factors are in both (Dao et al., 2022, "FlashAttention", appendix B.2). In a program for XLA, the
# softmax gives the first term and the context the second, and XLA computes both terms in the
# product that gives g. In a session, `_attention_gradient` computes both, for large scores in one
# compiled pass.


@tf.RegisterGradient("BertEstimatorAttention")
def _attention_gradient(op, gradient, *_):
    _, scores, value, weights, context, probs, factor, *mask = op.inputs
    weights_gradient = tf.matmul(gradient, value, transpose_b=True)
    value_gradient = tf.matmul(weights, gradient, transpose_a=True)
    function = _scores_gradient_in(scores.dtype)
    tensors = (probs, weights_gradient, context, gradient, factor, *mask)
    scores_gradient = primitives.fused_if_large(_LEAST_SCORES, function, *tensors)
    return None, scores_gradient, value_gradient, *[None] * (len(op.inputs) - 3)


@functools.cache
def _scores_gradient_in(dtype):
    """Returns a function that computes the gradient of the scores in float32, and casts it."""

    def scores_gradient(probs, weights_gradient, context, context_gradient, factor, *mask):
        if mask:
            probs_gradient = Mask(*mask).apply(weights_gradient, tf.float32)
        else:
            probs_gradient = tf.cast(weights_gradient, tf.float32)
        products = tf.cast(context, tf.float32) * tf.cast(context_gradient, tf.float32)
        sums = tf.reduce_sum(products, axis=-1, keepdims=True)  # [B, N, F, 1]
        return tf.cast(probs * (probs_gradient - sums) * factor, dtype)

    return scores_gradient


@tf.RegisterGradient("BertEstimatorSoftmax")
def _softmax_gradient(op, gradient, *_):
    probs = op.inputs[0]
    return None, _not_differentiable(probs * gradient)


@tf.RegisterGradient("BertEstimatorContext")
def _context_gradient(op, gradient, *_):
    _, context, _, probs = op.inputs
    products = tf.cast(context, tf.float32) * tf.cast(gradient, tf.float32)
    sums = tf.reduce_sum(products, axis=2)[..., tf.newaxis]  # [B, N, F, 1]
    return None, gradient, _not_differentiable(-probs * sums), None


def _not_differentiable(gradient):
    """Makes differentiating the gradient an error: the second derivative would lack terms."""
    return tf.raw_ops.PreventGradient(
        input=gradient, message="attention in a program for XLA has no second derivative"
    )
