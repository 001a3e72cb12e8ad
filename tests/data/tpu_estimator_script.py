"""A TPUEstimator script as people wrote it for TensorFlow 1.14, which today's cannot run."""

import numpy as np
import tensorflow as tf

flags = tf.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "Keep the checkpoints in this directory.")
flags.DEFINE_bool("use_tpu", False, "Train on a TPU.")
flags.DEFINE_string("tpu_name", None, "Use the TPU of this name.")
flags.DEFINE_integer("train_steps", 60, "Train this number of steps.")
flags.mark_flag_as_required("model_dir")


def input_fn(params):
    x = np.random.RandomState(0).normal(size=(512, 8)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int32)
    data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(128, seed=1)
    data = data.apply(tf.contrib.data.batch_and_drop_remainder(params["batch_size"]))
    return data.make_one_shot_iterator().get_next()


def metric_fn(labels, logits):
    return {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1))}


def model_fn(features, labels, mode, params):
    hidden = tf.layers.dense(features, 16, activation=tf.nn.relu)
    logits = tf.layers.dense(hidden, 2)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.train.AdamOptimizer(0.01)
        if params["use_tpu"]:
            optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
    eval_metrics = (metric_fn, [labels, logits])
    return tf.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=eval_metrics)


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    cluster = None
    if FLAGS.use_tpu and FLAGS.tpu_name:
        cluster = tf.contrib.cluster_resolver.TPUClusterResolver(FLAGS.tpu_name)
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn,
        config=tf.contrib.tpu.RunConfig(
            cluster=cluster,
            model_dir=FLAGS.model_dir,
            save_checkpoints_steps=20,
            tpu_config=tf.contrib.tpu.TPUConfig(iterations_per_loop=20),
        ),
        use_tpu=FLAGS.use_tpu,
        train_batch_size=32,
        eval_batch_size=32,
        params={"use_tpu": FLAGS.use_tpu},
    )
    estimator.train(input_fn, max_steps=FLAGS.train_steps)
    results = estimator.evaluate(input_fn, steps=8)
    print("accuracy", results["accuracy"])


if __name__ == "__main__":
    tf.app.run()
