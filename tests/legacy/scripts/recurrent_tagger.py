"""Tags sequences: embeddings, an LSTM, a GRU the other way, gradients clipped by hand."""

from __future__ import absolute_import, division, print_function

import numpy as np
import one_model
import tensorflow as tf


def input_fn(params, seed):
    random = np.random.RandomState(seed)
    words = random.randint(1, 20, size=(64, 6)).astype(np.int32)
    lengths = random.randint(3, 7, size=64).astype(np.int32)
    tags = (words + np.roll(words, 1, axis=1)).astype(np.int32) % 3
    dataset = tf.data.Dataset.from_tensor_slices(({"words": words, "lengths": lengths}, tags))
    return dataset.repeat().batch(params["batch_size"], drop_remainder=True)


def model_fn(features, labels, mode, params):
    table = tf.get_variable("embeddings", [20, 8], initializer=tf.random_normal_initializer())
    x = tf.nn.embedding_lookup(table, features["words"])
    forward, _ = tf.nn.dynamic_rnn(
        tf.nn.rnn_cell.LSTMCell(6),
        x,
        sequence_length=features["lengths"],
        dtype=tf.float32,
        scope="forward",
    )
    backward, _ = tf.nn.dynamic_rnn(
        tf.contrib.rnn.GRUCell(6), tf.reverse(x, [1]), dtype=tf.float32, scope="backward"
    )
    logits = tf.layers.dense(tf.concat([forward, tf.reverse(backward, [1])], axis=2), 3)
    mask = tf.sequence_mask(features["lengths"], 6, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(losses * mask)
    optimizer = tf.contrib.estimator.clip_gradients_by_norm(tf.train.AdamOptimizer(0.05), 10.0)

    def metric_fn(labels, logits, mask):
        return {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, axis=2), mask)}

    return one_model.make_spec(mode, loss, optimizer, metric_fn, [labels, logits, mask])


if __name__ == "__main__":
    one_model.run(model_fn, input_fn)
