"""Loops of steps on the session runtime: what hooks, host calls and summaries see of them."""

import re
import threading
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy import (
    BATCH_SIZE,
    HostLog,
    Visits,
    batches,
    checkpoint_steps,
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
from bert_estimator.tpu.step import feeds

pytestmark = pytest.mark.usefixtures("cores")


def with_host_call(host_fn, tensors):
    """Returns a model_fn with a host call. `tensors` is a function of (features, loss)."""
    return make_model_fn(lambda features, loss: {"host_call": (host_fn, tensors(features, loss))})


def loss_alone(features, loss):
    return [tf.reshape(loss, [1])]


# Loops.


@pytest.mark.parametrize(
    ("loop", "steps", "ends"),
    [(2, 6, [2, 4, 6]), (4, 10, [4, 8, 10]), (100, 3, [3]), (1, 3, [1, 2, 3]), (3, 1, [1])],
)
def test_hooks_visit_the_ends_of_loops_and_fetch_what_is_there(tmp_path, loop, steps, ends):
    visits = Visits()
    make_estimator(tmp_path, iterations_per_loop=loop).train(input_fn, [visits], steps=steps)
    assert visits.fetched == [(end, float(end)) for end in ends]
    visit = ["before_run", "after_run"]
    assert visits.calls == ["begin", "after_create_session", *visit * len(ends), "end"]


def test_loops_start_anew_where_training_goes_on(tmp_path):
    visits = [Visits(), Visits()]
    for each in visits:
        make_estimator(tmp_path, iterations_per_loop=4).train(input_fn, [each], steps=5)
    assert [each.steps for each in visits] == [[4, 5], [9, 10]]


def test_a_stop_asked_for_by_a_hook_ends_training_after_the_loop(tmp_path):
    visits = Visits(stop_at=3)
    make_estimator(tmp_path, iterations_per_loop=2).train(input_fn, [visits], steps=100)
    assert visits.steps == [2, 4]
    assert checkpoint_steps(tmp_path) == [0, 4]
    wait_until(lambda: not threads("infeed") and not threads("outfeed"))


@pytest.mark.parametrize(
    ("kind", "name"),
    [("as a name", "toy_loss:0"), ("nested", "toy_loss:0"), ("an operation", "toy_loss")],
)
def test_a_hook_that_fetches_a_tensor_of_the_step_is_named(tmp_path, kind, name):
    seen = []

    def model_fn(features, mode, params):
        spec = make_model_fn()(features, mode, params)
        seen.append(spec.loss)
        return spec

    class Watch(tf.train.SessionRunHook):
        def begin(self):
            (loss,) = seen
            self.fetches = {
                "as a name": "toy_loss:0",
                "nested": {"step": tf.train.get_global_step(), "deep": [loss]},
                "an operation": loss.op,
            }[kind]

        def before_run(self, run_context):
            return tf.train.SessionRunArgs(self.fetches)

    with pytest.raises(ValueError, match=rf"The hook Watch fetches {name}, .*host_call"):
        make_estimator(tmp_path, model_fn).train(input_fn, [Visits(), Watch()], steps=2)


def test_a_name_that_is_nothing_s_is_another_error(tmp_path):
    watch = tf.train.LoggingTensorHook(["no_such"], every_n_iter=1)
    with pytest.raises(KeyError, match="no_such"):
        make_estimator(tmp_path).train(input_fn, [watch], steps=2)


@pytest.mark.parametrize("verb", ["train", "evaluate", "predict"])
@pytest.mark.parametrize("kind", ["logs", "ends"])
def test_a_hook_with_a_tensor_of_the_step_is_explained(tmp_path, cores, verb, kind):
    """The hook is made in model_fn: it fetches in its `before_run`, or in its `end`."""

    def fields(features, loss):
        hook = {
            "logs": lambda: tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=1),
            "ends": lambda: tf.train.FinalOpsHook(loss),
        }[kind]()
        hooks = ("training_hooks", "evaluation_hooks", "prediction_hooks")
        return {"predictions": {"x": features["x"]}, **{name: [hook] for name in hooks}}

    estimator = make_estimator(tmp_path, make_model_fn(fields), predict_batch_size=4)
    calls = {
        "train": lambda: estimator.train(input_fn, steps=1),
        "evaluate": lambda: estimator.evaluate(input_fn, steps=1),
        "predict": lambda: list(estimator.predict(ending_at(1))),
    }
    name = "(Logging|Final)(Tensor|Ops)Hook"
    with pytest.raises(ValueError, match=f"The hook {name} fetches .*of the step.*host_call"):
        calls[verb]()


