"""A foreign model with random operations repeats, resumes exactly, and differs by seed on cores."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu
from bert_estimator.tpu import run_program
from bert_estimator.tpu.program import devices, exported_program


def model_fn(features, mode, params):
    weights = tf.get_variable("w", [4], initializer=tf.random_normal_initializer())
    kept = tf.nn.dropout(weights, rate=0.5)
    x = features["x"][:, tf.newaxis] + tf.random.normal([1, 4])
    rows = tf.shape(x)[0]
    draws = tf.cond(tf.reduce_sum(x) > -1e9, lambda: tf.random.uniform([1]), lambda: tf.zeros([1]))
    loss = tf.reduce_mean(kept * x) + draws[0]
    predictions = {"draw": tf.tile(draws, [rows]) + tf.random.uniform([rows])}
    if mode != tpu.ModeKeys.TRAIN:
        metrics = (lambda draw: {"draw": tf.metrics.mean(draw)}, [predictions["draw"]])
        return tpu.TPUEstimatorSpec(mode, predictions, loss, eval_metrics=metrics)
    optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.1))
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def trained(folder, *parts, seed=1, **keywords):
    """Trains in parts; returns the weights."""
    for steps in parts:
        estimator = toy.make_estimator(
            folder, model_fn, tf_random_seed=seed, iterations_per_loop=3, **keywords
        )
        estimator.train(toy.input_fn, max_steps=steps)
    return estimator.get_variable_value("w").tolist()


def test_a_training_repeats_and_differs_by_seed(tmp_path, cores):
    first, again, other = (
        trained(tmp_path / str(n), 5, seed=seed) for n, seed in enumerate([1, 1, 2])
    )
    assert first == again != other


@pytest.mark.usefixtures("xla_runtime")
@pytest.mark.parametrize("master", ["rehearse:1", "rehearse:2"])
def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path, master):
    whole = trained(tmp_path / "whole", 7, master=master)
    assert trained(tmp_path / "parts", 2, 4, 7, master=master) == whole


def test_an_evaluation_repeats_and_draws_anew_for_each_batch(tmp_path, cores):
    trained(tmp_path, 1)
    estimator = toy.make_estimator(
        tmp_path, model_fn, tf_random_seed=1, predict_batch_size=toy.BATCH_SIZE
    )
    found = [estimator.evaluate(toy.input_fn, steps=n)["draw"] for n in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    predictions = estimator.predict(toy.input_fn)
    drawn = [float(next(predictions)["draw"]) for _ in range(3 * toy.BATCH_SIZE)]
    predictions.close()
    assert len(set(drawn)) == len(drawn)


@pytest.mark.usefixtures("xla_runtime")
def test_the_local_init_op_of_a_scaffold(tmp_path):
    """It need not initialize what the step counts with."""

    def with_scaffold(features, mode, params):
        spec = model_fn(features, mode, params)
        scaffold = lambda: tf.train.Scaffold(local_init_op=tf.no_op())  # noqa: E731
        return spec._replace(scaffold_fn=scaffold)

    estimator = toy.make_estimator(tmp_path, with_scaffold, master="rehearse:2")
    estimator.train(toy.input_fn, max_steps=2)
    assert np.all(np.isfinite(estimator.get_variable_value("w")))


@pytest.mark.usefixtures("xla_runtime")
def test_layers_of_keras(tmp_path):
    keras = pytest.importorskip("tf_keras")

    def with_layers(features, mode, params):
        x = keras.layers.Dropout(0.5)(tf.ones([2, 8]), training=True)
        x = keras.layers.GaussianNoise(1.0)(x, training=True)
        w = tf.get_variable("w", [2, 8], initializer=tf.zeros_initializer())
        mean = tpu.cross_replica_sum(x) / 2
        train_op = tf.group(w.assign_add(mean), tf.train.get_global_step().assign_add(1))
        return tpu.TPUEstimatorSpec(mode, loss=tf.reduce_mean(x), train_op=train_op)

    found = []
    for n, seed in enumerate([1, 1, 2]):
        estimator = toy.make_estimator(
            tmp_path / str(n), with_layers, master="rehearse:2", tf_random_seed=seed
        )
        estimator.train(toy.input_fn, max_steps=2)
        found.append(estimator.get_variable_value("w").tolist())
    assert found[0] == found[1] != found[2]


@pytest.mark.usefixtures("xla_runtime")
def test_an_exported_training_draws_what_the_training_draws(tmp_path):
    trained(tmp_path / "model", 2, master="rehearse:2")
    estimator = toy.make_estimator(
        tmp_path / "model", model_fn, tf_random_seed=1, master="rehearse:2", log_step_count_steps=1
    )
    estimator.export_training_program(toy.input_fn, str(tmp_path / "program"), num_batches=3)
    program = exported_program.load(str(tmp_path / "program"))
    losses, *_ = run_program.run(program, devices.find("rehearse:2"), 3)
    found = []
    listener = tpu.LogListener(lambda record: found.append(record["loss"]))
    estimator.train(toy.input_fn, steps=3, hooks=[listener])
    # The first line is logged after the second step.
    np.testing.assert_allclose(losses[1:], found, rtol=1e-6)
