"""The network's operations for a session on this machine.

As single operations, each of which reads and writes whole tensors, they would take a large part of
a training step on a CPU. So on large tensors, several of them are one compiled pass, forward and
for the gradient. On small tensors one computation saves less in a whole training than the second or
more that every session takes to compile it.
"""

import functools
import math

import tensorflow.compat.v1 as tf

from bert_estimator.layers import primitives
from bert_estimator.layers.kernels import formulas, masks
from bert_estimator.layers.kernels.masks import Mask

# The least numbers of elements for which a pass is compiled.
_LEAST_SCORES = 1 << 20
_LEAST_OF_MASKS = 1 << 20
# TensorFlow's own cross-entropy takes 4 nanoseconds for an element, and the compiled one takes 1.
_LEAST_LOGITS = 1 << 22

# It stands for a number of examples that is not known when the graph is built.
_USUAL_EXAMPLES = 16

# In a program for XLA, too.
bias_add, gather, gelu = formulas.bias_add, formulas.gather, formulas.gelu
gelu_erf, layer_norm = formulas.gelu_erf, formulas.layer_norm
look_up_types = gather  # of a table with few rows

# This takes H * H products instead of B * N * F * T.
SCALES_QUERY = True


def heads(
    x: tf.Tensor, projections: formulas.Projections, length: int | tf.Tensor, num_heads: int
) -> list[tf.Tensor]:
    """Returns the queries, keys and values of all heads at positions x [B * F, H]: [B, N, F, D]."""
    query, key, value = projections
    # TensorFlow's optimizer sums the gradients of x in the order of their names, that is, of the
    # products. Another order would change the last bits of a run that goes on.
    in_order = key, value, query
    key, value, query = formulas.heads(bias_add, x, in_order, length, num_heads)
    return [query, key, value]


