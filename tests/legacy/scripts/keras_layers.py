"""A model_fn of Keras layers, some of which read Keras's learning phase."""

from __future__ import absolute_import, division, print_function

import numpy as np
import one_model
import tensorflow as tf


def input_fn(params, seed):
    random = np.random.RandomState(seed)
    x = random.normal(size=(64, 6)).astype(np.float32)
    y = (np.abs(x[:, :1]) + x[:, 1:2] > 0.8).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    return dataset.repeat().batch(params["batch_size"], drop_remainder=True)


class Residual(tf.keras.layers.Layer):
    def __init__(self, units, **kwargs):
        super(Residual, self).__init__(**kwargs)
        self.dense = tf.keras.layers.Dense(units, activation="tanh", name="inner")
        self.normalization = tf.keras.layers.BatchNormalization()

    def call(self, inputs):
        return inputs + self.normalization(self.dense(inputs))


def model_fn(features, labels, mode, params):
    x = tf.keras.layers.Dense(8, activation="relu")(features)
    x = Residual(8, name="residual")(x)
    x = tf.keras.layers.Dropout(0.5)(x)  # the learning phase is 0, so nothing is dropped
    sequence = tf.keras.layers.Reshape([4, 2])(x)
    x = tf.keras.layers.concatenate([x, tf.keras.layers.LSTM(4, unroll=True)(sequence)])
    logits = tf.keras.layers.Dense(1, name="logits")(x)
    loss = tf.losses.sigmoid_cross_entropy(labels, logits)
    optimizer = tf.train.RMSPropOptimizer(0.01, momentum=0.5)

    def metric_fn(labels, logits):
        probabilities = tf.sigmoid(logits)
        return {
            "accuracy": tf.metrics.accuracy(labels, tf.round(probabilities)),
            "brier": tf.metrics.mean_squared_error(labels, probabilities),
        }

    return one_model.make_spec(mode, loss, optimizer, metric_fn, [labels, logits])


if __name__ == "__main__":
    one_model.run(model_fn, input_fn)
