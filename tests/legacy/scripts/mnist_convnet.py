"""A convolutional network on images of synthetic digits, in float32 or bfloat16."""

from __future__ import absolute_import, division, print_function

import os

import numpy as np
import tensorflow as tf
from absl import app, flags

FLAGS = flags.FLAGS

flags.DEFINE_string("output_dir", None, "Where the data and the checkpoints go.")
flags.DEFINE_string("tpu", None, "The Cloud TPU to use.")
flags.DEFINE_bool("use_tpu", False, "Use TPUs rather than plain CPUs.")
flags.DEFINE_integer("num_shards", None, "Number of shards (TPU cores).")
flags.DEFINE_enum("precision", "float32", ["bfloat16", "float32"], "Precision of the network.")
flags.DEFINE_integer("batch_size", 16, "Mini-batch size of the training.")
flags.DEFINE_float("learning_rate", 0.05, "Learning rate.")
flags.DEFINE_integer("train_steps", 20, "Total number of training steps.")
flags.DEFINE_integer("eval_steps", 2, "Number of evaluation steps; 0 skips the evaluation.")
flags.DEFINE_integer("iterations", 10, "Steps of one call of the TPU.")

IMAGE_SIZE = 8
NUM_CLASSES = 4


def write_images(path, num_images, seed):
    """Writes images of a bright bar whose place is the label, with noise."""
    random = np.random.RandomState(seed)
    with tf.python_io.TFRecordWriter(path) as writer:
        for _ in range(num_images):
            label = random.randint(NUM_CLASSES)
            image = random.randint(0, 120, size=(IMAGE_SIZE, IMAGE_SIZE)).astype(np.uint8)
            image[2 * label : 2 * label + 2] += 120
            feature = {
                "image_raw": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[image.tobytes()])
                ),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


def dataset_parser(value):
    """Parses a serialized image; returns it and its label."""
    parsed = tf.parse_single_example(
        value,
        {
            "image_raw": tf.FixedLenFeature([], tf.string),
            "label": tf.FixedLenFeature([], tf.int64),
        },
    )
    image = tf.decode_raw(parsed["image_raw"], tf.uint8)
    image.set_shape([IMAGE_SIZE * IMAGE_SIZE])
    image = tf.reshape(image, [IMAGE_SIZE, IMAGE_SIZE, 1])
    image = tf.cast(image, tf.float32) * (1.0 / 255) - 0.5
    if FLAGS.precision == "bfloat16":
        image = tf.cast(image, tf.bfloat16)
    return image, tf.cast(parsed["label"], tf.int32)


class ImageInput(object):
    def __init__(self, path, is_training):
        self.path = path
        self.is_training = is_training

    def input_fn(self, params):
        dataset = tf.data.TFRecordDataset(self.path)
        if self.is_training:
            dataset = dataset.repeat()
        dataset = dataset.map(dataset_parser, num_parallel_calls=2).cache()
        dataset = dataset.apply(
            tf.contrib.data.batch_and_drop_remainder(params["batch_size"])
        ).prefetch(2)
        images, labels = dataset.make_one_shot_iterator().get_next()
        return images, labels


def network(images, is_training):
    """Returns logits [batch, classes] in the dtype of the images."""
    net = tf.layers.conv2d(images, 8, 3, padding="same", use_bias=False, name="conv1")
    net = tf.layers.batch_normalization(
        net, axis=3, momentum=0.9, epsilon=1e-5, training=is_training, fused=True, name="bn1"
    )
    net = tf.layers.max_pooling2d(tf.nn.relu(net), 2, 2)
    net = tf.layers.conv2d(net, 8, 3, padding="same", activation=tf.nn.relu)
    net = tf.layers.average_pooling2d(net, pool_size=2, strides=2, padding="valid")
    net = tf.layers.flatten(net)
    net = tf.layers.dense(net, 16, activation=tf.nn.relu)
    net = tf.layers.batch_normalization(net, momentum=0.9, training=is_training)
    net = tf.layers.dropout(net, rate=0.0, training=is_training)
    return tf.layers.dense(
        net, NUM_CLASSES, kernel_initializer=tf.random_normal_initializer(stddev=0.1), name="logits"
    )


def metric_fn(labels, logits):
    predictions = tf.argmax(logits, axis=1)
    return {
        "accuracy": tf.metrics.accuracy(labels, predictions),
        "recall_at_2": tf.metrics.mean(tf.cast(tf.nn.in_top_k(logits, labels, 2), tf.float32)),
    }


def model_fn(features, labels, mode, params):
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    if FLAGS.precision == "bfloat16":
        with tf.contrib.tpu.bfloat16_scope():
            logits = network(features, is_training)
        logits = tf.cast(logits, tf.float32)
    else:
        logits = network(features, is_training)

    one_hot_labels = tf.one_hot(labels, NUM_CLASSES)
    cross_entropy = tf.losses.softmax_cross_entropy(
        logits=logits, onehot_labels=one_hot_labels, label_smoothing=0.1
    )
    loss = cross_entropy + 1e-4 * tf.add_n(
        [tf.nn.l2_loss(v) for v in tf.trainable_variables() if "batch_normalization" not in v.name]
    )
    if mode == tf.estimator.ModeKeys.TRAIN:
        global_step = tf.train.get_global_step()
        learning_rate = tf.train.exponential_decay(
            FLAGS.learning_rate, global_step, decay_steps=10, decay_rate=0.9, staircase=True
        )
        optimizer = tf.train.MomentumOptimizer(learning_rate, momentum=0.9, use_nesterov=True)
        if FLAGS.use_tpu:
            optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
        update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(update_ops):
            train_op = optimizer.minimize(loss, global_step)
        return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)
    return tf.contrib.tpu.TPUEstimatorSpec(
        mode=mode, loss=loss, eval_metrics=(metric_fn, [labels, logits])
    )


def main(argv):
    del argv
    tf.logging.set_verbosity(tf.logging.INFO)
    tf.gfile.MakeDirs(FLAGS.output_dir)
    train_file = os.path.join(FLAGS.output_dir, "train.tfrecord")
    eval_file = os.path.join(FLAGS.output_dir, "eval.tfrecord")
    write_images(train_file, 96, seed=0)
    write_images(eval_file, 32, seed=1)

    resolver = None
    if FLAGS.use_tpu and FLAGS.tpu:
        resolver = tf.contrib.cluster_resolver.TPUClusterResolver(FLAGS.tpu)
    run_config = tf.contrib.tpu.RunConfig(
        cluster=resolver,
        model_dir=FLAGS.output_dir,
        save_checkpoints_steps=20,
        save_summary_steps=1,
        session_config=tf.ConfigProto(allow_soft_placement=True, log_device_placement=False),
        tpu_config=tf.contrib.tpu.TPUConfig(FLAGS.iterations, FLAGS.num_shards),
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn=model_fn,
        use_tpu=FLAGS.use_tpu,
        train_batch_size=FLAGS.batch_size,
        eval_batch_size=FLAGS.batch_size,
        params={"data_dir": FLAGS.output_dir},
        config=run_config,
    )
    estimator.train(input_fn=ImageInput(train_file, True).input_fn, max_steps=FLAGS.train_steps)
    if FLAGS.eval_steps:
        results = estimator.evaluate(
            input_fn=ImageInput(eval_file, False).input_fn, steps=FLAGS.eval_steps
        )
        with tf.gfile.Open(os.path.join(FLAGS.output_dir, "eval_results.txt"), "w") as f:
            for key in sorted(results):
                f.write("%s = %s\n" % (key, results[key]))


if __name__ == "__main__":
    app.run(main)