def products(query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Returns the products of queries and keys, [B, N, F, T]."""
    return tf.matmul(query, key, transpose_b=True)


def masked_logits(scores: tf.Tensor, input_mask: tf.Tensor, is_packed: bool) -> tf.Tensor:
    """Returns scores, in float32, to which a bias is added where the mask does not allow a key."""
    function, tensor = formulas.masking(input_mask, is_packed)
    return _fused_if_large(_LEAST_SCORES, function, scores, tensor)


softmax = tf.nn.softmax


def means(
    dropped: tf.Tensor,
    value: tf.Tensor,
    scores: tf.Tensor,
    logits: tf.Tensor,
    probs: tf.Tensor,
    mask: Mask | None,
) -> tf.Tensor:
    """Returns the means of the values, weighted by what dropout leaves of the probabilities,
    [B, F, N, D]; the other arguments are what `dropped` is computed from."""
    context = tf.matmul(dropped, value)
    # Gradients reach x and the weights of the network, but `tf.gradients` with respect to the
    # probabilities returns None.
    inputs = (scores, value, dropped, context, probs, *(mask or ()))
    context = primitives.with_gradient("BertEstimatorAttention", context, *inputs)
    return tf.transpose(context, [0, 2, 1, 3])


# The gradient of the logits is probs * (g - sum(probs * g)), with the gradient g of probs and a sum
# over T. The sum needs all of g, so g, which is as large as probs, would be written once and read
# twice. But the sum equals the sum over D of the context times its gradient: dropout's factors are
# in both (Dao et al., 2022, "FlashAttention", appendix B.2).


@tf.RegisterGradient("BertEstimatorAttention")
def _attention_gradient(op, gradient, *_):
    _, scores, value, dropped, context, probs, *mask = op.inputs
    dropped_gradient = tf.matmul(gradient, value, transpose_b=True)
    value_gradient = tf.matmul(dropped, gradient, transpose_a=True)
    function = _scores_gradient_in(scores.dtype)
    tensors = (probs, dropped_gradient, context, gradient, *mask)
    scores_gradient = _fused_if_large(_LEAST_SCORES, function, *tensors)
    return None, scores_gradient, value_gradient, *[None] * (len(op.inputs) - 3)


@functools.cache
def _scores_gradient_in(dtype):
    """Returns a function that computes the gradient of the scores in float32, and casts it."""

    def scores_gradient(probs, dropped_gradient, context, context_gradient, *mask):
        if mask:
            probs_gradient = masks.mask_and_scale_to(tf.float32)(dropped_gradient, *mask)
        else:
            probs_gradient = tf.cast(dropped_gradient, tf.float32)
        products = tf.cast(context, tf.float32) * tf.cast(context_gradient, tf.float32)
        sums = tf.reduce_sum(products, axis=-1, keepdims=True)  # [B, N, F, 1]
        return tf.cast(probs * (probs_gradient - sums), dtype)

    return scores_gradient


def used_rows(input_mask: tf.Tensor) -> tf.Tensor | None:
    """Returns how many of the packed rows are to be computed, int32 scalar; None means all."""
    # All batches may have the same number of rows. Then only the fullest one uses all of them, and
    # in the others the last row with a token is the last to compute. A row begins with its tokens.
    numbers = tf.range(1, tf.shape(input_mask)[0] + 1)
    return tf.maximum(1, tf.reduce_max(numbers * tf.cast(input_mask[:, 0] > 0, tf.int32)))


def mask_and_scale(mask: Mask, values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Applies a mask to values, in the dtype of its scale; returns the result, cast to `dtype`."""
    function = masks.mask_and_scale_to(dtype)
    return _fused_if_large(_LEAST_OF_MASKS, function, values, *mask)


def draw_mask(
    shape: masks.Shape, key: tf.Tensor, counter: tf.Tensor, threshold: tf.Tensor, may_pack: bool
) -> tf.Tensor:
    """Draws the mask of blocks of random words: bool, or uint8 if it is packed.

    Args:
      shape: (rows, *shape of a row's blocks); the number of rows may be a tensor.
      key: uint64 [1].
      counter: uint64 [2].
      threshold: uint32 scalar tensor; see `masks.eighths`.
      may_pack: whether the mask may be packed; see `Mask`.
    """
    rows, *of_row = shape
    usual = _USUAL_EXAMPLES if tf.is_tensor(rows) else rows
    if usual * math.prod(of_row) * masks.BLOCK_ELEMENTS < _LEAST_OF_MASKS:
        return masks.draw(shape, key, counter, threshold)
    like = tf.zeros([rows, 0])  # its shape is known when it is compiled
    # On a CPU, one loop that draws and compares takes half the time of TensorFlow's operation for
    # random words.
    packed = primitives.fused(_compiled_packed(tuple(of_row)), like, key, counter, threshold)
    return packed if may_pack else primitives.fused(masks.unpacked, packed)


@functools.cache
def _compiled_packed(of_row):
    """Returns a function of (like [rows, 0], key, counter, threshold) that gives a packed mask,
    uint8 [rows, *of_row]."""

    def packed(like, key, counter, threshold):
        shape = [tf.shape(like)[0], *of_row]
        eighths = masks.eighths(masks.blocks(key, counter, math.prod(shape)), threshold)
        # The result is a single tensor: XLA would compute the words of a block again for each of
        # several.
        bits = [tf.cast(e, tf.uint8) * bit for e, bit in zip(eighths, masks.BITS, strict=True)]
        return tf.reshape(functools.reduce(tf.bitwise.bitwise_or, bits), shape)

    return packed


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns -log(softmax(logits)[label]) for labels int32 [rows], logits float32 [rows, V]."""
    # A label out of range gives TensorFlow's error here, but NaN on accelerators and for large
    # logits.
    if (logits.shape.num_elements() or 0) < _LEAST_LOGITS:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss, log_sum = primitives.fused(_loss_and_log_sum, labels, logits)
    name = "BertEstimatorCrossEntropy"
    return primitives.with_gradient(name, loss, labels, logits, log_sum)


@tf.RegisterGradient("BertEstimatorCrossEntropy")
def _cross_entropy_gradient(op, gradient, *_):
    _, labels, logits, log_sum = op.inputs
    return None, None, primitives.fused(_logits_gradient, labels, logits, log_sum, gradient), None


def _loss_and_log_sum(labels, logits):
    largest = tf.reduce_max(logits, axis=-1)
    log_sum = largest + tf.math.log(tf.reduce_sum(tf.exp(logits - largest[:, tf.newaxis]), axis=-1))
    # XLA would take another row's logit for a label that is out of range.
    in_range = tf.logical_and(labels >= 0, labels < tf.shape(logits)[-1])
    loss = log_sum - tf.gather(logits, labels, batch_dims=1)
    return tf.where(in_range, loss, tf.fill(tf.shape(loss), float("nan"))), log_sum


def _logits_gradient(labels, logits, log_sum, gradient):
    at_label = tf.one_hot(labels, tf.shape(logits)[-1])
    return (tf.exp(logits - log_sum[:, tf.newaxis]) - at_label) * gradient[:, tf.newaxis]


def first_token(sequence: tf.Tensor) -> tf.Tensor:
    """Returns the first position of a sequence [B, F, H]: [B, H]."""
    return sequence[:, 0, :]


def _fused_if_large(least_elements, function, *tensors):
    """Calls a function, as one XLA computation if the first tensor is large, and else directly."""
    # An unknown rank cannot be compiled; an unknown size, but for the number of examples, counts as
    # small.
    is_known = all(tensor.shape.rank is not None for tensor in tensors)
    if not is_known or primitives.num_elements(tensors[0].shape, _USUAL_EXAMPLES) < least_elements:
        return function(*tensors)
    return primitives.fused(function, *tensors)
