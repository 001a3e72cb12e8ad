"""Segmentation by a small U-Net: transposed and dilated convolutions, resizing, mean IoU."""

from __future__ import absolute_import, division, print_function

import numpy as np
import one_model
import tensorflow as tf

FLAGS = one_model.FLAGS

SIZE, CLASSES = 16, 3
slim = tf.contrib.slim


def generator():
    """Yields images with a square and a bar in noise, and the class of each pixel."""
    random = np.random.RandomState(11)
    for _ in range(64):
        labels = np.zeros([SIZE, SIZE], np.int32)
        x, y, bar = random.randint(0, SIZE - 5, size=3)
        labels[y : y + 5, x : x + 5] = 1
        labels[:, bar : bar + 2] = 2
        image = np.stack([labels == 1, labels == 2, labels == 0], axis=-1).astype(np.float32)
        yield image + 0.3 * random.normal(size=image.shape).astype(np.float32), labels


def input_fn(params):
    shapes = ([SIZE, SIZE, 3], [SIZE, SIZE])
    dataset = tf.data.Dataset.from_generator(generator, (tf.float32, tf.int32), shapes)

    def resize(image, labels):
        image = tf.image.resize_images(image, [SIZE // 2, SIZE // 2])
        image = tf.image.per_image_standardization(image)
        return image, labels

    dataset = dataset.map(resize, num_parallel_calls=2).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True).prefetch(1)


def network(images):
    """Returns logits [batch, size, size, classes] for images of half that size."""
    with slim.arg_scope(
        [slim.conv2d, slim.conv2d_transpose],
        activation_fn=tf.nn.relu6,
        weights_regularizer=slim.l2_regularizer(1e-4),
    ):
        first = slim.conv2d(images, 8, 3, scope="first")
        down = slim.max_pool2d(first, 2, scope="pool")
        wide = slim.conv2d(down, 12, 3, rate=2, scope="dilated")
        wide = slim.conv2d(wide, 12, 1, scope="mixed")
        pooled = tf.reduce_mean(wide, axis=[1, 2], keepdims=True)
        wide += tf.image.resize_bilinear(pooled, wide.shape[1:3])
        up = slim.conv2d_transpose(wide, 8, 2, stride=2, scope="up")
        both = tf.concat([first, up], axis=-1)
        both = slim.conv2d_transpose(both, 8, 3, stride=2, scope="out")
        return slim.conv2d(both, CLASSES, 1, activation_fn=None, scope="logits")


def model_fn(features, labels, mode, params):
    del params
    logits = network(features)
    weights = tf.gather(tf.constant([0.5, 1.0, 1.5]), labels)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(losses * weights) + tf.losses.get_regularization_loss()
    if mode == tf.estimator.ModeKeys.TRAIN:
        global_step = tf.train.get_or_create_global_step()
        learning_rate = tf.train.polynomial_decay(0.02, global_step, 20, 1e-3, power=0.9)
        optimizer = tf.train.FtrlOptimizer(learning_rate, l1_regularization_strength=1e-4)
        if FLAGS.use_tpu:
            optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
        train_op = slim.learning.create_train_op(loss, optimizer, global_step=global_step)
        return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)

    def metric_fn(labels, logits):
        predictions = tf.argmax(logits, axis=-1)
        return {
            "mean_iou": tf.metrics.mean_iou(labels, predictions, CLASSES),
            "pixel_accuracy": tf.metrics.accuracy(labels, predictions),
        }

    return tf.contrib.tpu.TPUEstimatorSpec(
        mode=mode, loss=loss, eval_metrics=(metric_fn, [labels, logits])
    )


def main(_):
    estimator = one_model.make_estimator(model_fn)
    estimator.train(input_fn=input_fn, max_steps=FLAGS.train_steps)
    one_model.write_results(estimator.evaluate(input_fn=input_fn, steps=3))


if __name__ == "__main__":
    tf.app.run(main)
