"""A network with three heads, and a binary classifier, in model_fns with heads and logit_fns."""

from __future__ import absolute_import, division, print_function

import os

import numpy as np
import one_model
import tensorflow as tf
from tensorflow_estimator.python.estimator.canned import metric_keys, prediction_keys

FLAGS = one_model.FLAGS


def make_data(number, seed):
    random = np.random.RandomState(seed)
    x = random.normal(size=(number, 6)).astype(np.float32)
    kind = np.argmax(x[:, :3], axis=1).astype(np.int64)
    tags = (x[:, 2:5] > 0.3).astype(np.int64)
    amount = (x[:, :1] * x[:, 1:2] + x[:, 5:]).astype(np.float32)
    return {"x": x}, {"kind": kind[:, None], "tags": tags, "amount": amount}


def input_fn(seed, num_epochs=None):
    return tf.data.Dataset.from_tensor_slices(make_data(160, seed)).repeat(num_epochs).batch(32)


def make_config(name):
    return tf.estimator.RunConfig(
        model_dir=os.path.join(FLAGS.output_dir, name),
        save_checkpoints_steps=20,
        save_summary_steps=1,
        tf_random_seed=7,
    )


def make_heads():
    return tf.estimator.MultiHead(
        [
            tf.estimator.MultiClassHead(3, name="kind"),
            tf.estimator.MultiLabelHead(3, name="tags", thresholds=[0.3, 0.7]),
            tf.estimator.RegressionHead(name="amount"),
        ],
        head_weights=[1.0, 0.5, 0.25],
    )


def make_logits(units, features, mode, params, config):
    logit_fn = tf.estimator.experimental.dnn_logit_fn_builder(
        units=units,
        hidden_units=params["hidden_units"],
        feature_columns=params["columns"],
        activation_fn=tf.nn.tanh,
        dropout=None,
        input_layer_partitioner=None,
        batch_norm=False,
    )
    return tf.estimator.experimental.call_logit_fn(logit_fn, features, mode, params, config)


def multi_head_model_fn(features, labels, mode, params, config):
    head = make_heads()
    logits = make_logits(head.logits_dimension, features, mode, params, config)
    step = tf.train.get_global_step()
    optimizer = tf.train.MomentumOptimizer(tf.train.exponential_decay(0.1, step, 10, 0.9), 0.9)
    return head.create_estimator_spec(
        features=features,
        mode=mode,
        logits=logits,
        labels=labels,
        train_op_fn=lambda loss: optimizer.minimize(loss, global_step=step),
    )


def binary_model_fn(features, labels, mode, params, config):
    head = tf.estimator.BinaryClassHead(thresholds=[0.2])
    with tf.variable_scope("own"):
        logits = make_logits(head.logits_dimension, features, mode, params, config)
    return head.create_estimator_spec(
        features=features,
        mode=mode,
        logits=logits,
        labels=None if labels is None else labels["tags"][:, :1],
        train_op_fn=lambda loss: tf.train.GradientDescentOptimizer(0.1).minimize(
            loss, global_step=tf.train.get_global_step()
        ),
    )


def main(unused_argv):
    tf.logging.set_verbosity(tf.logging.INFO)
    columns = [tf.feature_column.numeric_column("x", shape=[6])]
    estimators = {
        "": tf.estimator.Estimator(
            multi_head_model_fn,
            config=make_config(""),
            params={"hidden_units": [16, 8], "columns": columns},
        ),
        "own": tf.estimator.Estimator(
            binary_model_fn,
            config=make_config("own"),
            params={"hidden_units": [4], "columns": columns},
        ),
    }
    results = {}
    for name, estimator in estimators.items():
        estimator.train(lambda: input_fn(0), max_steps=FLAGS.train_steps)
        if name == "":
            for key, value in estimator.evaluate(lambda: input_fn(1, 1)).items():
                results[key] = value
            first = next(estimator.predict(lambda: input_fn(2, 1)))
            key = ("kind", prediction_keys.PredictionKeys.PROBABILITIES)
            for i, probability in enumerate(first[key]):
                results["probability_%d" % i] = probability
            results["predicted"] = " ".join(sorted(key[1] for key in first if key[0] == "kind"))
    names = estimators["own"].evaluate(lambda: input_fn(1, 1))
    results["own_metrics"] = " ".join(sorted(names))
    assert metric_keys.MetricKeys.AUC in names
    one_model.write_results(results)


if __name__ == "__main__":
    tf.flags.mark_flag_as_required("output_dir")
    tf.app.run()
