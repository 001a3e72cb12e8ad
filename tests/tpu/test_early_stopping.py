"""Tests what ends a training early, and how often the function is called."""

import pytest
import tensorflow.compat.v1 as tf
from toy import Visits, input_fn, make_estimator

from bert_estimator.tpu import early_stopping

LOSSES = {10: 5.0, 20: 3.0, 30: 4.0, 40: 3.0, 50: 3.5}


def write_events(folder, losses, tag="loss"):
    with tf.Graph().as_default():
        writer = tf.summary.FileWriter(str(folder / "eval"), filename_suffix=tag)
        for step, loss in losses.items():
            value = tf.Summary.Value(tag=tag, simple_value=loss)
            writer.add_summary(tf.Summary(value=[value]), step)
        writer.close()


@pytest.fixture
def estimator(tmp_path):
    write_events(tmp_path, LOSSES)
    return make_estimator(tmp_path, iterations_per_loop=2)


def stops(estimator, hook):
    """Returns whether a hook ends the estimator's training at once, when it goes on at step 50."""
    estimator.train(input_fn, max_steps=50)
    visits = Visits()
    estimator.train(input_fn, steps=4, hooks=[hook, visits])
    assert visits.steps in ([], [52, 54])
    return not visits.steps


@pytest.mark.parametrize(
    ("make", "arguments", "expected"),
    [
        (early_stopping.stop_if_higher_hook, {"threshold": 4.5}, True),
        (early_stopping.stop_if_higher_hook, {"threshold": 5.0}, False),
        (early_stopping.stop_if_higher_hook, {"threshold": 4.5, "min_steps": 20}, False),
        (early_stopping.stop_if_lower_hook, {"threshold": 3.1}, True),
        (early_stopping.stop_if_lower_hook, {"threshold": 3.0}, False),
        # The value is lowest at step 20, and does not fall until step 50.
        (early_stopping.stop_if_no_decrease_hook, {"max_steps_without_decrease": 30}, True),
        (early_stopping.stop_if_no_decrease_hook, {"max_steps_without_decrease": 31}, False),
        (early_stopping.stop_if_no_increase_hook, {"max_steps_without_increase": 40}, True),
        (early_stopping.stop_if_no_increase_hook, {"max_steps_without_increase": 41}, False),
        (
            early_stopping.stop_if_no_increase_hook,
            {"max_steps_without_increase": 20, "min_steps": 40},
            False,
        ),
    ],
)
def test_the_evaluations_decide(estimator, make, arguments, expected):
    hook = make(estimator, "loss", run_every_secs=None, run_every_steps=1, **arguments)
    assert stops(estimator, hook) == expected


def test_evaluations_of_later_steps_do_not_count(tmp_path, rules):
    """A killed training may have been evaluated after the checkpoint that it goes on from."""
    write_events(tmp_path, {2: 1.0, 4: 9.0, 6: 9.0})
    estimator = make_estimator(tmp_path, iterations_per_loop=2, **rules)
    arguments = {"run_every_secs": None, "run_every_steps": 1}
    higher = early_stopping.stop_if_higher_hook(estimator, "loss", 5.0, **arguments)
    estimator.train(input_fn, max_steps=8, hooks=[higher])
    assert estimator.global_step() == 4
    stuck = early_stopping.stop_if_no_decrease_hook(estimator, "loss", 4, **arguments)
    estimator.train(input_fn, max_steps=8, hooks=[stuck])
    assert estimator.global_step() == 6


def test_evaluations_without_the_metric_do_not_count(estimator, tmp_path):
    """A program may have got another metric since."""
    write_events(tmp_path, {45: 1.0}, "f1")
    arguments = {"run_every_secs": None, "run_every_steps": 1}
    assert stops(estimator, early_stopping.stop_if_higher_hook(estimator, "f1", 0.5, **arguments))
    hook = early_stopping.stop_if_higher_hook(estimator, "accuracy", 0.5, **arguments)
    with pytest.raises(KeyError, match="accuracy: the evaluations give only loss"):
        estimator.train(input_fn, steps=4, hooks=[hook])


