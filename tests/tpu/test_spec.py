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


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"mode": "tune"}, ValueError, "mode must be a ModeKeys value, not 'tune'"),
        ({"mode": "train"}, ValueError, "mode TRAIN needs train_op"),
        ({"mode": "eval"}, ValueError, "mode 'eval' needs loss"),
        ({"mode": "infer"}, ValueError, "mode PREDICT needs predictions"),
        ({"mode": "eval", "loss": 1.0}, TypeError, r"loss must be a tensor, not 1\.0"),
        (
            {"mode": "eval", "loss": lambda: tf.zeros([2])},
            ValueError,
            r"loss must be a scalar, but has shape \(2,\)",
        ),
        (
            {"mode": "eval", "loss": lambda: tf.zeros([]), "eval_metric_ops": {"a": 1}},
            TypeError,
            r"eval_metric_ops\['a'\] must be a \(value tensor, update operation\) pair",
        ),
        (
            {"mode": "eval", "loss": lambda: tf.zeros([]), "eval_metric_ops": [1]},
            TypeError,
            r"eval_metric_ops must be a dict of metrics, each a .* not \[1\]",
        ),
        (
            {"mode": "eval", "loss": lambda: tf.zeros([]), "training_hooks": [3]},
            TypeError,
            "training_hooks must be tf.train.SessionRunHook objects, not 3",
        ),
    ],
)
def test_estimator_spec_says_what_is_wrong(fields, error, message):
    fields = {name: value() if callable(value) else value for name, value in fields.items()}
    with pytest.raises(error, match=message):
        EstimatorSpec(**fields)


@pytest.mark.parametrize(
    ("pair", "error", "message"),
    [
        (metric_fn, ValueError, r"must be a \(function, tensors\) pair, not function"),
        ((metric_fn,), ValueError, "pair, not 1 elements"),
        (("mean", []), TypeError, r"\[0\] must be a function, not 'mean'"),
        ((metric_fn, 3), ValueError, r"\[1\] must be a list, tuple or dict of tensors, not int"),
        ((metric_fn, [1, 2]), RuntimeError, r"has 2 tensors, but metric_fn\(value\) takes 1"),
    ],
)
@pytest.mark.parametrize("name", ["eval_metrics", "host_call"])
def test_tpu_estimator_spec_says_what_is_wrong(name, pair, error, message):
    with pytest.raises(error, match=rf"^{name}.*{message}"):
        TPUEstimatorSpec("eval", **{name: pair})


def test_a_loss_of_one_element_becomes_a_scalar():
    assert EstimatorSpec("eval", loss=tf.zeros([1])).loss.shape == []
    scalar = tf.zeros([])
    assert EstimatorSpec("eval", loss=scalar).loss is scalar


def test_replace_checks_and_keeps_the_mode():
    spec = EstimatorSpec("eval", loss=tf.zeros([]))
    assert spec._replace(mode="eval", predictions={"a": 1}).predictions == {"a": 1}
    with pytest.raises(ValueError, match="cannot change the mode"):
        spec._replace(mode="train")
    with pytest.raises(ValueError, match="needs loss"):
        spec._replace(loss=None)


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
