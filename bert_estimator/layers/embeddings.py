"""The sum of word, token type and position embeddings, and two ways to look up rows of a table.

Letters of the shapes: B examples, F positions, E width of the embeddings, V rows of a table.
"""

import tensorflow.compat.v1 as tf

from bert_estimator import precision
from bert_estimator.bert_config import BertConfig
from bert_estimator.layers import initializers, primitives
from bert_estimator.xla_context import in_xla_program

# A table with at most so many rows is small enough for `select_lookup`.
_FEW_ROWS = 4


def embed(
    config: BertConfig,
    input_ids: tf.Tensor,
    token_type_ids: tf.Tensor,
    use_one_hot_embeddings: bool,
) -> tuple[tf.Tensor, tf.Variable]:
    """Sums the word, token type and position embeddings, before layer norm.

    Args:
      config: BertConfig.
      input_ids: int32 [B, F], ids in the vocabulary.
      token_type_ids: int32 [B, F], below type_vocab_size.
      use_one_hot_embeddings: whether to call `one_hot_lookup` rather than `gather_lookup`.

    Returns:
      The sum, float32 [B, F, E], and the table of word embeddings, a float32 variable.
    """

    def table(name, rows):
        shape = [rows, config.embedding_width()]
        return initializers.weight(name, shape, config.initializer_range, tf.float32)

    word_table = table("word_embeddings", config.vocab_size)
    type_table = table("token_type_embeddings", config.type_vocab_size)
    position_table = table("position_embeddings", config.max_position_embeddings)
    lookup = one_hot_lookup if use_one_hot_embeddings else gather_lookup
    words = lookup(word_table, input_ids)
    gathers = lookup is gather_lookup
    if gathers and in_xla_program() and 1 < config.type_vocab_size <= _FEW_ROWS:
        lookup = select_lookup
    words += lookup(type_table, token_type_ids)
    return words + position_table[: length_of(input_ids)], word_table


def gather_lookup(table: tf.Variable | tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Gathers rows of a float32 table [V, E] by int32 ids [B, F]: float32 [B, F, E].

    The gradient is dense, a sum by row in float32. The table of words is also the output layer of
    the masked language model, whose gradient is dense: TensorFlow would add the IndexedSlices of a
    plain `tf.gather` to it row by row.
    """
    table = tf.convert_to_tensor(table)
    return primitives.with_gradient("BertEstimatorGather", tf.gather(table, ids), table, ids)


@tf.RegisterGradient("BertEstimatorGather")
def _gather_gradient(op, gradient, *_):
    _, table, ids = op.inputs
    vocab_size, width = table.shape.as_list()
    rows = tf.reshape(gradient, [-1, width])
    return None, tf.math.unsorted_segment_sum(rows, tf.reshape(ids, [-1]), vocab_size), None


def select_lookup(table: tf.Variable | tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Does what `gather_lookup` does, by comparisons, for a table of two or a few more rows.

    In a program for XLA this becomes part of the operations around it. A gather would write a whole
    tensor, and its gradient would read one. An id that the table does not have gets row 0.
    """
    rows, *others = tf.unstack(tf.convert_to_tensor(table))
    ids = ids[..., tf.newaxis]
    for row, other in enumerate(others, 1):
        rows = tf.where_v2(tf.equal(ids, row), other, rows)
    return rows


def one_hot_lookup(table: tf.Variable | tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Does what `gather_lookup` does by a matrix product in the compute dtype."""
    dtype = precision.compute_dtype()
    vocab_size, hidden_size = table.shape.as_list()
    one_hot = tf.one_hot(tf.reshape(ids, [-1]), vocab_size, dtype=dtype)
    rows = tf.matmul(one_hot, tf.cast(table, dtype))
    return tf.cast(tf.reshape(rows, [-1, length_of(ids), hidden_size]), tf.float32)


def length_of(tensor: tf.Tensor) -> int | tf.Tensor:
    """Returns the sequence length of a tensor [B, F, ...]; a scalar tensor if it is not static."""
    static = tensor.shape.as_list()[1]
    return tf.shape(tensor)[1] if static is None else static
