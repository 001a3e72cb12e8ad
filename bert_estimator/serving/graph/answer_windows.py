"""Windows of contexts in a graph, as `input_pipelines.tasks.windows.Windows` makes them.

Letters: B questions, R windows of all questions, F sequence length, P tokens of all contexts.
"""

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_estimator.tokenization import Tokenizer


class GraphWindows(NamedTuple):
    """Holds the windows of questions, in order.

    Attributes:
      features: `input_ids`, `input_mask`, `segment_ids`, int32 [R, F].
      owners: int64 [R], the number of each window's question.
      tokens: int64 [R, F], the number of the context's token at each position, counted over the P
        tokens of all contexts; -1 for other positions.
      is_best: bool [R, F], which tokens have most context in this window, of all windows that they
        are in, as `Windows.best_contexts` says; false for other positions.
    """

    features: dict[str, tf.Tensor]
    owners: tf.Tensor
    tokens: tf.Tensor
    is_best: tf.Tensor


def windows_of(
    queries: tf.RaggedTensor,
    contexts: tf.RaggedTensor,
    tokenizer: Tokenizer,
    max_seq_length: int,
    doc_stride: int,
) -> GraphWindows:
    """Returns the windows of questions.

    Args:
      queries: the tokens of the questions, already cut, int32 [B, (tokens)].
      contexts: the tokens of their contexts, int32 [B, (tokens)].
      tokenizer: the tokenizer of the special tokens.
      max_seq_length: F.
      doc_stride: how many tokens after the window before it a window begins.
    """
    place = queries.row_lengths() + 2  # of the first token of a context
    room = max_seq_length - 1 - place
    size = contexts.row_lengths()
    stride = tf.minimum(room, doc_stride)
    count = 1 + (tf.maximum(size - room, 0) + stride - 1) // stride
    number = tf.ragged.range(count)
    owners = number.value_rowids()
    place, room, size, stride, first_query, first_token = (
        tf.gather(tensor, owners)[:, tf.newaxis]
        for tensor in (place, room, size, stride, queries.row_starts(), contexts.row_starts())
    )
    start = number.flat_values[:, tf.newaxis] * stride
    length = tf.minimum(size - start, room)
    position = tf.range(max_seq_length, dtype=tf.int64)[tf.newaxis]
    inside = position - place
    is_token = (inside >= 0) & (inside < length)
    is_query = (position >= 1) & (position < place - 1)
    tokens = tf.where_v2(is_token, first_token + start + inside, -1)
    query = tf.where_v2(is_query, first_query + position - 1, -1)
    is_sep = tf.equal(position, place - 1) | tf.equal(inside, length)
    ids = gathered(contexts.flat_values, tokens) + gathered(queries.flat_values, query)
    ids += tokenizer.sep_id * tf.cast(is_sep, tf.int32)
    ids += tokenizer.cls_id * tf.cast(tf.equal(position, 0), tf.int32)
    features = {
        "input_ids": ids,
        "input_mask": tf.cast(inside <= length, tf.int32),
        "segment_ids": tf.cast((inside >= 0) & (inside <= length), tf.int32),
    }
    context = _context(inside, length)
    total = tf.size(contexts.flat_values, out_type=tf.int64)
    return GraphWindows(features, owners, tokens, _is_best(context, tokens, total))


def gathered(values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns the values, [K], at places, int64 of any shape; 0 at the place -1."""
    padded = tf.concat([tf.zeros([1], values.dtype), values], axis=0)
    return tf.gather(padded, places + 1)


def _context(inside, length):
    """Returns how much context tokens have, float64 [R, F], as `Windows.best_contexts` counts."""
    sides = tf.minimum(inside, length - 1 - inside)
    return tf.cast(sides, tf.float64) + 0.01 * tf.cast(length, tf.float64)


def _is_best(context, tokens, total):
    """Returns where tokens have most context, and in the first of these windows, bool [R, F]."""
    is_token = tokens >= 0
    token, context = tf.boolean_mask(tokens, is_token), tf.boolean_mask(context, is_token)
    most = tf.math.unsorted_segment_max(context, token, total)
    row = tf.where_v2(is_token)[:, 0]
    is_most = tf.equal(context, tf.gather(most, token))
    winner = tf.math.unsorted_segment_min(
        tf.boolean_mask(row, is_most), tf.boolean_mask(token, is_most), total
    )
    is_winner = tf.equal(row, tf.gather(winner, token))
    return tf.scatter_nd(tf.where_v2(is_token), is_winner, tf.shape(tokens, out_type=tf.int64))
