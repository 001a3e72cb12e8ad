"""Writes the variables of models in TensorFlow 1's idiom: names, shapes, dtypes, in their order."""

from __future__ import absolute_import, division, print_function

import collections
import json
import os

import tensorflow as tf
from tensorflow.python.layers import base as base_layer

tf.flags.DEFINE_string("output_dir", None, "Where variables.json goes.")
tf.flags.DEFINE_bool("applications", False, "Whether to build all of the Keras applications.")
FLAGS = tf.flags.FLAGS
MODELS = collections.OrderedDict()


def model(function):
    MODELS[function.__name__] = function
    return function


class DepthwiseConv2D(tf.keras.layers.DepthwiseConv2D, tf.layers.Layer):
    pass


class TpuBatchNormalization(tf.layers.BatchNormalization):
    pass


class KerasBatchNormalization(tf.keras.layers.BatchNormalization, base_layer.Layer):
    pass


class KerasDense(tf.keras.layers.Dense, tf.layers.Layer):
    pass


class ScaledLayer(tf.layers.Layer):
    def build(self, input_shape):
        self.scale = self.add_weight("scale", [int(input_shape[-1])], tf.float32)
        self.offset = self.add_variable("offset", [1], initializer=tf.zeros_initializer())
        super(ScaledLayer, self).build(input_shape)

    def call(self, inputs):
        return inputs * tf.cast(self.scale, inputs.dtype) + tf.cast(self.offset, inputs.dtype)


class KerasBlock(tf.keras.layers.Layer):
    def __init__(self, **kwargs):
        super(KerasBlock, self).__init__(**kwargs)
        self.dense = tf.keras.layers.Dense(4, name="inner")
        self.norm = tf.keras.layers.BatchNormalization()

    def call(self, inputs):
        return self.norm(self.dense(inputs))


class KerasNet(tf.keras.Model):
    def __init__(self):
        super(KerasNet, self).__init__(name="net")
        self.stem = DepthwiseConv2D([3, 3], padding="same", use_bias=False)
        self.norm = TpuBatchNormalization(axis=-1, momentum=0.99, epsilon=1e-3)
        self.conv = tf.layers.Conv2D(4, [1, 1], use_bias=False)
        self.head = tf.layers.Dense(2)

    def call(self, inputs, training=True):
        x = tf.nn.relu(self.norm(self.stem(inputs), training=training))
        return self.head(tf.reduce_mean(self.conv(x), [1, 2]))


def images(dtype=tf.float32):
    return tf.zeros([2, 16, 16, 3], dtype)


def words():
    return tf.zeros([2, 5, 4])


@model
def convolutions():
    x = images()
    with tf.variable_scope("net"):
        for _ in range(2):
            x = tf.layers.conv2d(x, 4, 3, padding="same", activation=tf.nn.relu)
        x = tf.layers.conv2d_transpose(x, 4, 3, strides=2, padding="same", name="up")
        x = tf.layers.max_pooling2d(x, 2, 2)
        with tf.variable_scope("deep"):
            x = tf.layers.Conv2D(4, (3, 1), use_bias=False, name="conv")(x)
            x = tf.layers.separable_conv2d(x, 4, 3, depth_multiplier=2)
    x = tf.layers.conv1d(tf.layers.flatten(x)[:, :, None], 2, 3)
    x = tf.layers.separable_conv1d(x, 2, 3)
    return tf.layers.conv3d(tf.zeros([1, 4, 4, 4, 1]), 2, 2)


@model
def reused_layers():
    x = images()
    for reuse in (False, True):
        with tf.variable_scope("tower", reuse=reuse):
            tf.layers.conv2d(x, 2, 3, name="conv")
            tf.layers.dense(x, 2, name="dense")
    layer = tf.layers.Dense(2, name="shared")
    return layer(x), layer(x), tf.layers.dense(x, 2), tf.layers.dense(x, 2)


@model
def depthwise_of_both_hierarchies():
    x = images()
    for scope in ("first", "second"):
        with tf.variable_scope(scope):
            x = DepthwiseConv2D(3, padding="same", use_bias=False)(x)
            x = KerasBatchNormalization(axis=-1)(x, training=True)
            x = TpuBatchNormalization(axis=-1)(x, training=True)
            x = DepthwiseConv2D(3, depth_multiplier=2, name="named")(x)
            x = KerasDense(3)(x)
            x = ScaledLayer()(x)
    return x


@model
def net_of_keras():
    with tf.variable_scope("outer"):
        return KerasNet()(images())


@model
def bfloat16_scope():
    with tf.contrib.tpu.bfloat16_scope():
        x = images(tf.bfloat16)
        x = tf.layers.conv2d(x, 4, 3)
        x = DepthwiseConv2D(3)(x)
        x = tf.layers.batch_normalization(x, training=True)
        x = KerasBatchNormalization(axis=-1)(x, training=True)
        with tf.variable_scope("head"):
            x = KerasDense(4)(tf.reduce_mean(x, [1, 2]))
            x = ScaledLayer()(x)
            return tf.get_variable("own", [2], tf.bfloat16), tf.layers.dense(x, 2)


