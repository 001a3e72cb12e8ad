"""Evaluation under TPU rules: metrics on the host over every step, the mean loss, its errors."""

import functools
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.training import evaluation
from toy import (
    HostLog,
    Visits,
    ending_at,
    events,
    input_fn,
    make_estimator,
    make_model_fn,
    py_input_fn,
    scalars,
    threads,
    wait_until,
)

from bert_estimator import tpu

pytestmark = pytest.mark.usefixtures("cores")
# For tests that run in local mode too: the fixture `rules` says what they run on.
by_rules = pytest.mark.parametrize("cores", [None], ids=["rules"])


def metric_fn(x, loss):
    return {"x/mean": tf.metrics.mean(x), "loss/squared": tf.metrics.mean(loss * loss)}


def with_metrics(metric_fn):
    return make_model_fn(lambda features, loss: {"eval_metrics": (metric_fn, [features["x"]])})


def as_list(features, loss):
    return {"eval_metrics": (metric_fn, [features["x"], tf.reshape(loss, [1])])}


def as_dict(features, loss):
    tensors = {"loss": tf.reshape(loss, [1]), "x": features["x"]}
    return {"eval_metrics": (metric_fn, tensors)}


@pytest.mark.parametrize("fields", [as_list, as_dict])
@pytest.mark.parametrize("loop", [1, 2, 100])
def test_metrics_are_over_every_step_and_the_loss_is_their_mean(tmp_path, fields, loop):
    estimator = make_estimator(tmp_path, make_model_fn(fields), iterations_per_loop=loop)
    assert estimator.evaluate(input_fn, steps=4) == {
        "loss": 2.5,  # of 1, 2, 3, 4
        "x/mean": 2.5,
        "loss/squared": 7.5,
        "global_step": 0,
    }


def test_after_training_it_starts_from_the_newest_or_the_given_checkpoint(tmp_path):
    model_fn = make_model_fn(loss=lambda weight, features: weight + 0 * features["x"][0])
    estimator = make_estimator(tmp_path, model_fn, save_checkpoints_steps=2)
    estimator.train(input_fn, steps=4)
    assert estimator.evaluate(input_fn, steps=3) == {"loss": 4.0, "global_step": 4}
    earlier = f"{tmp_path}/model.ckpt-2"
    assert estimator.evaluate(input_fn, steps=3, checkpoint_path=earlier) == {
        "loss": 2.0,
        "global_step": 2,
    }
    with pytest.raises(ValueError, match="checkpoint_path='nowhere': there is no such checkpoint"):
        estimator.evaluate(input_fn, steps=1, checkpoint_path="nowhere")


def test_without_a_checkpoint_it_says_so(tmp_path, warned):
    make_estimator(tmp_path).evaluate(input_fn, steps=1)
    assert f"There is no trained model in {tmp_path}: evaluating newly initialized variables." in (
        warned()
    )


@by_rules
@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_values_of_another_model_are_not_called_new(tmp_path, warned, rules, verb):
    def load(scaffold, session):
        variable = tf.trainable_variables()[0]
        session.run(variable.initializer, {variable.initializer.inputs[1]: 7.0})

    def model_fn(features, mode, params):
        weight = tf.get_variable("w", initializer=0.0, use_resource=True)
        values = weight + 0 * features["x"]
        scaffold_fn = functools.partial(tf.train.Scaffold, init_fn=load)
        return tpu.TPUEstimatorSpec(
            mode, {"w": values}, tf.reduce_mean(values), scaffold_fn=scaffold_fn
        )

    estimator = make_estimator(tmp_path, model_fn, predict_batch_size=8, **rules)
    if verb == "evaluate":
        assert estimator.evaluate(input_fn, steps=1)["loss"] == 7.0
    else:
        assert next(estimator.predict(input_fn)) == {"w": 7.0}
    assert not any("newly initialized" in text for text in warned())


def test_hooks_visit_once_and_see_the_metrics_at_the_end(tmp_path):
    class Reads(Visits):
        def end(self, session):
            (total,) = (v for v in tf.local_variables() if v.op.name == "x/mean/total")
            self.total = float(session.run(total))

    def named_metric_fn(x):
        with tf.variable_scope("x"):
            return {"x": tf.metrics.mean(x, name="mean")}

    reads, of_spec = Reads(), Visits()

    def fields(features, loss):
        return {
            "eval_metrics": (named_metric_fn, [features["x"]]),
            "evaluation_hooks": [of_spec],
        }

    make_estimator(tmp_path, make_model_fn(fields)).evaluate(input_fn, steps=3, hooks=[reads])
    assert reads.fetched == of_spec.fetched == [(0, 0.0)]
    assert reads.total == 4 * (1 + 2 + 3)