def test_a_hook_s_own_unfed_placeholder_is_another_error(tmp_path):
    class Asks(tf.train.SessionRunHook):
        def begin(self):
            self.holder = tf.placeholder(tf.float32, name="mine")

        def before_run(self, run_context):
            return tf.train.SessionRunArgs(self.holder)

    with pytest.raises(tf.errors.InvalidArgumentError, match="mine"):
        make_estimator(tmp_path).train(input_fn, [Asks()], steps=2)


def test_hooks_may_feed_their_fetches_and_trace_the_last_step(tmp_path, cores):
    class Feeds(tf.train.SessionRunHook):
        def begin(self):
            self.holder = tf.placeholder(tf.float32, name="mine")
            self.double = self.holder * 2
            self.results, self.traced = [], []

        def before_run(self, run_context):
            options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
            return tf.train.SessionRunArgs(self.double, {self.holder: 21.0}, options)

        def after_run(self, run_context, run_values):
            self.results.append(float(run_values.results))
            stats = run_values.run_metadata.step_stats.dev_stats
            self.traced.append({node.node_name for device in stats for node in device.node_stats})

    hook = Feeds()
    make_estimator(tmp_path, iterations_per_loop=3).train(input_fn, [hook], steps=5)
    assert hook.results == [42.0, 42.0]
    # On the XLA runtime TensorFlow runs no step that it could trace.
    assert all(("toy_loss" in nodes) == (cores == 1) for nodes in hook.traced)
    assert checkpoint_steps(tmp_path) == [0, 5]


def test_a_tuned_training_ends_exactly_where_it_should(tmp_path):
    visits = Visits()
    make_estimator(tmp_path, iterations_per_loop="1s").train(input_fn, [visits], steps=30)
    assert visits.steps[0] == 1
    assert visits.fetched[-1] == (30, 30.0)


# Host calls.


@pytest.mark.parametrize("loop", [1, 4, 100])
def test_a_host_call_sees_every_step_in_order(tmp_path, cores, loop):
    log = HostLog()
    model_fn = with_host_call(log, loss_alone)
    make_estimator(tmp_path, model_fn, iterations_per_loop=loop).train(input_fn, steps=10)
    assert log.values == [[[float(step)] * cores] for step in range(1, 11)]


def test_a_host_call_of_a_dict_goes_by_keyword(tmp_path, cores):
    log = HostLog()

    def tensors(features, loss):
        return {"x": features["x"][:1], "loss": tf.reshape(loss, [1])}

    make_estimator(tmp_path, with_host_call(log, tensors)).train(input_fn, steps=2)
    assert log.values == [{"loss": [k] * cores, "x": [k] * cores} for k in (1.0, 2.0)]


def test_every_nth_host_call_counts_global_steps_over_loops_and_resume(tmp_path, cores):
    log = HostLog()
    for steps in (5, 6):
        make_estimator(
            tmp_path,
            with_host_call(log, loss_alone),
            iterations_per_loop=4,
            experimental_host_call_every_n_steps=3,
        ).train(input_fn, steps=steps)
    # The steps that start at the global steps 0, 3, 6 and 9.
    assert log.values == [[[step] * cores] for step in (1.0, 4.0, 7.0, 10.0)]


def test_a_slow_host_call_is_waited_for_at_the_end(tmp_path):
    log = HostLog(secs=0.02)
    make_estimator(tmp_path, with_host_call(log, loss_alone)).train(input_fn, steps=10)
    assert len(log.values) == 10


