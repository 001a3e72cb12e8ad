"""Canned estimators with the heads of tf.contrib.estimator, and gradients clipped by their norm."""

from __future__ import absolute_import, division, print_function

import os

import numpy as np
import one_model
import tensorflow as tf
from tensorflow.contrib.estimator import clip_gradients_by_norm

FLAGS = one_model.FLAGS


def make_data(number, seed):
    random = np.random.RandomState(seed)
    x = random.normal(size=(number, 6)).astype(np.float32)
    labels = {
        "kind": np.argmax(x[:, :3], axis=1).astype(np.int64)[:, None],
        "amount": (x[:, :1] * x[:, 1:2] + x[:, 5:]).astype(np.float32),
    }
    return {"x": x}, labels


def input_fn(seed, only=None, num_epochs=None):
    features, labels = make_data(160, seed)
    labels = labels[only] if only else labels
    return tf.data.Dataset.from_tensor_slices((features, labels)).repeat(num_epochs).batch(32)


def main(unused_argv):
    tf.logging.set_verbosity(tf.logging.INFO)
    contrib = tf.contrib.estimator
    columns = [tf.feature_column.numeric_column("x", shape=[6])]

    def config(name):
        return tf.estimator.RunConfig(
            model_dir=os.path.join(FLAGS.output_dir, name),
            save_checkpoints_steps=20,
            save_summary_steps=1,
        )

    heads = contrib.multi_head(
        [
            contrib.multi_class_head(3, name="kind"),
            contrib.regression_head(name="amount"),
        ],
        head_weights=[1.0, 0.25],
    )
    estimators = {
        "": (
            None,
            tf.estimator.DNNEstimator(
                head=heads,
                hidden_units=[16, 8],
                feature_columns=columns,
                optimizer=clip_gradients_by_norm(tf.train.MomentumOptimizer(0.1, 0.9), 0.5),
                config=config(""),
            ),
        ),
        "linear": (
            "kind",
            tf.estimator.LinearEstimator(
                head=contrib.multi_class_head(3),
                feature_columns=columns,
                optimizer=tf.train.FtrlOptimizer(0.2),
                config=config("linear"),
            ),
        ),
        "both": (
            "amount",
            tf.estimator.DNNLinearCombinedEstimator(
                head=contrib.regression_head(),
                linear_feature_columns=columns,
                dnn_feature_columns=columns,
                dnn_hidden_units=[4],
                config=config("both"),
            ),
        ),
    }
    results = {}
    for name, (only, estimator) in estimators.items():
        estimator.train(lambda: input_fn(0, only), max_steps=FLAGS.train_steps)
        evaluated = estimator.evaluate(lambda: input_fn(1, only, 1))
        if name == "both":  # its initial weights are random
            evaluated = {"names": " ".join(sorted(evaluated))}
        for key, value in evaluated.items():
            results[("%s/%s" % (name, key)).strip("/")] = value
    one_model.write_results(results)


if __name__ == "__main__":
    tf.flags.mark_flag_as_required("output_dir")
    tf.app.run()
