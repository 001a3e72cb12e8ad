"""A model_fn of Keras layers, some of which read Keras's learning phase."""

from __future__ import absolute_import, division, print_function

import os

import numpy as np
import tensorflow as tf

flags = tf.flags
flags.DEFINE_string("output_dir", None, "Where the checkpoints and the results go.")
flags.DEFINE_bool("use_tpu", False, "Whether to use a TPU.")
flags.DEFINE_string("tpu", None, "The TPU to use.")
flags.DEFINE_integer("train_steps", 20, "Steps of training.")
FLAGS = flags.FLAGS


def make_spec(mode, loss, optimizer, metric_fn, tensors):
    """Returns the spec of a loss; batch normalization is updated with the weights."""
    if mode != tf.estimator.ModeKeys.TRAIN:
        return tf.contrib.tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, eval_metrics=(metric_fn, tensors)
        )
    if FLAGS.use_tpu:
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


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

    return make_spec(mode, loss, optimizer, metric_fn, [labels, logits])


def main(unused_argv):
    tf.logging.set_verbosity(tf.logging.INFO)
    resolver = None
    if FLAGS.tpu:
        resolver = tf.contrib.cluster_resolver.TPUClusterResolver(tpu=FLAGS.tpu)
    config = tf.contrib.tpu.RunConfig(
        cluster=resolver,
        model_dir=FLAGS.output_dir,
        save_checkpoints_steps=20,
        save_summary_steps=1,
        tpu_config=tf.contrib.tpu.TPUConfig(iterations_per_loop=5),
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn,
        config=config,
        use_tpu=FLAGS.use_tpu,
        train_batch_size=16,
        eval_batch_size=16,
        params={},
    )
    estimator.train(lambda params: input_fn(params, 0), max_steps=FLAGS.train_steps)
    results = estimator.evaluate(lambda params: input_fn(params, 1), steps=4)
    with tf.gfile.Open(os.path.join(FLAGS.output_dir, "eval_results.txt"), "w") as f:
        for key in sorted(results):
            f.write("%s = %s\n" % (key, results[key]))


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    tf.app.run()
