"""An autoencoder in slim's style, with arg scopes, regularizers and boolean features."""

from __future__ import absolute_import, division, print_function

import os

import numpy as np
import tensorflow as tf
from tensorflow.contrib import slim

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


def write_records(path, seed):
    random = np.random.RandomState(seed)
    with tf.python_io.TFRecordWriter(path) as writer:
        for _ in range(64):
            values = random.uniform(size=12)
            feature = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=values)),
                "large": tf.train.Feature(int64_list=tf.train.Int64List(value=values > 0.5)),
                "first": tf.train.Feature(
                    int64_list=tf.train.Int64List(value=[bool(values[0] > 0.5)])
                ),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


def input_fn(params, seed):
    tf.gfile.MakeDirs(FLAGS.output_dir)
    path = os.path.join(FLAGS.output_dir, "data_%d.tfrecord" % seed)
    write_records(path, seed)
    keys = {
        "x": tf.FixedLenFeature([12], tf.float32),
        "large": tf.FixedLenFeature([12], tf.int64),
        "first": tf.FixedLenFeature([1], tf.int64),
    }

    def parse(record):
        features = tf.parse_single_example(record, keys)
        for name in ("large", "first"):
            features[name] = tf.cast(features[name], tf.float32)
        return features

    dataset = tf.data.TFRecordDataset(path).map(parse)
    return dataset.repeat().batch(params["batch_size"], drop_remainder=True)


def model_fn(features, labels, mode, params):
    with slim.arg_scope(
        [slim.fully_connected],
        activation_fn=tf.nn.elu,
        weights_regularizer=slim.l2_regularizer(1e-3),
    ):
        x = tf.concat([features["x"], features["first"]], axis=1)
        x = slim.stack(x, slim.fully_connected, [10, 5], scope="encode")
        x = tf.contrib.layers.layer_norm(x)
        logits = slim.fully_connected(x, 12, activation_fn=None, scope="decode")
    slim.losses.sigmoid_cross_entropy(logits, features["large"])
    loss = slim.losses.get_total_loss()
    optimizer = tf.contrib.opt.AdamWOptimizer(1e-4, 0.02)

    def metric_fn(large, logits):
        return {"mean_iou": tf.metrics.mean_iou(large, tf.cast(logits > 0, tf.int32), 2)}

    return make_spec(mode, loss, optimizer, metric_fn, [features["large"], logits])


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