@pytest.mark.parametrize("name", ["loss", "global_step"])
def test_metrics_may_not_take_the_names_of_what_is_returned_anyway(tmp_path, name):
    model_fn = with_metrics(lambda x: {name: tf.metrics.mean(x)})
    with pytest.raises(ValueError, match=rf"Metrics named \['{name}'\] clash"):
        make_estimator(tmp_path, model_fn).evaluate(input_fn, steps=1)


def test_a_metric_s_scalar_tensor_is_refused(tmp_path):
    def fields(features, loss):
        return {"eval_metrics": (lambda x: {"x": tf.metrics.mean(x)}, [loss])}

    with pytest.raises(RuntimeError, match=r"eval_metrics tensor 0 \(toy_loss:0\) is a scalar"):
        make_estimator(tmp_path, make_model_fn(fields)).evaluate(input_fn, steps=1)


def test_a_metric_fn_may_return_nothing(tmp_path):
    results = make_estimator(tmp_path, with_metrics(lambda x: None)).evaluate(input_fn, steps=1)
    assert results == {"loss": 1.0, "global_step": 0}


def test_a_plain_estimator_spec_is_refused(tmp_path):
    def model_fn(features, mode, params):
        return tpu.EstimatorSpec(mode, loss=make_model_fn()(features, mode, params).loss)

    with pytest.raises(RuntimeError, match=r"must return a TPUEstimatorSpec.*eval_metrics"):
        make_estimator(tmp_path, model_fn).evaluate(input_fn, steps=1)


def test_data_that_ends_early_is_an_error_at_once(tmp_path, cores):
    start = time.monotonic()
    with pytest.raises(tf.errors.OutOfRangeError, match="ended before the 4 batches to evaluate"):
        make_estimator(tmp_path).evaluate(ending_at(3), steps=4)
    assert cores > 1 or time.monotonic() - start < 4  # compiling takes its time
    wait_until(lambda: not threads("infeed"))


def test_an_exception_in_the_data_or_in_a_metric_keeps_its_message(tmp_path):
    def broken(i):
        if i == 3:
            raise ValueError("record 3 is broken")
        return np.full([4], i, np.float32)

    with pytest.raises(tf.errors.InvalidArgumentError, match="record 3 is broken"):
        make_estimator(tmp_path).evaluate(py_input_fn(broken), steps=4)

    def failing_metric_fn(x):
        update = HostLog(fails_at=2)(x)
        return {"x": (tf.constant(0.0), update)}

    with pytest.raises(tf.errors.UnknownError, match="failed in its call 2"):
        make_estimator(tmp_path, with_metrics(failing_metric_fn)).evaluate(input_fn, steps=4)


def test_results_are_written_as_events_with_the_checkpoint_s_path(tmp_path):
    estimator = make_estimator(tmp_path, make_model_fn(as_list))
    estimator.train(input_fn, steps=2)
    estimator.evaluate(input_fn, steps=3, name="held_out")
    folder = tmp_path / "eval_held_out"
    assert scalars(folder, "loss") == [(2, 4.0)]  # the batches 3, 4, 5
    assert scalars(folder, "x/mean") == [(2, 4.0)]
    paths = [(step, v) for step, tag, v in events(folder) if tag == "checkpoint_path"]
    assert [(step, tf.make_ndarray(v.tensor).item()) for step, v in paths] == [
        (2, f"{tmp_path}/model.ckpt-2".encode())
    ]
    assert not (tmp_path / "eval").exists()


def test_a_string_metric_is_written_as_the_summary_it_is(tmp_path, warned):
    summary = tf.Summary()
    summary.value.add(tag="a", simple_value=3.0)
    summary.value.add(tag="b", simple_value=4.0)
    texts = {"drawn": summary.SerializeToString(), "note": b"hello", "nothing": b""}

    def string_metric_fn(x):
        values = {name: (tf.constant(text), tf.no_op()) for name, text in texts.items()}
        return {**values, "x": tf.metrics.mean(x)}

    results = make_estimator(tmp_path, with_metrics(string_metric_fn)).evaluate(input_fn, steps=3)
    assert {name: results[name] for name in texts} == texts
    folder = tmp_path / "eval"
    assert sorted(tag for _, tag, _ in events(folder)) == ["drawn/0", "drawn/1", "loss", "x"]
    assert scalars(folder, "drawn/1") == [(0, 4.0)]
    assert [text for text in warned() if text.startswith("The metric")] == [
        f"The metric {name} is a string, but not a serialized summary: it is returned, and left "
        "out of the events."
        for name in ("note", "nothing")
    ]


