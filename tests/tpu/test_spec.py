"""Messages of the specs, the equivalent EstimatorSpec, and metrics in the style of Keras."""

import math

import pytest
import tensorflow.compat.v1 as tf
import toy
from tensorflow.python.eager import context

from bert_estimator import tpu
from bert_estimator.tpu import EstimatorSpec, ModeKeys, TPUEstimatorSpec
from bert_estimator.tpu.spec import call_host_fn, metric_pairs


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default():
        yield


def metric_fn(value):
    return {"mean": tf.metrics.mean(value)}


EVAL = {"mode": "eval", "loss": lambda: tf.zeros([])}


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"mode": "train"}, ValueError, "Missing train_op: a spec of mode TRAIN needs it"),
        ({"mode": "eval"}, ValueError, "Missing loss: a spec of mode 'eval' needs it"),
        ({"mode": "infer"}, ValueError, "Missing predictions: a spec of mode PREDICT needs them"),
        (
            {"mode": "eval", "loss": lambda: tf.zeros([2])},
            ValueError,
            r"Loss must be scalar, but zeros:0 has shape \(2,\)",
        ),
        ({**EVAL, "train_op": 1}, TypeError, "train_op must be Operation or Tensor, not 1"),
        (
            {**EVAL, "predictions": {"a": [1]}},
            TypeError,
            r"predictions\[a\] must be Tensor, not \[1\]",
        ),
        (
            {**EVAL, "training_hooks": [3]},
            TypeError,
            "All hooks must be SessionRunHook instances, but training_hooks has 3",
        ),
        ({**EVAL, "evaluation_hooks": 3}, TypeError, "evaluation_hooks must be a list of hooks, n"),
    ],
)
@pytest.mark.parametrize("kind", [EstimatorSpec, TPUEstimatorSpec])
def test_a_spec_says_what_is_wrong(kind, fields, error, message):
    fields = {name: value() if callable(value) else value for name, value in fields.items()}
    with pytest.raises(error, match=message):
        kind(**fields)


@pytest.mark.parametrize(
    ("pair", "error", "message"),
    [
        (metric_fn, ValueError, "should be tuple or list, not function"),
        (("mean", []), TypeError, r"\[0\] should be callable, not 'mean'"),
        ((metric_fn, 3), ValueError, r"\[1\] should be tuple or list, or dict, not int"),
        (
            (metric_fn, [1, 2]),
            RuntimeError,
            r", length of tensors 2 does not match method args of the function metric_fn\(value\)",
        ),
    ],
)
@pytest.mark.parametrize("name", ["eval_metrics", "host_call"])
def test_tpu_estimator_spec_says_what_is_wrong(name, pair, error, message):
    with pytest.raises(error, match=f"{name}.*{message}"):
        TPUEstimatorSpec("eval", loss=tf.zeros([]), **{name: pair})
    spec = TPUEstimatorSpec("eval", loss=tf.zeros([]))
    with pytest.raises(error, match=f"{name}.*{message}"):
        spec._replace(**{name: pair})


@pytest.mark.parametrize("kind", [EstimatorSpec, TPUEstimatorSpec])
def test_predictions_are_exported_unless_the_spec_says_otherwise(kind):
    answer, threshold = tf.ones([3]), tf.constant(0.3)
    spec = kind(ModeKeys.PREDICT, predictions={"answer": answer})
    spec.export_outputs["serving_default"].outputs["threshold"] = threshold
    if kind is TPUEstimatorSpec:
        spec = spec.as_estimator_spec()
    exported = spec._replace(predictions={"answer": answer}).export_outputs["serving_default"]
    assert exported.outputs == {"answer": answer, "threshold": threshold}
    with pytest.raises(TypeError, match="must be ExportOutput objects"):
        kind(ModeKeys.PREDICT, predictions=answer, export_outputs={"a": answer})
    assert kind(ModeKeys.EVAL, loss=tf.zeros([])).export_outputs is None


