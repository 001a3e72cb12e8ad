"""The mode decides what a step does: EVAL and PREDICT update nothing, whatever the spec carries."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu

STEPS = 3


def built_always(features, mode, params):
    """Builds a model as TF1 code does: its optimizer, and other updates, in every mode."""
    x = features["x"]
    w = tf.get_variable("w", initializer=1.0)
    mean = tf.get_variable("mean", initializer=0.0, trainable=False)
    calls = tf.get_variable("calls", initializer=0.0, trainable=False)
    # As batch normalization has it.
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, mean.assign_add(1.0))
    calls.assign_add(1.0)  # nothing depends on it: it runs in no mode
    loss = tf.reduce_mean(x) * 0 + w
    optimizer = tpu.CrossShardOptimizer(tf.train.AdamOptimizer(0.1))
    update = optimizer.minimize(loss, tf.train.get_global_step())
    average = tf.train.ExponentialMovingAverage(0.5)
    with tf.control_dependencies([update]):
        averaged = average.apply([w])
    train_op = tf.group(averaged, *tf.get_collection(tf.GraphKeys.UPDATE_OPS))

    def metric_fn(weight, mean):
        return {"weight": tf.metrics.mean(weight), "mean": tf.metrics.mean(mean)}

    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=train_op,
        # One value a row, and a core has some of the rows.
        eval_metrics=(metric_fn, [w + 0 * x, mean + 0 * x]),
        predictions={"weight": w + 0 * x, "mean": mean + 0 * x},
    )


@pytest.fixture
def trained(tmp_path, rules):
    estimator = toy.make_estimator(tmp_path, built_always, predict_batch_size=4, **rules)
    estimator.train(lambda params: toy.batches(batch_size=params["batch_size"]), steps=STEPS)
    return estimator


def values(estimator):
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def input_fn(params):
    return toy.batches(last=STEPS, batch_size=params["batch_size"]).repeat(2)


def test_train_runs_the_train_op(trained):
    found = values(trained)
    np.testing.assert_allclose(found["w"], 0.7, atol=1e-5)
    assert (found["global_step"], found["mean"], found["calls"]) == (STEPS, STEPS, 0)
    # After each step 0.5 * average + 0.5 * w, of the step's new w: 0.9, 0.8, 0.7.
    np.testing.assert_allclose(found["w/ExponentialMovingAverage"], 0.7875, atol=1e-5)


def test_eval_updates_nothing(trained):
    before = values(trained)
    results = trained.evaluate(input_fn, steps=4)
    assert results["global_step"] == STEPS
    for name in ("loss", "weight"):  # a mean over steps, in each of which it is the same
        np.testing.assert_allclose(results[name], before["w"], rtol=1e-6)
    assert results["mean"] == STEPS
    assert trained.evaluate(input_fn, steps=4) == results


def test_predict_updates_nothing(trained):
    before = values(trained)
    predictions = list(trained.predict(input_fn))
    assert len(predictions) == 2 * STEPS * 4
    assert {float(each["weight"]) for each in predictions} == {float(before["w"])}
    assert {float(each["mean"]) for each in predictions} == {STEPS}


def test_the_optimizer_s_variables_come_from_the_checkpoint(trained, rules, tmp_path):
    """All variables that a mode makes are restored, as upstream; a missing variable is an error."""

    def with_another_optimizer(features, mode, params):
        spec = built_always(features, mode, params)
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        return spec._replace(train_op=optimizer.minimize(spec.loss))

    estimator = toy.make_estimator(tmp_path, with_another_optimizer, predict_batch_size=4, **rules)
    for verb in (
        lambda: estimator.evaluate(input_fn, steps=1),
        lambda: next(iter(estimator.predict(input_fn))),
    ):
        with pytest.raises(ValueError, match="w/Momentum"):
            verb()
