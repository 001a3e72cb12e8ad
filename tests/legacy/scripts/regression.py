"""Regression with hyperparameters, whose host call writes summaries for each step."""

from __future__ import absolute_import, division, print_function

import os

import numpy as np
import one_model
import tensorflow as tf
from tensorflow.contrib import summary
from tensorflow.contrib.training.python.training import hparam
from tensorflow.python.estimator import model_fn as model_fn_lib
from tensorflow_estimator.python.estimator.tpu import tpu_config, tpu_estimator

tf.flags.DEFINE_string("hparams", "", "Comma separated name=value pairs.")
FLAGS = one_model.FLAGS


def create_hparams():
    hparams = hparam.HParams(
        hidden_units=[16, 8], learning_rate=0.01, optimizer="adam", huber=False, clip_norm=0.0
    )
    return hparams.parse(FLAGS.hparams)


def make_data(num_examples, seed):
    random = np.random.RandomState(seed)
    x = random.uniform(-1, 1, size=(num_examples, 4)).astype(np.float32)
    y = np.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.1 * x[:, 3:]
    return x, y.astype(np.float32)


def input_fn(params, mode=model_fn_lib.ModeKeys.TRAIN):
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    dataset = tf.data.Dataset.from_tensor_slices(make_data(96, seed=0 if is_training else 1))
    dataset = dataset.map(lambda x, y: ({"x": x}, y))
    if is_training:
        dataset = dataset.repeat()
    return dataset.batch(params.batch_size, drop_remainder=True)


def host_call_fn(global_step, loss, learning_rate, errors):
    """Writes the summaries of one step. The arguments are tensors with a batch axis."""
    step = tf.reduce_mean(global_step)
    with summary.create_file_writer(os.path.join(FLAGS.output_dir, "host")).as_default():
        with summary.always_record_summaries():
            summary.scalar("host_loss", tf.reduce_mean(loss), step=step)
            summary.scalar("learning_rate", tf.reduce_mean(learning_rate), step=step)
            summary.histogram("errors", errors, step=step)
            return summary.all_summary_ops()


def model_fn(features, labels, mode, params):
    x = features["x"]
    for units in params.hidden_units:
        x = tf.layers.dense(x, units, activation=tf.nn.tanh)
    predictions = tf.layers.dense(x, 1)
    if params.huber:
        loss = tf.losses.huber_loss(labels, predictions)
    else:
        loss = tf.losses.mean_squared_error(labels, predictions)
    if mode == tf.estimator.ModeKeys.EVAL:

        def metric_fn(labels, predictions):
            return {
                "rmse": tf.metrics.root_mean_squared_error(labels, predictions),
                "correlation": tf.contrib.metrics.streaming_pearson_correlation(
                    predictions, labels
                ),
            }

        return tpu_estimator.TPUEstimatorSpec(
            mode,
            loss=loss,
            eval_metrics=(metric_fn, {"labels": labels, "predictions": predictions}),
        )
    global_step = tf.train.get_global_step()
    learning_rate = tf.train.cosine_decay(params.learning_rate, global_step, 40)
    with tf.control_dependencies([learning_rate]):
        step_before = tf.identity(global_step)
    optimizer = {
        "adam": tf.train.AdamOptimizer,
        "rmsprop": tf.train.RMSPropOptimizer,
    }[params.optimizer](learning_rate)
    if FLAGS.use_tpu:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    if params.clip_norm:
        gradients, _ = tf.clip_by_global_norm(gradients, params.clip_norm)
    with tf.control_dependencies([step_before]):
        train_op = optimizer.apply_gradients(zip(gradients, variables), global_step)
    host_call = (
        host_call_fn,
        [
            tf.reshape(step_before, [1]),
            tf.reshape(loss, [1]),
            tf.reshape(learning_rate, [1]),
            labels - predictions,
        ],
    )
    return tpu_estimator.TPUEstimatorSpec(
        mode=mode, loss=loss, train_op=train_op, host_call=host_call
    )


def main(unused_argv):
    tf.logging.set_verbosity(tf.logging.INFO)
    resolver = None
    if FLAGS.tpu:
        resolver = tf.contrib.cluster_resolver.TPUClusterResolver(tpu=FLAGS.tpu)
    config = tpu_config.RunConfig(
        cluster=resolver,
        model_dir=FLAGS.output_dir,
        save_checkpoints_steps=20,
        save_summary_steps=1,
        tpu_config=tpu_config.TPUConfig(iterations_per_loop=5),
    )
    estimator = tpu_estimator.TPUEstimator(
        model_fn,
        config=config,
        params=create_hparams(),
        use_tpu=FLAGS.use_tpu,
        train_batch_size=16,
        eval_batch_size=32,
    )
    estimator.train(input_fn, max_steps=FLAGS.train_steps)
    one_model.write_results(estimator.evaluate(input_fn, steps=3))


if __name__ == "__main__":
    tf.flags.mark_flag_as_required("output_dir")
    tf.app.run()
