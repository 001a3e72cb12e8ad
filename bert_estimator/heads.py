"""The pretraining heads: masked words and next sentence (Devlin et al., 2018, section 3.1).

Both heads return float32 logits: they compute the products in the compute dtype, and add the biases
in float32.

Letters of the shapes:
    B  examples in the batch: its sequences
    P  predictions per example
    F  positions: the sequence length
    H  hidden size
    E  width of the embeddings
    V  vocabulary size
"""

import tensorflow.compat.v1 as tf

from bert_estimator import modeling, precision


def masked_lm_logits(model: modeling.BertModel, positions: tf.Tensor) -> tf.Tensor:
    """Scores the words of the vocabulary at masked positions.

    The output weights are the table of word embeddings.

    Args:
      model: the network.
      positions: int32 [B, P], positions in each sequence; in packed rows [M], places among the
        tokens of all rows.

    Returns:
      float32 [B * P, V], or [M, V].
    """
    config = model.config
    # `x` = [B * P, H]
    x = model.tokens_at(positions)
    with tf.variable_scope("cls/predictions", use_resource=True):
        with tf.variable_scope("transform"):
            x = modeling.dense(x, config.embedding_width(), config.initializer_range, "dense")
            x = modeling.activate(config, x)
            x = modeling.layer_norm(x, epsilon=config.layer_norm_eps)
        table = tf.cast(model.get_embedding_table(), x.dtype)
        bias = tf.get_variable(
            "output_bias", [config.vocab_size], tf.float32, initializer=tf.zeros_initializer()
        )
        logits = precision.to_float32(tf.matmul(x, table, transpose_b=True))
        return tf.nn.bias_add(logits, bias)


def next_sentence_logits(model: modeling.BertModel) -> tf.Tensor:
    """Scores whether the second text follows the first (0) or is a random text (1).

    Args:
      model: the network.

    Returns:
      float32 [B, 2].
    """
    config = model.config
    with tf.variable_scope("cls/seq_relationship", use_resource=True):
        weights = modeling.weight(
            "output_weights", [2, config.hidden_size], config.initializer_range
        )
        bias = tf.get_variable("output_bias", [2], tf.float32, initializer=tf.zeros_initializer())
        logits = tf.matmul(model.get_pooled_output(), weights, transpose_b=True)
        return tf.nn.bias_add(precision.to_float32(logits), bias)
