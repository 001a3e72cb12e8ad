"""What scripts share: flags, a loss's spec, an estimator, a file of results."""

from __future__ import absolute_import, division, print_function

import os

import tensorflow as tf

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


def make_estimator(model_fn, batch_size=16, **params):
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
    return tf.contrib.tpu.TPUEstimator(
        model_fn,
        config=config,
        use_tpu=FLAGS.use_tpu,
        train_batch_size=batch_size,
        eval_batch_size=batch_size,
        predict_batch_size=batch_size,
        params=params,
    )


def write_results(results, others=""):
    with tf.gfile.Open(os.path.join(FLAGS.output_dir, "eval_results.txt"), "w") as f:
        for key in sorted(results):
            f.write("%s = %s\n" % (key, results[key]))
        f.write(others)


def run(model_fn, input_fn):
    """Trains and evaluates by the flags; input_fn is a function of (params, seed)."""

    def main(unused_argv):
        estimator = make_estimator(model_fn)
        estimator.train(lambda params: input_fn(params, 0), max_steps=FLAGS.train_steps)
        write_results(estimator.evaluate(lambda params: input_fn(params, 1), steps=4))

    flags.mark_flag_as_required("output_dir")
    tf.app.run(main)
