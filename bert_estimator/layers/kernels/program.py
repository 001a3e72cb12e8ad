"""The network's operations for a program that XLA compiles as a whole; see `session.py`.

A TPU stores tensors in tiles of 8 by 128 elements. Tiles whose last dimension is D, the size of a
head, which is 64, would be half empty, and to avoid them the compiler moves whole tensors to and
fro. So in attention the positions come last, where the product itself puts them.
"""

import tensorflow.compat.v1 as tf

from bert_estimator.layers import primitives
from bert_estimator.layers.kernels import formulas, masks

bias_add, gather, gelu = formulas.bias_add, formulas.gather, formulas.gelu
gelu_erf, layer_norm = formulas.gelu_erf, formulas.layer_norm

# A table with at most so many rows is looked up by comparisons.
_FEW_ROWS = 4

# The scores are scaled, which costs nothing here: weights that are only cast are gathered from the
# cores in the compute dtype.
SCALES_QUERY = False


def heads(
    x: tf.Tensor, projections: formulas.Projections, length: int | tf.Tensor, num_heads: int
) -> list[tf.Tensor]:
    """Does what `session.heads` does, but in another layout: [B, N, D, F]."""
    width = x.shape.as_list()[1]
    examples = tf.reshape(x, [-1, length, width])
    all_heads = []
    for kernel, bias in projections:
        # The product wants its kernel in another layout than its gradient. Without the barrier, the
        # compiler would choose this layout for the variable and all that is updated with it, and
        # move all of these in float32.
        (held,) = primitives.barrier(kernel)
        held = primitives.with_gradient("BertEstimatorBarrier", held, kernel)
        values = tf.einsum("nu,bfn->buf", held, examples) + bias[:, tf.newaxis]
        all_heads.append(tf.reshape(values, [-1, num_heads, width // num_heads, length]))
    return all_heads


@tf.RegisterGradient("BertEstimatorBarrier")
def _barrier_gradient(op, gradient, *_):
    return None, gradient


def products(query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Does what `session.products` does."""
    return tf.matmul(query, key, transpose_a=True)


masked_logits = formulas.masked_logits


def softmax(logits: tf.Tensor) -> tf.Tensor:
    """Returns the softmax of the last dimension, whose gradient `means` completes."""
    return primitives.with_gradient("BertEstimatorSoftmax", tf.nn.softmax(logits), logits)


def means(
    dropped: tf.Tensor,
    value: tf.Tensor,
    scores: tf.Tensor,
    logits: tf.Tensor,
    probs: tf.Tensor,
    mask: masks.Mask | None,
) -> tf.Tensor:
    """Does what `session.means` does; the result can be differentiated only once."""
    context = tf.matmul(value, dropped, transpose_b=True)  # [B, N, D, F]
    context = primitives.with_gradient("BertEstimatorContext", context, context, logits, probs)
    return tf.transpose(context, [0, 3, 1, 2])


# The gradient of the logits has two terms; see `session.py`. Here the softmax gives the first and
# the context the second, and XLA computes both in the product that gives the gradient of `dropped`.


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


def used_rows(input_mask: tf.Tensor) -> tf.Tensor | None:
    """Does what `session.used_rows` does: the shapes of a program are static."""
    return None


def mask_and_scale(mask: masks.Mask, values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Does what `session.mask_and_scale` does."""
    return masks.mask_and_scale_to(dtype)(values, *mask)


def draw_mask(
    shape: masks.Shape, key: tf.Tensor, counter: tf.Tensor, threshold: tf.Tensor, may_pack: bool
) -> tf.Tensor:
    """Does what `session.draw_mask` does, by the operation that is best on a TPU."""
    return masks.draw(shape, key, counter, threshold)


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Does what `session.cross_entropy` does."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def look_up_types(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Does what `gather` does, by comparisons if the table has two or a few more rows."""
    if not 1 < table.shape.as_list()[0] <= _FEW_ROWS:
        return gather(table, ids)
    # Comparisons become part of the operations around them. A gather would write a whole tensor,
    # and its gradient would read one. An id that the table does not have gets row 0.
    rows, *others = tf.unstack(table)
    ids = ids[..., tf.newaxis]
    for row, other in enumerate(others, 1):
        rows = tf.where_v2(tf.equal(ids, row), other, rows)
    return rows


def first_token(sequence: tf.Tensor) -> tf.Tensor:
    """Does what `session.first_token` does."""
    # The gradient of a slice is a tensor with zeros for all other tokens. A TPU writes it in
    # another layout than the sequence's, and moves it. The gradient of a gather is added in place.
    positions = tf.zeros_like(sequence[:, :1, 0], tf.int32)
    return tf.gather(sequence, positions, batch_dims=1)[:, 0, :]
