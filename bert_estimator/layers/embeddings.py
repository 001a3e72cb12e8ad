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
    """Creates a variable in the current scope, from a normal truncated at two deviations; a dtype
    of None requests the scope's dtype, and initializer_range is the deviation before truncation."""
    # The values are a function of the graph's seed (without `tf.set_random_seed`, the default seed)
    # and of this name. They do not depend on what else the graph holds or on the order in which it
    # was built, so a training graph, an evaluation graph and a graph of micro-batches begin with
    # the same weights.
    full_name = f"{tf.get_variable_scope().name}/{name}"

    def initializer(shape, dtype):
        return tf.cast(_truncated_normal(full_name, shape) * initializer_range, dtype)

    return tf.get_variable(name, shape, dtype=dtype, initializer=initializer)


def _truncated_normal(full_name, shape):
    """Returns a float32 tensor of standard normal values truncated at two deviations."""
    # The inverse of the distribution function is applied to pinned random bits. TensorFlow's own
    # truncated normal draws other values under XLA than on the CPU; here the two differ by
    # rounding.
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
    """Returns the sum of word, token type and position embeddings, float32 [B, F, E] before layer
    norm, and the table of words; position_ids None is 0, 1, 2 and so on in each row."""

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
    """Gathers rows of a float32 table [V, E] by int32 ids [B, F]; the gradient is dense."""
    return kernels.of_graph().gather(tf.convert_to_tensor(table), ids)


def one_hot_lookup(table: tf.Variable | tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Does what `gather_lookup` does by a matrix product in the compute dtype."""
    dtype = precision.compute_dtype()
    vocab_size, hidden_size = table.shape.as_list()
    one_hot = tf.one_hot(tf.reshape(ids, [-1]), vocab_size, dtype=dtype)
    rows = tf.matmul(one_hot, tf.cast(table, dtype))
    return tf.cast(tf.reshape(rows, [-1, length_of(ids), hidden_size]), tf.float32)
