"""Messages of the specs, and the equivalent EstimatorSpec.

What upstream accepts and refuses is in tests/oracle.
"""

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.tpu import EstimatorSpec, ModeKeys, TPUEstimatorSpec
from bert_estimator.tpu.spec import call_host_fn


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
        ({"mode": "eval", "loss": 1.0}, TypeError, r"loss must be Tensor, not 1\.0"),
        (
            {"mode": "eval", "loss": lambda: tf.zeros([2])},
            ValueError,
            r"Loss must be scalar, but zeros:0 has shape \(2,\)",
        ),
        ({**EVAL, "train_op": 1}, TypeError, "train_op must be Operation or Tensor, not 1"),
        (
            {**EVAL, "train_op": lambda: [tf.no_op()]},
            TypeError,
            r"train_op must be Operation or Tensor, not \[<tf.Operation",
        ),
        ({**EVAL, "predictions": 1}, TypeError, "^predictions must be Tensor, not 1"),
        (
            {**EVAL, "predictions": {"a": [1]}},
            TypeError,
            r"predictions\[a\] must be Tensor, not \[1\]",
        ),
        (
            {**EVAL, "predictions": lambda: tf.sparse.eye(2)},
            TypeError,
            "predictions must be Tensor, not SparseTensor",
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
    ("fields", "error", "message"),
    [
        ({"mode": "tune"}, ValueError, "mode must be a ModeKeys value, not 'tune'"),
        (
            {**EVAL, "eval_metric_ops": {"a": 1}},
            TypeError,
            r"Values of eval_metric_ops must be \(metric_value, update_op\) tuples.*\['a'\] is 1",
        ),
        ({**EVAL, "eval_metric_ops": [1]}, TypeError, r"eval_metric_ops must be a dict, .*\[1\]"),
        ({**EVAL, "scaffold": 3}, TypeError, "scaffold must be tf.train.Scaffold, not 3"),
    ],
)
def test_an_estimator_spec_says_what_is_wrong(fields, error, message):
    fields = {name: value() if callable(value) else value for name, value in fields.items()}
    with pytest.raises(error, match=message):
        EstimatorSpec(**fields)


@pytest.mark.parametrize(
    ("pair", "error", "message"),
    [
        (metric_fn, ValueError, "should be tuple or list, not function"),
        ((metric_fn,), ValueError, "should have two elements, not 1"),
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
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": "elsewhere"}, 'loss with "elsewhere:0" must be from the default graph'),
        ({"train_op": "elsewhere"}, 'train_op with "elsewhere:0" must be from the default graph'),
        (
            {"predictions": {"a": "elsewhere"}},
            r'prediction values with predictions\[a\]: "elsewhere:0" must be from the default',
        ),
    ],
)
def test_all_is_of_the_graph_that_model_fn_is_called_in(kind, fields, message):
    with tf.Graph().as_default():
        elsewhere = tf.zeros([], name="elsewhere")
    fields = tf.nest.map_structure(lambda _: elsewhere, fields)
    with pytest.raises(ValueError, match=message):
        kind("eval", **{"loss": tf.zeros([]), **fields})


def test_a_loss_of_one_element_becomes_a_scalar():
    assert EstimatorSpec("eval", loss=tf.zeros([1])).loss.shape == []
    scalar = tf.zeros([])
    assert EstimatorSpec("eval", loss=scalar).loss is scalar


def test_replace_checks_and_keeps_the_mode():
    spec = EstimatorSpec("eval", loss=tf.zeros([]))
    one = tf.ones([])
    assert spec._replace(mode="eval", predictions={"a": one}).predictions == {"a": one}
    with pytest.raises(ValueError, match="mode of EstimatorSpec cannot be changed"):
        spec._replace(mode="train")
    with pytest.raises(ValueError, match="Missing loss"):
        spec._replace(loss=None)
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
