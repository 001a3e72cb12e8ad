"""A mobile convnet: layers of both hierarchies, squeeze and excitation, rotated images, LARS."""

from __future__ import absolute_import, division, print_function

import numpy as np
import one_model
import tensorflow as tf
from tensorflow.contrib import image as contrib_image


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

    return one_model.make_spec(mode, loss, optimizer, metric_fn, [labels, logits])


if __name__ == "__main__":
    one_model.run(model_fn, input_fn)
