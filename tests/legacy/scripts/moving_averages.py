"""A classifier evaluated with the moving averages of its weights: Scaffold, EMA and hooks."""

from __future__ import absolute_import, division, print_function

import os

import numpy as np
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("output_dir", "/tmp/moving_averages", "Where the checkpoints go.")
flags.DEFINE_integer("train_steps", 20, "Steps of training.")
flags.DEFINE_float("moving_average_decay", 0.9, "Decay of the moving averages.")
flags.DEFINE_bool("use_tpu", False, "Whether to use a TPU.")
flags.DEFINE_string("master", "", "TensorFlow master.")
FLAGS = flags.FLAGS

slim = tf.contrib.slim


class StepsHook(tf.train.SessionRunHook):
    """Writes the loss of each call of the session to a file."""

    def __init__(self, path):
        self._path = path

    def begin(self):
        self._step = tf.train.get_global_step()
        self._file = tf.gfile.Open(self._path, "w")

    def before_run(self, run_context):
        return tf.train.SessionRunArgs({"step": self._step})

    def after_run(self, run_context, run_values):
        self._file.write("after %d\n" % run_values.results["step"])
        if run_values.results["step"] >= FLAGS.train_steps + 1000:
            run_context.request_stop()

    def end(self, session):
        self._file.write("end %d\n" % session.run(self._step))
        self._file.close()


def input_fn(params):
    random = np.random.RandomState(3)
    x = random.normal(size=(64, 6)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int32) + (x[:, 2] > 0.5).astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat()
    return dataset.apply(tf.contrib.data.batch_and_drop_remainder(params["batch_size"]))


def network(x, is_training):
    with slim.arg_scope(
        [slim.fully_connected],
        weights_initializer=slim.variance_scaling_initializer(),
        weights_regularizer=slim.l2_regularizer(1e-3),
        activation_fn=tf.nn.elu,
    ):
        net = slim.fully_connected(x, 12, scope="hidden1")
        net = slim.dropout(net, keep_prob=1.0, is_training=is_training)
        net = slim.fully_connected(net, 12, scope="hidden2")
        return slim.fully_connected(net, 3, activation_fn=None, scope="logits")


def model_fn(features, labels, mode, params):
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    logits = network(features, is_training)
    tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    loss = tf.losses.get_total_loss()
    global_step = tf.train.get_or_create_global_step()
    ema = tf.train.ExponentialMovingAverage(params["decay"], num_updates=None)
    if is_training:
        optimizer = tf.train.AdagradOptimizer(0.1)
        if FLAGS.use_tpu:
            optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, global_step)
        with tf.control_dependencies([train_op]):
            train_op = ema.apply(tf.trainable_variables())
        return tf.contrib.tpu.TPUEstimatorSpec(
            mode=mode,
            loss=loss,
            train_op=train_op,
            training_hooks=[StepsHook(os.path.join(FLAGS.output_dir, "steps.txt"))],
        )

    def scaffold_fn():
        """Restores each weight from its moving average."""
        return tf.train.Scaffold(saver=tf.train.Saver(ema.variables_to_restore()))

    def metric_fn(labels, logits):
        return {
            "accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1)),
            "per_class": tf.metrics.mean_per_class_accuracy(labels, tf.argmax(logits, 1), 3),
        }

    return tf.contrib.tpu.TPUEstimatorSpec(
        mode=mode, loss=loss, eval_metrics=(metric_fn, [labels, logits]), scaffold_fn=scaffold_fn
    )


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn=model_fn,
        model_dir=FLAGS.output_dir,
        config=tf.contrib.tpu.RunConfig(
            master=FLAGS.master,
            save_checkpoints_steps=20,
            save_summary_steps=1,
            keep_checkpoint_max=2,
            tpu_config=tf.contrib.tpu.TPUConfig(iterations_per_loop=5),
        ),
        params={"decay": FLAGS.moving_average_decay},
        use_tpu=FLAGS.use_tpu,
        train_batch_size=16,
        eval_batch_size=16,
    )
    hooks = [tf.train.StepCounterHook(every_n_steps=10), tf.train.NanTensorHook("total_loss:0")]
    estimator.train(input_fn, hooks=None if FLAGS.use_tpu else hooks, max_steps=FLAGS.train_steps)
    results = estimator.evaluate(input_fn, steps=4, name="averages")
    with tf.gfile.GFile(os.path.join(FLAGS.output_dir, "eval_results.txt"), "w") as f:
        for key, value in sorted(results.items()):
            f.write("%s = %s\n" % (key, value))


if __name__ == "__main__":
    tf.app.run(main)
