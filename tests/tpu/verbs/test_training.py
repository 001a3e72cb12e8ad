"""Training under TPU rules: when it ends, what it saves, which errors it raises."""

import gc
import subprocess
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy import (
    Visits,
    checkpoint_steps,
    ending_at,
    input_fn,
    make_estimator,
    make_model_fn,
    py_input_fn,
    threads,
    wait_until,
    weight_at,
)

from bert_estimator import tpu

pytestmark = pytest.mark.usefixtures("cores")
# For tests that run in local mode too: the fixture `rules` says what they run on.
by_rules = pytest.mark.parametrize("cores", [None], ids=["rules"])


@pytest.mark.parametrize(
    ("calls", "ends"),
    [
        ([{"steps": 3}, {"steps": 3}], [3, 6]),
        ([{"max_steps": 3}, {"max_steps": 3}], [3, 3]),
        ([{"steps": 3}, {"max_steps": 5}], [3, 5]),
        ([{"max_steps": 5}, {"steps": 1}], [5, 6]),
    ],
)
def test_steps_count_from_the_start_and_max_steps_from_zero(tmp_path, calls, ends):
    found = []
    for keywords in calls:
        estimator = make_estimator(tmp_path)
        assert estimator.train(input_fn, **keywords) is estimator
        found.append(estimator.global_step())
    assert found == ends
    assert weight_at(tmp_path, ends[-1]) == ends[-1]


def test_where_max_steps_is_reached_nothing_is_built(tmp_path, logged):
    make_estimator(tmp_path).train(input_fn, steps=4)

    def never(*args, **kwargs):
        raise AssertionError("called")

    def model_fn(features, params):
        never()

    make_estimator(tmp_path, model_fn).train(lambda params: never(), max_steps=4)
    assert ("INFO", f"Nothing to train: {tmp_path} is at step 4, max_steps is 4.") in logged


@pytest.mark.parametrize(
    ("every", "loop", "steps", "saved"),
    [
        (3, 2, 10, [0, 4, 8, 10]),
        (4, 2, 8, [0, 4, 8]),
        (2, 4, 10, [0, 4, 8, 10]),
        (100, 4, 6, [0, 6]),
        (1, 1, 3, [0, 1, 2, 3]),
    ],
)
def test_checkpoints_land_on_loop_ends(tmp_path, every, loop, steps, saved):
    estimator = make_estimator(
        tmp_path, save_checkpoints_steps=every, iterations_per_loop=loop, keep_checkpoint_max=9
    )
    estimator.train(input_fn, steps=steps)
    estimator.train(input_fn, max_steps=steps + 1)
    assert checkpoint_steps(tmp_path) == [*saved, steps + 1]
    assert [weight_at(tmp_path, step) for step in saved] == saved


def test_without_an_interval_nothing_is_saved(tmp_path):
    make_estimator(tmp_path, save_checkpoints_steps=None, save_checkpoints_secs=None).train(
        input_fn, steps=2
    )
    assert checkpoint_steps(tmp_path) == []