@pytest.mark.parametrize("tensors", [[], {}])
def test_a_host_call_without_tensors_is_not_called(tmp_path, tensors):
    def host_fn():
        raise AssertionError("called")

    model_fn = with_host_call(host_fn, lambda features, loss: tensors)
    make_estimator(tmp_path, model_fn).train(input_fn, steps=2)


def test_a_host_call_that_returns_nothing_has_nothing_to_run(tmp_path, cores):
    seen = []
    model_fn = with_host_call(seen.append, loss_alone)
    make_estimator(tmp_path, model_fn).train(input_fn, steps=3)
    assert [tensor.shape.as_list() for tensor in seen] == [[cores]]


@pytest.mark.parametrize("fails_at", [1, 5, 10])
def test_an_exception_in_a_host_call_surfaces_as_itself(tmp_path, fails_at):
    model_fn = with_host_call(HostLog(fails_at), loss_alone)
    with pytest.raises(tf.errors.UnknownError, match=f"host call failed in its call {fails_at}"):
        make_estimator(tmp_path, model_fn).train(input_fn, steps=10)
    wait_until(lambda: not threads("outfeed") and not threads("infeed"))


def test_a_failed_host_call_does_not_wait_for_the_next_batch(tmp_path):
    release = threading.Event()

    def hangs_at_4(i):
        if i == 4:
            release.wait()
        return np.full([4], i, np.float32)

    model_fn = with_host_call(HostLog(fails_at=3), loss_alone)
    try:
        with pytest.raises(tf.errors.UnknownError, match="failed in its call 3"):
            make_estimator(tmp_path, model_fn).train(py_input_fn(hangs_at_4), steps=10)
    finally:
        release.set()
    wait_until(lambda: not threads("infeed"))


def test_a_failed_host_call_comes_before_the_end_of_the_data(tmp_path):
    model_fn = with_host_call(HostLog(fails_at=3, secs=0.1), loss_alone)
    with pytest.raises(tf.errors.UnknownError, match="failed in its call 3"):
        make_estimator(tmp_path, model_fn).train(ending_at(3), steps=10)


@pytest.mark.parametrize(
    ("host_fn", "tensors", "error", "message"),
    [
        (lambda loss: None, lambda f, loss: [loss], RuntimeError, r"host_call tensor 0 \(toy_loss"),
        (
            lambda a: tf.summary.scalar("a", a[0]),
            loss_alone,
            ValueError,
            r"host_call: tf.compat.v1.summary cannot be used here",
        ),
        (lambda a: None, lambda f, loss: {"b": f["x"]}, TypeError, r"keys \['b'\]"),
    ],
)
def test_what_a_host_call_must_not_do(tmp_path, host_fn, tensors, error, message):
    with pytest.raises(error, match=message):
        make_estimator(tmp_path, with_host_call(host_fn, tensors)).train(input_fn, steps=1)


def test_a_host_call_writes_events_of_every_step(tmp_path):
    def host_fn(step, loss):
        with tpu.summary.create_file_writer(str(tmp_path)).as_default():
            return tpu.summary.scalar("train/loss", loss[0], step=step[0])

    def tensors(features, loss):
        return {"step": tf.cast(features["x"][:1], tf.int64), "loss": tf.reshape(loss, [1])}

    for _ in range(2):
        make_estimator(tmp_path, with_host_call(host_fn, tensors)).train(input_fn, steps=3)
    assert scalars(tmp_path, "train/loss") == [(k, float(k)) for k in range(1, 7)]


# Summaries and log records.