@pytest.mark.parametrize("kind", [EstimatorSpec, TPUEstimatorSpec])
def test_eager_tensors_are_of_no_graph(kind):
    with context.eager_mode():
        value = tf.constant([1.0])
        spec = kind("infer", predictions={"value": value})
        assert spec.predictions["value"] is value
        assert kind("eval", loss=value, predictions=value).loss.shape == []
        with pytest.raises(ValueError, match=r"Loss must be scalar, but it has shape \(2,\)"):
            kind("eval", loss=tf.zeros([2]))


def test_a_loss_of_one_element_becomes_a_scalar():
    assert EstimatorSpec("eval", loss=tf.zeros([1])).loss.shape == []
    scalar = tf.zeros([])
    assert EstimatorSpec("eval", loss=scalar).loss is scalar


def test_replace_checks_and_keeps_the_mode():
    spec = EstimatorSpec("eval", loss=tf.zeros([]))
    one = tf.ones([])
    assert spec._replace(mode="eval", predictions={"a": one}).predictions == {"a": one}
    with pytest.raises(ValueError, match="more"):
        spec._replace(more=1)


def test_a_spec_may_be_subclassed():
    class Own(TPUEstimatorSpec):
        def __new__(cls, loss, **fields):
            return super().__new__(cls, mode="eval", loss=loss, **fields)

    spec = Own(tf.zeros([1]))
    assert type(spec) is Own
    assert spec.loss.shape == []
    assert type(spec._replace(training_hooks=[])) is Own


def test_a_function_s_tensors_may_be_replaced_by_others_of_the_same_structure():
    assert call_host_fn((lambda a, b: (a, b), [1, 2])) == (1, 2)
    assert call_host_fn((lambda a, b: (a, b), [1, 2]), [3, 4]) == (3, 4)
    assert call_host_fn((lambda a, b: (a, b), {"b": 1, "a": 2}), {"b": 3, "a": 4}) == (4, 3)


def test_as_estimator_spec_calls_the_functions_here_and_now():
    hook = tf.train.SessionRunHook()
    value = tf.constant([1.0, 3.0])
    calls = []

    def host_fn(given):
        calls.append(given)
        return tf.no_op(name="host")

    scaffold = tf.train.Scaffold()
    spec = TPUEstimatorSpec(
        ModeKeys.EVAL,
        loss=tf.zeros([]),
        eval_metrics=(metric_fn, [value]),
        host_call=(host_fn, [value]),
        scaffold_fn=lambda: scaffold,
        evaluation_hooks=[hook],
    ).as_estimator_spec()
    assert list(spec.eval_metric_ops) == ["mean"]
    assert calls == [value]
    assert spec.scaffold is scaffold
    first, host_call = spec.evaluation_hooks
    assert first is hook
    assert host_call.before_run(None).fetches.name == "host"
    assert len(spec.training_hooks) == len(spec.prediction_hooks) == 1


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


def test_keras_metrics_on_every_runtime(tmp_path, rules):
    estimator = toy.make_estimator(tmp_path, toy.make_model_fn(of_host), **rules)
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


RESULT = "(eval_metrics: metric_fn's result|eval_metric_ops)"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: {"m": Largest()}, ValueError, r"Please call update_state\(...\) on the \"largest"),
        (lambda: {"m": WithoutUpdates()}, TypeError, "without the lists `updates` and `variables`"),
        (
            lambda: {"m": 1},
            TypeError,
            rf"{RESULT} must be \(metric_value, update_op\) tuples.*; .*\['m'\] is",
        ),
        (lambda: {"m": (tf.zeros([]), 1)}, TypeError, r"\['m'\] has 1, which is neither a tensor"),
        (lambda: [1], TypeError, rf"{RESULT} must be a dict, of a metric by each name, not \[1\]"),
    ],
)
@pytest.mark.parametrize("use_tpu", [False, True])
def test_other_metrics_are_refused(tmp_path, make, error, message, use_tpu):
    def fields(features, loss):
        return {"eval_metrics": (lambda x: make(), [features["x"]])}

    estimator = toy.make_estimator(tmp_path, toy.make_model_fn(fields), use_tpu=use_tpu)
    with pytest.raises(error, match=message):
        estimator.evaluate(toy.input_fn, steps=1)
