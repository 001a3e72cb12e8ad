"""Tags sequences: embeddings, an LSTM, a GRU the other way, gradients clipped by hand."""

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

    return make_spec(mode, loss, optimizer, metric_fn, [labels, logits, mask])


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