@pytest.mark.parametrize(
    ("every", "loop", "at"),
    [(2, 2, [2, 4, 6, 8, 10]), (3, 2, [4, 6, 10]), (100, 4, []), (1, 4, [4, 8, 10])],
)
def test_v1_summaries_of_the_last_step_are_written_at_loop_ends(tmp_path, cores, every, loop, at):
    def fields(features, loss):
        tf.summary.scalar("x", features["x"][0])
        tf.summary.histogram("xs", features["x"])
        return {}

    make_estimator(
        tmp_path, make_model_fn(fields), save_summary_steps=every, iterations_per_loop=loop
    ).train(input_fn, steps=10)
    assert scalars(tmp_path, "x") == [(step, float(step)) for step in at]
    histograms = [(step, value.histo) for step, tag, value in events(tmp_path) if tag == "xs"]
    assert [(step, histogram.max) for step, histogram in histograms] == [(s, s) for s in at]
    assert all(histogram.num == BATCH_SIZE // cores for _, histogram in histograms)
    assert scalars(tmp_path, "loss") == [(step, float(step)) for step in at]


@pytest.mark.parametrize("loop", [1, 3, 100])
def test_a_histogram_does_not_hide_the_loss_that_is_not_finite(tmp_path, cores, loop):
    def fields(features, loss):
        tf.summary.histogram("loss_of_rows", features["x"] * loss)
        return {}

    def loss(weight, features):
        return tf.where(features["x"][0] >= 3, np.nan, features["x"][0])

    model_fn = make_model_fn(fields, loss=loss)
    estimator = make_estimator(tmp_path, model_fn, save_summary_steps=1, iterations_per_loop=loop)
    with pytest.raises(tpu.NanLossDuringTrainingError, match="loss of step 3 is nan"):
        estimator.train(input_fn, steps=10)


def test_a_histogram_of_what_is_not_finite_is_an_error_of_its_own(tmp_path, cores):
    def fields(features, loss):
        tf.summary.histogram("broken", features["x"] / 0)
        return {}

    estimator = make_estimator(tmp_path, make_model_fn(fields), save_summary_steps=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Histogram for: broken"):
        estimator.train(input_fn, steps=2)


def test_a_summary_made_in_input_fn_draws_no_batch(tmp_path, cores, warned):
    def input_fn(params):
        data = batches(batch_size=params["batch_size"])
        drawn = tf.data.make_one_shot_iterator(data).get_next()["x"]
        tf.summary.scalar("drawn", drawn[0])
        x = drawn + tf.zeros_like(drawn)
        tf.summary.scalar("given", x[0])
        tf.summary.scalar("of_none", tf.constant(7.0))
        return {"x": x}

    def fields(features, loss):
        tf.summary.scalar("x", features["x"][0])
        return {"host_call": (log, {"x": features["x"][:1]})}

    log = HostLog()
    estimator = make_estimator(
        tmp_path, make_model_fn(fields), save_summary_steps=1, iterations_per_loop=2
    )
    estimator.train(input_fn, steps=6)
    assert [values["x"] for values in log.values] == [[float(k)] * cores for k in range(1, 7)]
    assert scalars(tmp_path, "x") == [(2, 2.0), (4, 4.0), (6, 6.0)]
    assert scalars(tmp_path, "of_none") == [(2, 7.0), (4, 7.0), (6, 7.0)]
    assert {tag for _, tag, _ in events(tmp_path)} & {"drawn", "given"} == set()
    found = [warning for warning in warned() if "is not written" in warning]
    assert [warning.split()[2] for warning in found] == ["drawn", "given"]
    assert all("input_fn, and would draw a batch that no step gets. Make it" in w for w in found)


# A model that calls Python cannot be lowered.
@pytest.mark.parametrize("cores", ["session"], indirect=True)
def test_a_summary_that_waits_for_the_update_is_made_within_the_step(tmp_path, cores):
    made = tf.Summary(value=[tf.Summary.Value(tag="made", simple_value=1.0)])

    def model_fn(features, mode, params):
        spec = make_model_fn()(features, mode, params)
        with tf.control_dependencies([spec.train_op]):
            text = tf.py_func(made.SerializeToString, [], tf.string)
        tf.add_to_collection(tf.GraphKeys.SUMMARIES, text)
        return spec

    estimator = make_estimator(tmp_path, model_fn, save_summary_steps=1, iterations_per_loop=2)
    estimator.train(input_fn, steps=4)
    assert scalars(tmp_path, "made") == [(2, 1.0), (4, 1.0)]
    assert scalars(tmp_path, "loss") == [(2, 2.0), (4, 4.0)]


def test_no_summaries_where_none_are_wanted(tmp_path):
    make_estimator(tmp_path, save_summary_steps=None, iterations_per_loop=1).train(
        input_fn, steps=3
    )
    assert scalars(tmp_path, "loss") == []


def test_a_log_record_has_loss_host_call_scalars_rates_waiting_and_time_left(tmp_path, logged):
    def tensors(features, loss):
        return {
            "rate": tf.reshape(loss / 10, [1]),
            "ids": tf.constant([7]),  # no float
            "xs": features["x"],  # more than one value
        }

    records = []
    make_estimator(
        tmp_path,
        with_host_call(lambda rate, ids, xs: tf.no_op(), tensors),
        iterations_per_loop=2,
        log_step_count_steps=4,
        units_per_example={"tokens": 10},
    ).train(input_fn, [tpu.LogListener(records.append)], steps=10)
    assert [record["step"] for record in records] == [4, 8, 10]
    for record in records:
        assert list(record) == [
            *["step", "loss", "rate", "steps_per_sec", "examples_per_sec", "tokens_per_sec"],
            *["input_wait", "eta_secs"],
        ]
        assert record["loss"] == record["step"]
        assert record["rate"] == np.float32(record["step"] / 10)
        assert record["examples_per_sec"] == record["steps_per_sec"] * 4
        assert record["tokens_per_sec"] == record["examples_per_sec"] * 10
        assert 0 <= record["input_wait"] <= 1
        assert record["eta_secs"] >= 0
    assert records[-1]["eta_secs"] == 0
    lines = [line for level, line in logged if re.match(r"step \d+/10  loss ", line)]
    assert len(lines) == 3
    assert lines[0].startswith("step 4/10  loss 4.0000  rate 0.4  ")


def test_waiting_for_a_slow_input_is_seen(tmp_path):
    def slow(i):
        time.sleep(0.05)
        return np.full([4], i, np.float32)

    records = []
    make_estimator(tmp_path, iterations_per_loop=5, log_step_count_steps=5).train(
        py_input_fn(slow), [tpu.LogListener(records.append)], steps=20
    )
    assert records[-1]["input_wait"] > 0.7


def test_data_of_exactly_the_steps_is_enough(tmp_path):
    make_estimator(tmp_path, iterations_per_loop=4).train(ending_at(10), steps=10)
    assert checkpoint_steps(tmp_path) == [0, 10]


def test_the_infeed_sleeps_first_where_asked(tmp_path, monkeypatch):
    slept = []
    wait = feeds.Infeed

    def spied(draw, limit, delay_secs, depth):
        slept.append(delay_secs)
        return wait(draw, limit, 0, depth)

    monkeypatch.setattr(feeds, "Infeed", spied)
    make_estimator(tmp_path, initial_infeed_sleep_secs=30).train(input_fn, steps=1)
    make_estimator(tmp_path).train(input_fn, steps=1)
    assert slept == [30, 0]


# The spec.


def test_a_plain_estimator_spec_trains_and_its_scaffold_is_ignored(tmp_path, warned):
    def model_fn(features, mode, params):
        spec = make_model_fn()(features, mode, params)
        scaffold = tf.train.Scaffold(init_op=tf.no_op())
        return tpu.EstimatorSpec(mode, loss=spec.loss, train_op=spec.train_op, scaffold=scaffold)

    make_estimator(tmp_path, model_fn).train(input_fn, steps=2)
    assert checkpoint_steps(tmp_path) == [0, 2]
    assert any("EstimatorSpec.scaffold is ignored with use_tpu=True" in w for w in warned())


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (
            lambda s: tpu.EstimatorSpec(
                s.mode, loss=s.loss, train_op=s.train_op,
                training_chief_hooks=[tf.train.SessionRunHook()],
            ),
            ValueError,
            "training_chief_hooks are not supported",
        ),
        (lambda s: s._replace(scaffold_fn=lambda: None), ValueError, "scaffold_fn must return"),
        (lambda s: s.loss, ValueError, r"must return a TPUEstimatorSpec .* not \w*Tensor"),
    ],
)  # fmt: skip
def test_specs_that_are_refused(tmp_path, spec, error, message):
    def model_fn(features, mode, params):
        return spec(make_model_fn()(features, mode, params))

    with pytest.raises(error, match=message):
        make_estimator(tmp_path, model_fn).train(input_fn, steps=1)


