"""train_and_evaluate of a canned regressor: exporters, a warm start, a baseline, an evaluation."""

from __future__ import absolute_import, division, print_function

import os

import numpy as np
import one_model
import tensorflow as tf

FLAGS = one_model.FLAGS


def make_houses(number, seed):
    random = np.random.RandomState(seed)
    rooms = random.randint(1, 8, number).astype(np.float32)
    area = (20 * rooms + 15 * random.uniform(size=number)).astype(np.float32)
    town = random.choice(["Aa", "Bb", "Cc"], number)
    price = (area * 0.02 + (town == "Aa") + 0.1 * random.normal(size=number)).astype(np.float32)
    return {"rooms": rooms, "area": area / 100, "town": town}, price


def columns():
    town = tf.feature_column.categorical_column_with_vocabulary_list("town", ["Aa", "Bb", "Cc"])
    return [
        tf.feature_column.numeric_column("rooms"),
        tf.feature_column.numeric_column("area"),
        tf.feature_column.indicator_column(town),
    ]


def input_fn(seed, num_epochs):
    features, price = make_houses(128, seed)
    return tf.estimator.inputs.numpy_input_fn(
        features, price, batch_size=32, num_epochs=num_epochs, shuffle=False
    )


def main(unused_argv):
    tf.logging.set_verbosity(tf.logging.INFO)
    config = tf.estimator.RunConfig(
        model_dir=FLAGS.output_dir,
        save_checkpoints_steps=10,
        save_summary_steps=1,
        keep_checkpoint_max=None,
    )
    estimator = tf.estimator.DNNRegressor(
        feature_columns=columns(),
        hidden_units=[8],
        optimizer=tf.train.ProximalAdagradOptimizer(0.1, l2_regularization_strength=0.001),
        loss_reduction=tf.losses.Reduction.SUM_OVER_BATCH_SIZE,
        config=config,
    )
    spec = tf.feature_column.make_parse_example_spec(columns())
    serving = tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)
    exporters = [
        tf.estimator.LatestExporter("latest", serving, exports_to_keep=2),
        tf.estimator.BestExporter("best", serving),
        tf.estimator.FinalExporter("final", serving),
    ]
    train_spec = tf.estimator.TrainSpec(input_fn(0, None), max_steps=FLAGS.train_steps)
    eval_spec = tf.estimator.EvalSpec(
        input_fn(1, 1), steps=None, exporters=exporters, throttle_secs=0, start_delay_secs=0
    )
    results, _ = tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
    for name in ("latest", "final"):
        folder = os.path.join(FLAGS.output_dir, "export", name)
        newest = sorted(path for path in tf.gfile.ListDirectory(folder) if path[0] != "t")[-1]
        with tf.Graph().as_default(), tf.Session() as session:
            meta = tf.saved_model.load(
                session,
                [tf.saved_model.tag_constants.SERVING],
                os.path.join(folder, newest.strip("/")),
            )
            results[name] = " ".join(sorted(meta.signature_def))
    baseline = tf.estimator.BaselineRegressor(
        config=tf.estimator.RunConfig(model_dir=os.path.join(FLAGS.output_dir, "baseline"))
    )
    baseline.train(input_fn(0, None), max_steps=20)
    for key, value in baseline.evaluate(input_fn(1, 1)).items():
        results["baseline_" + key] = value
    warm = tf.estimator.DNNRegressor(
        feature_columns=columns(),
        hidden_units=[8],
        model_dir=os.path.join(FLAGS.output_dir, "warm"),
        warm_start_from=FLAGS.output_dir,
    )
    warm.train(input_fn(0, None), steps=1)
    results["warm_bias"] = np.sum(warm.get_variable_value("dnn/hiddenlayer_0/bias"))
    one_model.write_results(results)


if __name__ == "__main__":
    tf.flags.mark_flag_as_required("output_dir")
    tf.app.run()
