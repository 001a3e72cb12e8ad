"""A mobile convnet: layers of both hierarchies, squeeze and excitation, rotated images, LARS."""

from __future__ import absolute_import, division, print_function

import os

import numpy as np
import tensorflow as tf
from tensorflow.contrib import image as contrib_image

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


class DepthwiseConv2D(tf.keras.layers.DepthwiseConv2D, tf.layers.Layer):
    """Is a depthwise convolution whose variables come from tf.get_variable."""


def input_fn(params, seed):
    random = np.random.RandomState(seed)
    labels = random.randint(0, 3, 64).astype(np.int32)
    images = random.uniform(size=(64, 8, 8, 3)).astype(np.float32)
    images[np.arange(64), :, :, labels] += 0.5

    def turned(image, label):
        return contrib_image.rotate(image, 0.1, interpolation="BILINEAR"), label

    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).map(turned)
    return dataset.repeat().batch(params["batch_size"], drop_remainder=True)


def block(x, filters, name):
    """Expands, convolves by depth, excites and projects; no batch statistics are used."""
    with tf.variable_scope(name):
        x = tf.nn.relu6(tf.layers.conv2d(x, 2 * filters, 1, use_bias=False))
        x = DepthwiseConv2D(3, padding="same", use_bias=False)(x)
        x = tf.layers.batch_normalization(x, training=False)
        gate = tf.reduce_mean(x, [1, 2], keepdims=True)
        gate = tf.layers.conv2d(gate, 2 * filters, 1, activation=tf.sigmoid, name="excite")
        return tf.layers.conv2d(x * gate, filters, 1, use_bias=False)


def model_fn(features, labels, mode, params):
    x = block(features, 4, "block_0")
    x = tf.layers.separable_conv2d(x, 6, 3, strides=2, padding="same", activation=tf.nn.relu)
    x = block(x, 6, "block_1") + x
    logits = tf.layers.dense(tf.reduce_mean(x, [1, 2]), 3)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    optimizer = tf.contrib.opt.LARSOptimizer(
        2.0, momentum=0.9, weight_decay=1e-4, skip_list=["batch_normalization", "bias"]
    )

    def metric_fn(labels, logits):
        return {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, axis=1))}

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
