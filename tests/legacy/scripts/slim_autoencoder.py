"""An autoencoder in slim's style, with arg scopes, regularizers and boolean features."""

from __future__ import absolute_import, division, print_function

import os

import numpy as np
import one_model
import tensorflow as tf
from tensorflow.contrib import slim


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
    tf.gfile.MakeDirs(one_model.FLAGS.output_dir)
    path = os.path.join(one_model.FLAGS.output_dir, "data_%d.tfrecord" % seed)
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

    return one_model.make_spec(mode, loss, optimizer, metric_fn, [features["large"], logits])


if __name__ == "__main__":
    one_model.run(model_fn, input_fn)
