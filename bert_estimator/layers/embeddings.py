"""The sum of word, token type and position embeddings, and two ways to look up rows of a table.

Letters of the shapes: B examples, F positions, E width of the embeddings, V rows of a table.
"""

import tensorflow.compat.v1 as tf

from bert_estimator import precision
from bert_estimator.bert_config import BertConfig
from bert_estimator.layers import initializers, kernels
from bert_estimator.layers.primitives import length_of


def embed(
    config: BertConfig,
    input_ids: tf.Tensor,
    token_type_ids: tf.Tensor,
    use_one_hot_embeddings: bool,
    position_ids: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Variable]:
    """Sums the word, token type and position embeddings, before layer norm.

    Args:
      config: BertConfig.
      input_ids: int32 [B, F], ids in the vocabulary.
      token_type_ids: int32 [B, F], below type_vocab_size.
      use_one_hot_embeddings: whether to call `one_hot_lookup` rather than `gather_lookup`.
      position_ids: int32 [B, F]; None for 0, 1, 2 and so on in each row.

    Returns:
      The sum, float32 [B, F, E], and the table of word embeddings, a float32 variable.
    """

    def table(name, rows):
        shape = [rows, config.embedding_width()]
        return initializers.weight(name, shape, config.initializer_range, tf.float32)

    word_table = table("word_embeddings", config.vocab_size)
    type_table = table("token_type_embeddings", config.type_vocab_size)
    position_table = table("position_embeddings", config.max_position_embeddings)
    if use_one_hot_embeddings:
        words = one_hot_lookup(word_table, input_ids)
        words += one_hot_lookup(type_table, token_type_ids)
    else:
        words = gather_lookup(word_table, input_ids)
        types = tf.convert_to_tensor(type_table)
        words += kernels.of_graph().look_up_types(types, token_type_ids)
    if position_ids is None:
        return words + position_table[: length_of(input_ids)], word_table
    look_up = one_hot_lookup if use_one_hot_embeddings else gather_lookup
    return words + look_up(position_table, position_ids), word_table


def gather_lookup(table: tf.Variable | tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Gathers rows of a float32 table [V, E] by int32 ids [B, F]: float32 [B, F, E].

    The gradient is dense, a sum by row in float32.
    """
    return kernels.of_graph().gather(tf.convert_to_tensor(table), ids)


def one_hot_lookup(table: tf.Variable | tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Does what `gather_lookup` does by a matrix product in the compute dtype."""
    dtype = precision.compute_dtype()
    vocab_size, hidden_size = table.shape.as_list()
    one_hot = tf.one_hot(tf.reshape(ids, [-1]), vocab_size, dtype=dtype)
    rows = tf.matmul(one_hot, tf.cast(table, dtype))
    return tf.cast(tf.reshape(rows, [-1, length_of(ids), hidden_size]), tf.float32)
