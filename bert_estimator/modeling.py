"""BERT: the network of Devlin et al. (2018), with google-research/bert's variables and numerics.

Letters of the shapes:
    B  examples in the batch (may be unknown when the graph is built)
    F  positions attended from: the sequence length
    T  positions attended to: equal to F here
    N  attention heads
    D  size of a head
    H  hidden size, N * D

The network computes in the dtype of the variable scope (see `precision.scope`); layer norm, softmax
and the sum of the embeddings are float32 in any case. Between layers the activations are matrices
[B * F, H]: every dense layer is one matrix product.
"""

import functools
import math
import zlib

import tensorflow.compat.v1 as tf
import tf_slim as slim

from bert_estimator import precision
from bert_estimator.bert_config import BertConfig as BertConfig  # modeling.BertConfig, as ever
from bert_estimator.layers import activations, primitives
from bert_estimator.layers import recompute as recompute_lib

# Added to the scores of padded positions: the softmax gives them 0 in float32.
_MASK_ADDER = -10000.0


class BertModel:
    """The encoder: embeddings, transformer layers, pooler.

    config = modeling.BertConfig.preset("tiny", vocab_size=30522)
    model = modeling.BertModel(config, is_training=False, input_ids=input_ids)
    logits = tf.matmul(model.get_pooled_output(), weights)
    """

    def __init__(
        self,
        config,
        is_training,
        input_ids,
        input_mask=None,
        token_type_ids=None,
        use_one_hot_embeddings=False,
        scope=None,
        dropout=None,
        recompute=False,
    ):
        """Builds the graph of the network.

        Args:
            config: BertConfig.
            is_training: Python bool; dropout is off without it.
            input_ids: int32 [B, F], ids in the vocabulary; F static.
            input_mask: int32 [B, F], 1 for tokens and 0 for padding; None is all ones.
            token_type_ids: int32 [B, F], below type_vocab_size; None is all zeros.
            use_one_hot_embeddings: Python bool; look embeddings up by a product with one-hot rows
                (faster on TPUs), or by gather.
            scope: name of the variable scope, "bert" by default.
            dropout: function (x, rate) -> tensor like x, such as a `dropout.Dropout`, called with x
                of shape [B, ...]; needed if `is_training` and a dropout probability is not 0.
            recompute: Python bool; in training, keep of each layer its input alone, and compute the
                layer again for its gradient: less memory, and a third more work. Needs a
                `dropout.Dropout`, whose masks can be drawn again.

        Raises:
            ValueError: a shape does not fit the configuration, or `dropout` is needed and missing.
        """
        hidden_rate = config.hidden_dropout_prob if is_training else 0.0
        attention_rate = config.attention_probs_dropout_prob if is_training else 0.0
        if dropout is None and max(hidden_rate, attention_rate) > 0:
            raise ValueError(
                f"BertModel(is_training=True) with hidden_dropout_prob={hidden_rate} and "
                f"attention_probs_dropout_prob={attention_rate} needs its random numbers: pass "
                "dropout=bert_estimator.layers.dropout.Dropout(seed, step), or set both to 0."
            )
        input_ids = tf.convert_to_tensor(input_ids)
        sequence_length = _check_inputs(config, input_ids, input_mask, token_type_ids)
        if input_mask is None:
            input_mask = tf.ones_like(input_ids)
        if token_type_ids is None:
            token_type_ids = tf.zeros_like(input_ids)

        # With a name of its own, not a default one made unique, the scope is the same in every call
        # under reuse.
        with tf.variable_scope(scope or "bert", use_resource=True):
            with tf.variable_scope("embeddings"):
                embeddings, self._embedding_table = embed(
                    config, input_ids, token_type_ids, use_one_hot_embeddings
                )
                if hidden_rate:
                    embeddings = dropout(embeddings, hidden_rate)
                # Only what is cast here makes the encoder run in the compute dtype.
                hidden = tf.cast(embeddings, precision.compute_dtype())
                self._embedding_output = hidden
                hidden = tf.reshape(hidden, [-1, config.hidden_size])

            def layer(x, dropout):
                return transformer_layer(
                    config, x, input_mask, hidden_rate, attention_rate, dropout
                )

            if recompute and is_training:
                layer = functools.partial(recompute_lib.recompute, layer)
            with tf.variable_scope("encoder"):
                layers = []
                for index in range(config.num_hidden_layers):
                    with tf.variable_scope(f"layer_{index}"):
                        hidden = layer(hidden, dropout)
                    layers.append(hidden)
            shape = [-1, sequence_length, config.hidden_size]
            self._all_encoder_layers = [tf.reshape(layer, shape) for layer in layers]
            with tf.variable_scope("pooler"):
                self._pooled_output = tf.tanh(
                    dense(
                        self.get_sequence_output()[:, 0, :],
                        config.hidden_size,
                        config.initializer_range,
                        "dense",
                    )
                )
        self.config = config

    def get_pooled_output(self):
        """[B, H] in the compute dtype: tanh of a dense layer on the first token."""
        return self._pooled_output

    def get_sequence_output(self):
        """[B, F, H] in the compute dtype: the output of the last layer."""
        return self._all_encoder_layers[-1]

    def get_all_encoder_layers(self):
        """The outputs of all layers, first to last, each as `get_sequence_output`."""
        return self._all_encoder_layers

    def get_embedding_output(self):
        """[B, F, H] in the compute dtype: what the first layer sees."""
        return self._embedding_output

    def get_embedding_table(self):
        """[vocab_size, H] float32 variable: the word embeddings."""
        return self._embedding_table


