"""Initial weights; the sum of word, token type and position embeddings; lookups in a table.

An initial weight is a function of the graph's seed and the variable's name. Letters of the shapes:
B examples, F positions, E width of the embeddings, V rows of a table.
"""

import math
import zlib

import tensorflow.compat.v1 as tf

from bert_estimator import precision
from bert_estimator.bert_config import BertConfig
from bert_estimator.layers import kernels
from bert_estimator.layers.kernels import masks
from bert_estimator.layers.primitives import length_of


def weight(
    name: str, shape: list[int], initializer_range: float, dtype: tf.DType | None = None
) -> tf.Variable | tf.Tensor:
    """Creates a variable in the current scope, from a normal truncated at two deviations.

    The values are a function of the graph's seed and the variable's full name. They do not depend
    on what else the graph holds or on the order in which it was built, so a training graph, an
    evaluation graph and a graph of micro-batches begin with the same weights. Without
    `tf.set_random_seed` the seed is TensorFlow's default seed.

    Args:
      name: the name below the current variable scope.
      shape: the variable's shape.
      initializer_range: standard deviation before truncation.
      dtype: the dtype to request; None requests the scope's dtype.

    Returns:
      What `tf.get_variable` returns.
    """
    full_name = f"{tf.get_variable_scope().name}/{name}"

    def initializer(shape, dtype):
        return tf.cast(_truncated_normal(full_name, shape) * initializer_range, dtype)

    return tf.get_variable(name, shape, dtype=dtype, initializer=initializer)


def _truncated_normal(full_name, shape):
    """Returns a float32 tensor of standard normal values truncated at two deviations.

    It applies the inverse of the distribution function to pinned random bits. TensorFlow's own
    truncated normal draws other values under XLA than on the CPU; here the two differ by rounding.
    """
    seed = tf.get_seed(zlib.crc32(full_name.encode()))
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape,
        key=tf.constant([seed[0]], tf.uint64),
        counter=tf.constant([0, seed[1]], tf.uint64),
        alg=masks.ALGORITHM,
        dtype=tf.uint32,
    )
    # float32 holds 24 bits exactly: odd multiples of 1/2 within (-2^23, 2^23).
    odd = tf.cast(tf.bitwise.right_shift(words, tf.constant(8, tf.uint32)), tf.float32)
    odd -= 2.0**23 - 0.5
    two_deviations = math.erf(2.0 / math.sqrt(2.0))
    return math.sqrt(2.0) * tf.math.erfinv(odd * (two_deviations * 2.0**-23))


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
        return weight(name, shape, config.initializer_range, tf.float32)

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
