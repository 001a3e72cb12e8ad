"""Trains and evaluates in turns, and exports: tf.estimator.Estimator, without a TPU in sight."""

from __future__ import absolute_import, division, print_function

import numpy as np
import one_model
import tensorflow as tf

tf.flags.DEFINE_integer("save_checkpoints_steps", 10, "How often to save, and so to evaluate.")
FLAGS = one_model.FLAGS


def make_data(num_examples, seed):
    random = np.random.RandomState(seed)
    words = random.randint(0, 20, size=(num_examples, 5))
    return words.astype(np.int64), (words.sum(axis=1) > 45).astype(np.int64)


def train_input_fn():
    dataset = tf.data.Dataset.from_tensor_slices(make_data(48, seed=0))
    return dataset.repeat().batch(8).map(lambda words, label: ({"words": words}, label))


def eval_input_fn():
    dataset = tf.data.Dataset.from_tensor_slices(make_data(24, seed=1)).batch(8)
    return dataset.map(lambda words, label: ({"words": words}, label))


def serving_input_receiver_fn():
    serialized = tf.placeholder(tf.string, shape=[None], name="input_example_tensor")
    features = tf.parse_example(serialized, {"words": tf.FixedLenFeature([5], tf.int64)})
    return tf.estimator.export.ServingInputReceiver(features, {"examples": serialized})


def model_fn(features, labels, mode, params, config):
    words = features["words"]
    table = tf.get_variable("embedding", [20, params["size"]], tf.float32)
    cell = tf.nn.rnn_cell.GRUCell(params["size"])
    inputs = tf.nn.embedding_lookup(table, words)
    _, state = tf.nn.dynamic_rnn(cell, inputs, dtype=tf.float32)
    logits = tf.layers.dense(state, 2, name="logits")
    predictions = {"class": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(
            mode,
            predictions=predictions,
            export_outputs={
                tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY: (
                    tf.estimator.export.PredictOutput(predictions)
                )
            },
        )
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    metrics = {"accuracy": tf.metrics.accuracy(labels, predictions["class"])}
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        train_op = tf.train.AdamOptimizer(params["learning_rate"]).minimize(
            loss, global_step=tf.train.get_global_step()
        )
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metric_ops=metrics, predictions=predictions
    )


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    config = tf.estimator.RunConfig(
        model_dir=FLAGS.output_dir,
        tf_random_seed=1,
        save_checkpoints_steps=FLAGS.save_checkpoints_steps,
        save_summary_steps=1,
    )
    estimator = tf.estimator.Estimator(
        model_fn, config=config, params={"size": 8, "learning_rate": 0.02}
    )
    exporter = tf.estimator.FinalExporter("final", serving_input_receiver_fn)
    train_spec = tf.estimator.TrainSpec(train_input_fn, max_steps=FLAGS.train_steps)
    eval_spec = tf.estimator.EvalSpec(
        eval_input_fn, steps=None, exporters=[exporter], start_delay_secs=0, throttle_secs=0
    )
    results, exported = tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
    files = [sorted(tf.gfile.ListDirectory(path)) for path in exported]
    names = [" ".join(name.strip("/") for name in of_path) for of_path in files]
    one_model.write_results(results, "".join("exported = %s\n" % each for each in names))


if __name__ == "__main__":
    tf.app.run()