def embed(config, input_ids, token_type_ids, use_one_hot_embeddings):
    """Sums word, token type and position embeddings, and normalises.

    Returns:
        The embeddings, float32 [B, F, H], and the table of word embeddings.
    """
    sequence_length = input_ids.shape.as_list()[1]

    def table(name, rows):
        return weight(name, [rows, config.hidden_size], config.initializer_range, tf.float32)

    word_table = table("word_embeddings", config.vocab_size)
    type_table = table("token_type_embeddings", config.type_vocab_size)
    position_table = table("position_embeddings", config.max_position_embeddings)
    lookup = one_hot_lookup if use_one_hot_embeddings else gather_lookup
    words = lookup(word_table, input_ids) + lookup(type_table, token_type_ids)
    embeddings = layer_norm(words + position_table[:sequence_length])
    return embeddings, word_table


def gather_lookup(table, ids):
    """Rows of a float32 table [V, H] by int32 ids [B, F]: float32 [B, F, H].

    The gradient is dense, a sum by row in float32. The IndexedSlices of a plain gather would be
    joined with the dense gradient of a table which is an output layer as well, row by row.
    """
    table = tf.convert_to_tensor(table)
    return primitives.with_gradient("BertEstimatorGather", tf.gather(table, ids), table, ids)


@tf.RegisterGradient("BertEstimatorGather")
def _gather_gradient(op, gradient, *_):
    _, table, ids = op.inputs
    vocab_size, width = table.shape.as_list()
    rows = tf.reshape(gradient, [-1, width])
    return None, tf.math.unsorted_segment_sum(rows, tf.reshape(ids, [-1]), vocab_size), None


def one_hot_lookup(table, ids):
    """As `gather_lookup`, by a matrix product in the compute dtype."""
    dtype = precision.compute_dtype()
    vocab_size, hidden_size = table.shape.as_list()
    one_hot = tf.one_hot(tf.reshape(ids, [-1]), vocab_size, dtype=dtype)
    rows = tf.matmul(one_hot, tf.cast(table, dtype))
    return tf.cast(tf.reshape(rows, [-1, ids.shape.as_list()[1], hidden_size]), tf.float32)


def transformer_layer(config, x, input_mask, hidden_rate, attention_rate, dropout):
    """One encoder layer, attention and feed-forward, on x [B * F, H]; returns the same shape."""
    sequence_length = input_mask.shape.as_list()[1]

    def project_and_add(values, residual):
        values = dense(values, config.hidden_size, config.initializer_range, "dense")
        if hidden_rate:
            examples = tf.reshape(values, [-1, sequence_length, config.hidden_size])
            values = tf.reshape(dropout(examples, hidden_rate), [-1, config.hidden_size])
        return tf.cast(layer_norm(values + residual), residual.dtype)

    with tf.variable_scope("attention"):
        with tf.variable_scope("self"):
            context = self_attention(config, x, input_mask, attention_rate, dropout)
        with tf.variable_scope("output"):
            attention = project_and_add(context, x)
    with tf.variable_scope("intermediate"):
        intermediate = dense(attention, config.intermediate_size, config.initializer_range, "dense")
        intermediate = activations.ACTIVATIONS[config.hidden_act](intermediate)
    with tf.variable_scope("output"):
        return project_and_add(intermediate, attention)