def test_off_the_tpu_evaluation_has_local_rules(tmp_path):
    model_fn = make_model_fn(as_list)
    estimator = make_estimator(tmp_path, model_fn, eval_on_tpu=False, eval_batch_size=None)
    estimator.train(input_fn, steps=2)

    def three(params):
        assert "use_tpu" not in params
        return tf.data.Dataset.range(3).map(lambda i: {"x": tf.fill([2], tf.cast(i, tf.float32))})

    assert estimator.evaluate(three)["x/mean"] == 1.0  # to the end of the data


@by_rules
@pytest.mark.parametrize(
    "nest",
    [
        lambda a, b, c: {"a": a, "b": (b, [c])},
        lambda a, b, c: (a, b, c),
        lambda a, b, c: [a, (b, {"c": c})],
    ],
    ids=["dict", "tuple", "list"],
)
def test_the_parts_of_a_nested_metric_may_differ_in_shape(tmp_path, rules, nest):
    row, table = np.array([1.0, 3.0]), np.arange(6.0).reshape(2, 3)

    def metric_fn(x):
        each = tf.reduce_mean(x)
        scalar = tf.metrics.mean(x)
        first = tf.metrics.mean_tensor(each * tf.constant(row, tf.float32))
        second = tf.metrics.mean_tensor(each * tf.constant(table, tf.float32))
        values, updates = zip(scalar, first, second, strict=True)
        return {"nested": (nest(*values), tf.group(*updates))}

    estimator = make_estimator(tmp_path, with_metrics(metric_fn), **rules)
    nested = estimator.evaluate(input_fn, steps=3)["nested"]  # of batches of 1, 2, 3
    tf.nest.assert_same_structure(nested, nest(0, 0, 0))
    for value, expected in zip(tf.nest.flatten(nested), [2.0, 2 * row, 2 * table], strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        assert np.shape(value) == np.shape(expected)
    assert {tag for _, tag, _ in events(tmp_path / "eval")} == {"loss"}


def test_a_large_array_is_returned_and_left_out_of_the_events(tmp_path):
    def metric_fn(x):
        zero = tf.reduce_sum(0 * x)
        rows = {"small": 1 << 18, "large": (1 << 18) + 1}  # float32
        return {name: tf.metrics.mean_tensor(zero + tf.ones([size])) for name, size in rows.items()}

    results = make_estimator(tmp_path, with_metrics(metric_fn)).evaluate(input_fn, steps=1)
    assert results["large"].shape == ((1 << 18) + 1,)
    assert {tag for _, tag, _ in events(tmp_path / "eval")} == {"loss", "small"}


class SeesEvalStep(tf.train.SessionRunHook):
    """Notes the eval step as a hook sees it at a loop's end."""

    def __init__(self):
        self.seen = []

    def begin(self):
        (self._step,) = tf.get_collection(tf.GraphKeys.EVAL_STEP)

    def after_run(self, run_context, run_values):
        self.seen.append(int(run_context.session.run(self._step)))


def test_the_eval_step_counts_the_steps_of_a_loop(tmp_path, cores):
    steps, stopping = SeesEvalStep(), evaluation._StopAfterNEvalsHook(3, log_progress=False)
    estimator = make_estimator(tmp_path)
    for _ in range(2):  # it begins anew
        assert estimator.evaluate(input_fn, steps=3, hooks=[steps, stopping])["loss"] == 2.0
    assert steps.seen == [3, 3]
    assert "eval_step" not in make_estimator(tmp_path).train(input_fn, steps=1).get_variable_names()


def test_a_model_that_counts_evaluations_shares_the_eval_step(tmp_path, cores):
    def fields(features, loss):
        evaluation._get_or_create_eval_step()
        return {}

    steps = SeesEvalStep()
    estimator = make_estimator(tmp_path, make_model_fn(fields))
    estimator.evaluate(input_fn, steps=2, hooks=[steps])
    assert steps.seen == [2]
