"""The pretraining heads: masked words and next sentence (Devlin et al., 2018, section 3.1).

Letters: B examples, P predictions an example, F positions, H hidden size, V vocabulary size.
Both return float32 logits: the products are in the compute dtype, the biases are float32.
"""

import tensorflow.compat.v1 as tf

from bert_estimator import modeling, precision
from bert_estimator.layers import activations


def masked_lm_logits(model, positions):
    """Scores of the vocabulary's words at masked positions.

    The output weights are the table of word embeddings.

    Args:
        model: BertModel.
        positions: int32 [B, P], positions in the sequence.

    Returns:
        float32 [B * P, V].
    """
    config = model.config
    # `x` = [B * P, H]
    x = tf.gather(model.get_sequence_output(), positions, batch_dims=1)
    x = tf.reshape(x, [-1, config.hidden_size])
    with tf.variable_scope("cls/predictions", use_resource=True):
        with tf.variable_scope("transform"):
            x = modeling.dense(x, config.hidden_size, config.initializer_range, "dense")
            x = activations.ACTIVATIONS[config.hidden_act](x)
            x = tf.cast(modeling.layer_norm(x), precision.compute_dtype())
        table = tf.cast(model.get_embedding_table(), x.dtype)
        bias = tf.get_variable(
            "output_bias", [config.vocab_size], tf.float32, initializer=tf.zeros_initializer()
        )
        logits = precision.to_float32(tf.matmul(x, table, transpose_b=True))
        return tf.nn.bias_add(logits, bias)


def next_sentence_logits(model):
    """Scores of "is the next sentence" (0) and "is a random one" (1).

    Args:
        model: BertModel.

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