def self_attention(config, x, input_mask, attention_rate, dropout):
    """Multi-head self-attention (Vaswani et al., 2017, section 3.2) on x [B * F, H].

    Args:
        config: BertConfig.
        x: [B * F, H] in the compute dtype.
        input_mask: int32 [B, T], 1 for positions that may be attended to.
        attention_rate: dropout rate of the probabilities.
        dropout: function (x, rate) -> tensor like x.

    Returns:
        [B * F, H] in the compute dtype, the heads side by side.
    """
    sequence_length = input_mask.shape.as_list()[1]
    head_size = config.hidden_size // config.num_attention_heads

    def heads(name, scale=None):
        values = dense(x, config.hidden_size, config.initializer_range, name, scale)
        values = tf.reshape(values, [-1, sequence_length, config.num_attention_heads, head_size])
        return tf.transpose(values, [0, 2, 1, 3])

    # `query`, `key`, `value` = [B, N, F or T, D]. The scores' factor 1 / sqrt(D) is in the query's
    # weights: H * H products instead of B * N * F * T.
    query = heads("query", scale=1.0 / math.sqrt(head_size))
    key = heads("key")
    value = heads("value")

    # `scores` = [B, N, F, T]; `adder` = [B, 1, 1, T], broadcast over the heads and the positions
    # attended from.
    scores = tf.matmul(query, key, transpose_b=True)
    adder = (1.0 - tf.cast(input_mask[:, tf.newaxis, tf.newaxis, :], tf.float32)) * _MASK_ADDER
    probs = tf.nn.softmax(tf.cast(scores, tf.float32) + adder)
    if attention_rate:
        probs = dropout(probs, attention_rate)

    # `context` = [B, N, F, D], then [B, F, N, D].
    context = tf.matmul(tf.cast(probs, value.dtype), value)
    return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, config.hidden_size])


def dense(x, units, initializer_range, name, scale=None):
    """x [rows, n] times `name`/kernel [n, units] plus `name`/bias [units], in the compute dtype.

    With a `scale` the output is multiplied by it, by way of the weights, in float32.
    """
    dtype = precision.compute_dtype()
    stored = None if scale is None else tf.float32
    with tf.variable_scope(name):
        kernel = weight("kernel", [x.shape.as_list()[-1], units], initializer_range, stored)
        bias = tf.get_variable("bias", [units], dtype=stored, initializer=tf.zeros_initializer())
        if scale is not None:
            kernel = tf.cast(kernel * scale, dtype)
            bias = tf.cast(bias * scale, dtype)
        return tf.nn.bias_add(tf.matmul(x, kernel), bias)


def layer_norm(x):
    """Layer norm (Ba et al., 2016) of the last dimension, epsilon 1e-12: float32 like x."""
    return slim.layer_norm(
        tf.cast(x, tf.float32), begin_norm_axis=-1, begin_params_axis=-1, scope="LayerNorm"
    )


def weight(name, shape, initializer_range, dtype=None):
    """A variable of the current scope, from a normal distribution truncated at two deviations.

    The values are a function of the graph's seed and the variable's full name, whatever else the
    graph holds and in which order it was built: a training graph, an evaluation graph and a graph
    of micro-batches begin with the same weights. Without `tf.set_random_seed` the seed is TF's
    default one.

    Args:
        name: name below the current variable scope.
        shape: list of ints.
        initializer_range: standard deviation before truncation.
        dtype: dtype requested; None is the scope's.

    Returns:
        What `tf.get_variable` returns.
    """
    full_name = f"{tf.get_variable_scope().name}/{name}"

    def initializer(shape, dtype):
        seed = tf.get_seed(zlib.crc32(full_name.encode()))
        # The inverse of the distribution function on pinned random bits: the built-in truncated
        # normal draws other values under XLA than on the CPU, this one differs by rounding.
        words = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=shape,
            key=tf.constant([seed[0]], tf.uint64),
            counter=tf.constant([0, seed[1]], tf.uint64),
            alg=1,  # Philox
            dtype=tf.uint32,
        )
        # 24 bits, the most that float32 holds exactly, as odd multiples of 2^-24 within (-1, 1).
        uniform = tf.cast(tf.bitwise.right_shift(words, tf.constant(8, tf.uint32)), tf.float32)
        uniform = (uniform - (2.0**23 - 0.5)) * 2.0**-23
        two_deviations = math.erf(2.0 / math.sqrt(2.0))
        normal = math.sqrt(2.0) * tf.math.erfinv(uniform * two_deviations)
        return tf.cast(normal * initializer_range, dtype)

    return tf.get_variable(name, shape, dtype=dtype, initializer=initializer)


def _check_inputs(config, input_ids, input_mask, token_type_ids):
    """Returns the sequence length; raises ValueError for shapes the network cannot take."""
    shape = input_ids.shape
    if shape.rank != 2 or shape.as_list()[1] is None:
        raise ValueError(
            f"input_ids ({input_ids.name}) has shape {shape}, not [batch, static sequence length]."
        )
    sequence_length = shape.as_list()[1]
    if sequence_length > config.max_position_embeddings:
        raise ValueError(
            f"input_ids ({input_ids.name}): sequences of {sequence_length} tokens, but "
            f"max_position_embeddings={config.max_position_embeddings}; use shorter sequences "
            "(--max_seq_length), or a configuration with more positions."
        )
    for name, other in (("input_mask", input_mask), ("token_type_ids", token_type_ids)):
        if other is not None and not other.shape.is_compatible_with(shape):
            raise ValueError(f"{name} has shape {other.shape}; it must be input_ids' {shape}.")
    return sequence_length