def test_a_scaffold_fn_may_initialize_from_elsewhere(tmp_path):
    def model_fn(features, mode, params):
        spec = make_model_fn()(features, mode, params)
        (weight,) = (v for v in tf.global_variables() if v.op.name == "w")

        def scaffold_fn():
            start = weight.assign(100.0)
            return tf.train.Scaffold(init_fn=lambda scaffold, session: session.run(start))

        return spec._replace(scaffold_fn=scaffold_fn)

    visits = Visits()
    for _ in range(2):
        make_estimator(tmp_path, model_fn).train(input_fn, [visits], steps=2)
    assert visits.fetched == [(2, 102.0), (4, 104.0)]


@pytest.mark.parametrize(
    "uses",
    [
        lambda loss: tf.train.Scaffold(init_op=loss.op),
        lambda loss: tf.train.Scaffold(summary_op=tf.summary.scalar("its_loss", loss)),
        lambda loss: tf.train.Scaffold(init_fn=lambda *_, fetched=loss + 1: None),
    ],
    ids=["operation", "summary", "tensor"],
)
def test_a_scaffold_has_no_tensor_of_the_step(tmp_path, uses):
    def fields(features, loss):
        return {"scaffold_fn": lambda: uses(loss)}

    with pytest.raises(ValueError, match=r"scaffold_fn uses .*, which is computed from a step's"):
        make_estimator(tmp_path, make_model_fn(fields)).train(input_fn, steps=1)