@model
def batch_normalizations():
    x = images()
    x = tf.layers.batch_normalization(x, training=True)
    x = tf.layers.batch_normalization(x, training=False, center=False, name="no_center")
    x = tf.layers.batch_normalization(x, training=True, scale=False, fused=False, trainable=False)
    x = tf.layers.batch_normalization(x, training=True, renorm=True)
    x = tf.contrib.layers.batch_norm(x, is_training=True, scale=True)
    return tf.layers.batch_normalization(tf.reduce_mean(x, [1, 2]), training=True)


@model
def keras_layers():
    x = images()
    with tf.variable_scope("ignored"):
        x = tf.keras.layers.Conv2D(4, 3)(x)
        x = tf.keras.layers.SeparableConv2D(4, 3)(x)
        x = tf.keras.layers.DepthwiseConv2D(3)(x)
        x = tf.keras.layers.BatchNormalization()(x, training=True)
        x = tf.keras.layers.Flatten()(x)
        x = KerasBlock()(x)
        x = KerasBlock(name="block")(x)
    return tf.keras.layers.Dense(2)(tf.keras.layers.Dense(3)(x))


@model
def keras_sequential():
    net = tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(3,)), tf.keras.layers.PReLU()])
    return net(tf.zeros([2, 3]))


@model
def keras_recurrent():
    x = tf.keras.layers.Embedding(10, 4)(tf.zeros([2, 5], tf.int32))
    x = tf.keras.layers.LSTM(3, return_sequences=True)(x)
    x = tf.keras.layers.Bidirectional(tf.keras.layers.GRU(3, return_sequences=True))(x)
    x = tf.keras.layers.RNN(tf.keras.layers.LSTMCell(3), return_sequences=True)(x)
    return tf.keras.layers.SimpleRNN(2)(x)


@model
def recurrent():
    cells = [
        tf.nn.rnn_cell.BasicRNNCell(3),
        tf.nn.rnn_cell.BasicLSTMCell(3),
        tf.nn.rnn_cell.LSTMCell(3, use_peepholes=True, num_proj=2),
        tf.contrib.rnn.GRUCell(3),
        tf.nn.rnn_cell.DropoutWrapper(tf.nn.rnn_cell.LSTMCell(3), output_keep_prob=0.5),
        tf.nn.rnn_cell.MultiRNNCell([tf.nn.rnn_cell.GRUCell(3) for _ in range(2)]),
    ]
    for number, cell in enumerate(cells):
        with tf.variable_scope("cell_%d" % number):
            tf.nn.dynamic_rnn(cell, words(), dtype=tf.float32)
    forward, backward = (tf.contrib.rnn.LSTMCell(3) for _ in range(2))
    tf.nn.bidirectional_dynamic_rnn(forward, backward, words(), dtype=tf.float32)
    return tf.nn.static_rnn(
        tf.nn.rnn_cell.GRUCell(3), tf.unstack(words(), axis=1), dtype=tf.float32
    )


@model
def slim_layers():
    slim = tf.contrib.slim
    x = slim.conv2d(images(), 4, 3, normalizer_fn=slim.batch_norm, scope="conv1")
    x = slim.separable_conv2d(x, 4, 3, 1)
    x = slim.repeat(x, 2, slim.conv2d, 4, 3, scope="conv2")
    x = tf.contrib.layers.layer_norm(slim.flatten(x))
    return slim.fully_connected(x, 2)


@model
def optimizer_slots():
    x = tf.layers.dense(tf.zeros([2, 3]), 2)
    loss = tf.reduce_mean(tf.layers.batch_normalization(x, training=True))
    step = tf.train.get_or_create_global_step()
    tf.train.AdamOptimizer().minimize(loss)
    tf.train.RMSPropOptimizer(0.1, momentum=0.9).minimize(loss, step)
    average = tf.train.ExponentialMovingAverage(0.9, step)
    return average.apply(tf.trainable_variables())


def application(name):
    def build():
        size = 331 if name == "NASNetLarge" else 224
        net = getattr(tf.keras.applications, name)(weights=None, input_shape=(size, size, 3))
        return net(tf.zeros([1, size, size, 3]))

    return build


def variables_of(build):
    with tf.Graph().as_default():
        build()
        trainable = set(v.name for v in tf.trainable_variables())
        return [
            [v.name, v.shape.as_list(), v.dtype.base_dtype.name, v.name in trainable]
            for v in tf.global_variables()
        ]


def main(unused_argv):
    if FLAGS.applications:
        MODELS.clear()
        for name in "DenseNet121 InceptionV3 MobileNet MobileNetV2 ResNet50 VGG16 Xception".split():
            MODELS[name] = application(name)
    seen = collections.OrderedDict((name, variables_of(build)) for name, build in MODELS.items())
    tf.gfile.MakeDirs(FLAGS.output_dir)
    with tf.gfile.Open(os.path.join(FLAGS.output_dir, "variables.json"), "w") as file:
        lines = [
            "%s: [\n %s]" % (json.dumps(name), ",\n ".join(json.dumps(v) for v in variables))
            for name, variables in seen.items()
        ]
        file.write("{%s}\n" % ",\n".join(lines))


if __name__ == "__main__":
    tf.flags.mark_flag_as_required("output_dir")
    tf.app.run()
