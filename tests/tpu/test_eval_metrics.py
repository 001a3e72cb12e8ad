"""Metrics in the style of Keras: supported by each runtime, without Keras."""

import math

import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu
from bert_estimator.tpu.spec import metric_pairs


class Largest:
    """A metric object that gives the largest value so far, and does not use Keras."""

    name = "largest"

    def __init__(self):
        collections = [tf.GraphKeys.LOCAL_VARIABLES]  # evaluation must not add it a second time
        self._largest = tf.get_variable(
            "largest", initializer=-1.0, trainable=False, collections=collections
        )
        self.variables, self.updates = [self._largest], []

    def update_state(self, values):
        largest = tf.maximum(self._largest, tf.reduce_max(values))
        self.updates.append(self._largest.assign(largest))

    def result(self):
        return self._largest.read_value()


def updated(metric, *values):
    metric.update_state(*values)
    return metric


def keras_metrics(x):
    """Keras's own, of batches that hold the number of their step: [B] values x."""
    import tf_keras

    return {
        "mean": updated(tf_keras.metrics.Mean(), x),
        "accuracy": updated(tf_keras.metrics.Accuracy(), tf.round(x), tf.fill([tf.size(x)], 2.0)),
        "root": updated(tf_keras.metrics.RootMeanSquaredError(), x, 0 * x),
        "largest": updated(Largest(), x),
        "pair": tf.metrics.mean(x),
    }


EXPECTED = {
    "mean": 2.0,
    "accuracy": 1 / 3,
    "root": math.sqrt(14 / 3),
    "largest": 3.0,
    "pair": 2.0,
    "loss": 2.0,
    "global_step": 0,
}


def of_host(features, loss):
    return {"eval_metrics": (keras_metrics, [features["x"]])}


@pytest.mark.parametrize("runtime", ["local", "session", "cores"])
def test_keras_metrics_on_every_runtime(tmp_path, runtime, request):
    if runtime == "cores":
        request.getfixturevalue("xla_runtime")
    master = {"cores": "rehearse:2"}.get(runtime, "")
    estimator = toy.make_estimator(
        tmp_path, toy.make_model_fn(of_host), use_tpu=runtime != "local", master=master
    )
    for _ in range(2):  # each evaluation begins anew
        results = estimator.evaluate(toy.input_fn, steps=3)
        assert results == pytest.approx(EXPECTED)
    tags = {tag for _, tag, _ in toy.events(tmp_path / "eval")}
    assert {"mean", "accuracy", "root", "largest", "pair", "loss"} <= tags
    # A checkpoint has none of their variables, and is evaluated as well.
    estimator.train(toy.input_fn, steps=1)
    assert sorted(estimator.get_variable_names()) == ["global_step", "w"]
    results = estimator.evaluate(toy.input_fn, steps=3)
    assert results == pytest.approx(
        {**EXPECTED, "mean": 3.0, "accuracy": 1 / 3, "root": math.sqrt(29 / 3), "largest": 4.0,
         "pair": 3.0, "loss": 3.0, "global_step": 1}
    )  # fmt: skip


def test_an_estimator_spec_takes_them_as_its_metric_ops(tmp_path):
    def model_fn(features, mode):
        weight = tf.get_variable("w", initializer=0.0)
        loss = tf.reduce_mean(features["x"]) + 0 * weight
        return tpu.EstimatorSpec(mode, loss=loss, eval_metric_ops=keras_metrics(features["x"]))

    config = tpu.RunConfig(model_dir=str(tmp_path), session_config=toy.QUICK)
    results = tpu.Estimator(model_fn, config=config).evaluate(lambda: toy.batches(), steps=3)
    assert results == pytest.approx(EXPECTED)


@pytest.mark.usefixtures("xla_runtime")
def test_an_estimator_spec_with_metrics_trains_on_cores(tmp_path):
    def model_fn(features, mode, params):
        spec = toy.make_model_fn()(features, mode, params)
        metrics = {"mean": tf.metrics.mean(features["x"])}
        return tpu.EstimatorSpec(
            mode, loss=spec.loss, train_op=spec.train_op, eval_metric_ops=metrics
        )

    estimator = toy.make_estimator(tmp_path, model_fn, master="rehearse:2")
    assert estimator.train(toy.input_fn, steps=2).get_variable_value("w") == 2.0


def test_their_variables_are_local_and_of_metrics_once():
    with tf.Graph().as_default():
        metrics = {"largest": updated(Largest(), tf.constant([1.0])), "again": None}
        metrics["again"] = metrics["largest"]
        pairs = metric_pairs(metrics, "m")
        (variable,) = metrics["largest"].variables
        assert tf.local_variables() == [variable]
        assert tf.get_collection(tf.GraphKeys.METRIC_VARIABLES) == [variable]
        assert tf.global_variables() == []
        assert list(pairs) == ["largest", "again"]
        assert metric_pairs(None, "m") == {}


class WithoutUpdates:
    def update_state(self, values):
        pass

    def result(self):
        return tf.zeros([])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: {"m": Largest()}, ValueError, r"Please call update_state\(...\) on the \"largest"),
        (lambda: {"m": WithoutUpdates()}, TypeError, "without the lists `updates` and `variables`"),
        (
            lambda: {"m": 1},
            TypeError,
            r"must be \(metric_value, update_op\) tuples.*; .*\['m'\] is",
        ),
        (lambda: {"m": (tf.zeros([]), 1)}, TypeError, r"\['m'\] has 1, which is neither a tensor"),
        (lambda: [1], TypeError, r"must be a dict, of a metric by each name, not \[1\]"),
    ],
)
@pytest.mark.parametrize("use_tpu", [False, True])
def test_other_metrics_are_refused(tmp_path, make, error, message, use_tpu):
    def fields(features, loss):
        return {"eval_metrics": (lambda x: make(), [features["x"]])}

    estimator = toy.make_estimator(tmp_path, toy.make_model_fn(fields), use_tpu=use_tpu)
    with pytest.raises(error, match=message):
        estimator.evaluate(toy.input_fn, steps=1)