def test_the_input_modes_take_datasets_or_tensors(tmp_path, cores):
    def tensors(params):
        return tf.data.make_one_shot_iterator(input_fn(params)).get_next()

    modes = tpu.InputPipelineConfig
    if cores == 1:  # several cores do not take it at all
        each = make_estimator(tmp_path / "each", per_host_input_for_training=modes.PER_SHARD_V1)
        with pytest.raises(TypeError, match=r"Dataset, which .*PER_SHARD_V1 \(False\) does not"):
            each.train(input_fn, steps=1)
        each.train(tensors, steps=1)
        each.evaluate(input_fn, steps=1)
    drawn = make_estimator(tmp_path / "drawn", per_host_input_for_training=modes.PER_HOST_V2)
    with pytest.raises(TypeError, match=r"must return a Dataset .*PER_HOST_V2: use PER_HOST_V1"):
        drawn.train(tensors, steps=1)


def test_gradients_of_biases_in_bfloat16_are_summed_in_float32(tmp_path):
    slopes = np.random.RandomState(0).normal(size=[4, 32, 32, 8]).astype(np.float32)

    def input_fn(params):
        return (
            tf.data.Dataset.from_tensors({"x": slopes})
            .unbatch()
            .batch(params["batch_size"], drop_remainder=True)
        )

    def model_fn(features, mode, params):
        with tf.tpu.bfloat16_scope():
            bias = tf.get_variable("bias", [8], tf.bfloat16, tf.zeros_initializer())
            x = tf.cast(features["x"], tf.bfloat16)
            y = tf.nn.bias_add(x, bias)
        # The gradient of y is x.
        loss = tf.reduce_sum(tf.cast(y, tf.float32) * tf.cast(x, tf.float32))
        optimizer = tpu.CrossShardOptimizer(
            tf.train.GradientDescentOptimizer(1.0), tf.losses.Reduction.SUM
        )
        train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = make_estimator(tmp_path, model_fn)
    estimator.train(input_fn, steps=1)
    expected = -slopes.sum((0, 1, 2))
    actual = estimator.get_variable_value("bias")
    np.testing.assert_allclose(actual, expected, rtol=0.01, atol=0.01 * np.abs(expected).max())