def test_the_checkpoint_of_a_step_is_there_when_a_hook_sees_the_step(tmp_path):
    class Looks(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            seen.append(checkpoint_steps(tmp_path)[-1])

    seen = []
    make_estimator(tmp_path, save_checkpoints_steps=2).train(input_fn, [Looks()], steps=6)
    assert seen == [2, 4, 6]


# Errors.


def test_a_train_op_that_never_changes_the_global_step_is_refused(tmp_path, cores):
    def fields(features, loss):
        step = tf.cast(tf.train.get_global_step(), tf.float32)
        return {"train_op": tf.identity(tpu.cross_replica_sum(loss + step))}

    with pytest.raises(RuntimeError, match="train_op does not change the global step, so"):
        make_estimator(tmp_path, make_model_fn(fields)).train(input_fn, steps=4)


def counting_model_fn(every, by, loss=None):
    """Returns a model_fn whose global step rises by `by` in every `every`-th step."""

    def fields(features, loss):
        turns = tf.get_variable("turns", initializer=0, trainable=False)
        step = tf.train.get_global_step()
        with tf.control_dependencies([tpu.cross_replica_sum(loss)]):
            turn = turns.assign_add(1)
        due = tf.equal(turn % every, 0)
        rise = tf.cond(due, lambda: tf.constant(by, tf.int64), lambda: tf.constant(0, tf.int64))
        return {"train_op": step.assign_add(rise)}

    return make_model_fn(fields, loss=loss)


@by_rules
@pytest.mark.parametrize(
    ("every", "by", "steps", "turns"),
    [(1, 2, [4, 10], 5), (4, 1, [1, 2, 8], 32), (5, 1, [3, 8], 40), (2, 2, [2, 10], 10)],
)
def test_a_global_step_may_rise_in_its_own_way(tmp_path, rules, every, by, steps, turns):
    """As gradients that are summed over several steps have it, also after a resume."""
    estimator = make_estimator(
        tmp_path, counting_model_fn(every, by), iterations_per_loop=2, save_checkpoints_steps=2,
        **rules,
    )  # fmt: skip
    drawn = []

    def batch(i):
        drawn.append(i)
        return np.full([4], i, np.float32)

    for step in steps:
        estimator.train(py_input_fn(batch), max_steps=step)
        assert estimator.global_step() == step
    assert estimator.get_variable_value("turns") == turns
    if by == 1:  # The input draws what the steps take, however many that are.
        assert len(drawn) == turns


@pytest.mark.parametrize(("last", "at"), [(0, 0), (4, 4), (5, 5)])
def test_data_that_ends_early_is_an_error_at_once(tmp_path, cores, last, at):
    estimator = make_estimator(tmp_path, save_checkpoints_steps=2)
    start = time.monotonic()
    message = rf"data ended at step {at}, before step 10.*dataset\.repeat\(\)"
    with pytest.raises(tf.errors.OutOfRangeError, match=message):
        estimator.train(ending_at(last), steps=10)
    assert cores > 1 or time.monotonic() - start < 4  # compiling takes its time
    assert checkpoint_steps(tmp_path) == list(range(0, at + 1, 2))
    wait_until(lambda: not threads("infeed"))


def fails_at(step, error):
    def function(i):
        if i == step:
            raise error
        return np.full([4], i, np.float32)

    return function


def test_an_exception_in_a_py_function_keeps_its_message_and_its_place(tmp_path):
    visits = Visits()
    estimator = make_estimator(tmp_path, save_checkpoints_steps=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="record 6 is broken"):
        estimator.train(py_input_fn(fails_at(6, ValueError("record 6 is broken"))), [visits], 10)
    assert visits.steps == [2, 4]  # the hooks do not see the loop that it broke
    assert checkpoint_steps(tmp_path) == [0, 2, 4]


def test_a_source_that_is_killed_ends_the_loop_with_its_error(tmp_path):
    visits = Visits()
    estimator = make_estimator(tmp_path, save_checkpoints_steps=4, iterations_per_loop=4)
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as source:

        def read(i):
            if i == 6:
                source.kill()
                source.stdout.read()
            if not source.stdout.readline():
                raise EOFError("the source of the data has gone")
            return np.full([4], i, np.float32)

        with pytest.raises(tf.errors.OpError, match="the source of the data has gone"):
            estimator.train(py_input_fn(read), [visits], steps=20)
    assert visits.steps == [4]
    assert checkpoint_steps(tmp_path) == [0, 4]
    wait_until(lambda: not threads("infeed"))


def test_an_exception_in_input_fn_or_model_fn_is_raised_as_it_is(tmp_path):
    def broken(params):
        raise LookupError("my own words")

    def broken_model_fn(features, params):
        raise LookupError("my own words")

    for model_fn, data in ((None, broken), (broken_model_fn, input_fn)):
        with pytest.raises(LookupError, match=r"^'?my own words'?$"):
            make_estimator(tmp_path, model_fn).train(data, steps=4)


def test_python_looks_for_garbage_again_when_a_graph_is_built(tmp_path):
    looks = []

    def model_fn(features, mode, params):
        looks.append(gc.isenabled())
        if len(looks) == 2:
            raise LookupError("my own words")
        return make_model_fn()(features, mode, params)

    make_estimator(tmp_path, model_fn).train(input_fn, steps=2)
    assert gc.isenabled()
    with pytest.raises(LookupError, match="my own words"):
        make_estimator(tmp_path, model_fn).train(input_fn, steps=2)
    assert gc.isenabled()
    assert looks == [False, False]


def test_only_sessions_that_train_have_their_settings(tmp_path, monkeypatch):
    given, prepare_session = [], tf.train.SessionManager.prepare_session

    def noting(*args, **keywords):
        given.append(keywords["config"].intra_op_parallelism_threads)
        return prepare_session(*args, **keywords)

    monkeypatch.setattr(tf.train.SessionManager, "prepare_session", noting)
    one, other = (tf.ConfigProto(intra_op_parallelism_threads=n) for n in (1, 2))
    estimator = make_estimator(tmp_path, session_config=one, train_session_config=other)
    estimator.train(input_fn, steps=2)
    estimator.evaluate(input_fn, steps=1)
    assert given == [2, 1]


def test_data_that_cannot_even_start_tells_why(tmp_path):
    def missing(params):
        data = tf.data.TFRecordDataset(str(tmp_path / "absent.tfrecord"))
        return data.map(lambda record: {"x": tf.zeros([4]) + tf.strings.to_number(record)})

    with pytest.raises(tf.errors.NotFoundError, match=r"absent\.tfrecord"):
        make_estimator(tmp_path).train(missing, steps=4)


def test_an_initializer_that_fails_tells_why(tmp_path):
    def unreadable(params):
        def fail():
            raise ValueError("cannot be read")

        count = tf.py_func(fail, [], tf.int64)
        data = tf.data.Dataset.range(10).map(lambda i: {"x": tf.zeros([4])})
        return data.take(count)

    with pytest.raises(tf.errors.InvalidArgumentError, match="cannot be read"):
        make_estimator(tmp_path).train(unreadable, steps=4)


def test_an_exception_in_a_hook_is_raised_as_it_is(tmp_path):
    class Fails(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            raise LookupError("the hook's own words")

    with pytest.raises(LookupError, match="the hook's own words"):
        make_estimator(tmp_path).train(input_fn, [Fails()], steps=4)
    wait_until(lambda: not threads("infeed"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_names_step_and_variables(tmp_path, value):
    def loss(weight, features):
        return tf.where(features["x"][0] >= 6, value, features["x"][0])

    def w_after(weight, features):
        return tf.where(features["x"][0] >= 6, np.nan, weight + 1)

    visits = Visits()
    estimator = make_estimator(
        tmp_path,
        make_model_fn(w_after=w_after, loss=loss),
        save_checkpoints_steps=4,
        iterations_per_loop=4,
    )
    message = (
        rf"loss of step 6 is {value}\. Variables .* not finite after it: w\. The last checkpoint, "
        rf"{tmp_path}/model\.ckpt-4, was written before\. Lower the learning rate"
    )
    with pytest.raises(tpu.NanLossDuringTrainingError, match=message):
        estimator.train(input_fn, [visits], steps=20)
    assert visits.steps == [4]  # no hook sees it
    assert checkpoint_steps(tmp_path) == [0, 4]
    assert weight_at(tmp_path, 4) == 4.0


def test_a_loss_that_is_not_finite_names_the_global_step(tmp_path, cores):
    """Gradients are summed over four batches: the global step is 4 after the 18th."""

    def loss(weight, features):
        return tf.where(tf.equal(features["x"][0], 18), np.nan, 1.0)

    model_fn = counting_model_fn(4, 1, loss)
    estimator = make_estimator(tmp_path, model_fn, iterations_per_loop=20)
    with pytest.raises(tpu.NanLossDuringTrainingError, match=r"loss of step 4 is nan\.") as raised:
        estimator.train(input_fn, max_steps=20)
    assert raised.value.step == 4


def test_a_loss_that_is_not_finite_where_nothing_is_saved(tmp_path):
    model_fn = make_model_fn(loss=lambda weight, features: weight / 0.0)
    estimator = make_estimator(tmp_path, model_fn, save_checkpoints_steps=None)
    message = rf"after it: none\. There is no checkpoint in {tmp_path} to go on from\. Lower the"
    with pytest.raises(tpu.NanLossDuringTrainingError, match=message):
        estimator.train(input_fn, steps=2)


def test_a_nan_loss_tells_the_host_call_s_scalars(tmp_path):
    def fields(features, loss):
        tensors = {"norm": tf.constant([2.5])}
        return {"host_call": (lambda norm: None, tensors)}

    model_fn = make_model_fn(fields, loss=lambda weight, features: weight / 0.0)
    with pytest.raises(
        tpu.NanLossDuringTrainingError, match=r"loss of step 1 is nan, norm = 2.5\. .* it: none\."
    ):
        make_estimator(tmp_path, model_fn).train(input_fn, steps=2)


def test_training_again_after_an_error_goes_on_from_the_last_checkpoint(tmp_path):
    with pytest.raises(tf.errors.OutOfRangeError):
        make_estimator(tmp_path, save_checkpoints_steps=2).train(ending_at(5), max_steps=8)
    make_estimator(tmp_path, save_checkpoints_steps=2).train(input_fn, max_steps=8)
    assert weight_at(tmp_path, 8) == 8.0
    assert checkpoint_steps(tmp_path) == [0, 2, 4, 6, 8]