def test_another_directory(estimator, tmp_path):
    hook = early_stopping.stop_if_higher_hook(
        estimator, "loss", 0.0, eval_dir=str(tmp_path / "eval_other"), run_every_secs=0
    )
    assert not stops(estimator, hook)


def test_a_function_decides_as_often_as_it_is_asked(estimator):
    asked = []

    def should_stop():
        asked.append(1)
        return False

    hook = early_stopping.make_early_stopping_hook(estimator, should_stop, None, 4)
    estimator.train(input_fn, steps=8, hooks=[hook])
    assert len(asked) == 2  # at 2 and 6; loops end at 2, 4, 6, 8


def test_a_step_to_stop_at(estimator):
    hook = early_stopping.make_stop_at_checkpoint_step_hook(estimator, last_step=2)
    estimator.train(input_fn, steps=4, hooks=[hook])
    assert estimator.global_step() == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("no function",), TypeError, "should_stop_fn must be a function, not 'no function'"),
        ((bool, 60, 5), ValueError, "exactly one of run_every_secs and run_every_steps"),
        ((bool, None, None), ValueError, "exactly one of"),
    ],
)
def test_wrong_arguments_are_refused(estimator, arguments, error, message):
    with pytest.raises(error, match=message):
        early_stopping.make_early_stopping_hook(estimator, *arguments)


@pytest.mark.parametrize(
    "make, arguments",
    [
        (early_stopping.make_early_stopping_hook, [bool]),
        (early_stopping.stop_if_higher_hook, ["loss", 1.0, "a"]),
        (early_stopping.stop_if_no_decrease_hook, ["loss", 1, "a"]),
    ],
)
def test_only_estimators_train(make, arguments):
    with pytest.raises(TypeError, match="estimator must be an Estimator, not 3"):
        make(3, *arguments)


def test_a_resumed_training_ends_where_the_one_before_it_was_to_end(tmp_path, rules):
    calls, visits = [], Visits()

    def should_stop():
        calls.append(1)
        return True

    def train():
        hook = early_stopping.make_early_stopping_hook(estimator, should_stop)
        estimator.train(input_fn, max_steps=8, hooks=[hook, visits])

    estimator = make_estimator(tmp_path, iterations_per_loop=2, **rules)
    for _ in range(2):
        train()
        first = 1 if rules.get("use_tpu") is False else 2
        assert estimator.global_step() == first
        assert len(visits.steps) == 1
    assert len(calls) == 2  # not at the start of a new training


def test_events_cut_short_by_a_kill_are_read_as_far_as_they_go(estimator, tmp_path, warned):
    (path,) = (tmp_path / "eval").iterdir()
    content = path.read_bytes()
    for length in (len(content) - 1, len(content) - 20):
        path.write_bytes(content[:length])
        metrics = early_stopping.read_eval_metrics(str(tmp_path / "eval"))
        assert metrics == {step: {"loss": loss} for step, loss in LOSSES.items() if step < 50}
    path.write_bytes(content + b"\x18\0\0")
    metrics = early_stopping.read_eval_metrics(str(tmp_path / "eval"))
    assert list(metrics) == list(LOSSES)
    assert sum(text.startswith(f"{path} is read up to where it is") for text in warned()) == 2


def test_of_two_evaluations_of_a_step_the_later_counts(estimator, tmp_path):
    (path,) = (tmp_path / "eval").iterdir()
    with tf.Graph().as_default(), tf.summary.FileWriter(str(tmp_path / "other")) as writer:
        value = tf.Summary.Value(tag="loss", simple_value=1.0)
        writer.add_summary(tf.Summary(value=[value]), 20)
    (other,) = (tmp_path / "other").iterdir()
    other.rename(path.parent / "events.out.tfevents.9999999999.later")
    metrics = early_stopping.read_eval_metrics(str(tmp_path / "eval"))
    assert metrics == {step: {"loss": loss} for step, loss in {**LOSSES, 20: 1.0}.items()}
