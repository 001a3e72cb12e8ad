"""The network's operations made of TensorFlow's own operations and gradients; see `session.py`.

A program that does not have this project can differentiate them, and nothing is compiled when a new
shape is first seen.

Letters of the shapes: B examples, N heads, F queries, T keys, D size of a head, H = N * D.
"""

import math

import tensorflow.compat.v1 as tf

from bert_estimator.layers import primitives
from bert_estimator.layers.kernels import formulas, masks, program

bias_add, gelu_erf, layer_norm = tf.nn.bias_add, formulas.gelu_erf, formulas.layer_norm
cross_entropy, draw_mask = program.cross_entropy, program.draw_mask
gather = look_up_types = tf.gather
mask_and_scale, used_rows = program.mask_and_scale, program.used_rows


def attention(
    x: tf.Tensor,
    weights: masks.Weights,
    input_mask: tf.Tensor,
    is_packed: bool,
    num_heads: int,
    drop: masks.Drop | None,
) -> tf.Tensor:
    """Does what `session.attention` does."""
    head_size = x.shape.as_list()[1] // num_heads
    length = primitives.length_of(input_mask)

    def heads(name):
        kernel, bias = weights(name)
        values = tf.nn.bias_add(tf.matmul(x, kernel), bias)
        values = tf.reshape(values, [-1, length, num_heads, head_size])
        return tf.transpose(values, [0, 2, 1, 3])

    # The scores are scaled, since a request may have fewer scores than there are weights.
    scale = 1.0 / math.sqrt(head_size)
    return attend(heads("query"), heads("key"), heads("value"), input_mask, is_packed, drop, scale)


def attend(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    input_mask: tf.Tensor,
    is_packed: bool,
    drop: masks.Drop | None,
    scale: float,
) -> tf.Tensor:
    """Returns the means of the values [B, N, T, D], with softmax(query key^T * scale) as weights,
    [B, F, N, D]; the query is [B, N, F, D]."""
    scores = tf.matmul(query, key, transpose_b=True)  # [B, N, F, T]
    logits = formulas.masked_logits(scores, input_mask, is_packed, scale)
    probs = tf.nn.softmax(logits)
    dropped = tf.cast(drop.apply(probs) if drop else probs, value.dtype)
    return tf.transpose(tf.matmul(dropped, value), [0, 2, 1, 3])


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Returns GELU in its tanh form."""
    # Each of these operations reads and writes a whole tensor, and there are fewer than in the
    # formula. But where the sigmoid is almost 1, its gradient is less exact.
    v = tf.cast(x, tf.float32)
    inner = v * (formulas.LINEAR + formulas.CUBIC * v * v)
    return tf.cast(v * tf.sigmoid(inner), x.dtype)


def first_token(sequence: tf.Tensor) -> tf.Tensor:
    """Does what `session.first_token` does."""
    return sequence[:, 0, :]
