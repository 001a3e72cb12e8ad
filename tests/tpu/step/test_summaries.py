"""Which steps compute the v1 summaries: a step that fetches other tensors is prepared anew."""

import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator.tpu.step.session.session_step import SessionStep
from bert_estimator.tpu.step.summaries import LocalSummaries


def with_summary(summarize):
    """Returns a model_fn with a summary of its features."""

    def fields(features, loss):
        summarize("x", features["x"])
        return {}

    return toy.make_model_fn(fields)


def of_first_x(name, x):
    tf.summary.scalar(name, x[0])


OTHER = [tf.summary.histogram, of_first_x]


def fetched_in_local_mode(monkeypatch, folder, model_fn):
    """Trains five steps with summaries every two; returns what their hook fetched in each step."""
    fetched, before_run = [], LocalSummaries.before_run

    def spy(self, run_context):
        arguments = before_run(self, run_context)
        fetched.append(sorted(arguments.fetches))
        return arguments

    monkeypatch.setattr(LocalSummaries, "before_run", spy)
    estimator = toy.make_estimator(folder, model_fn, use_tpu=False, save_summary_steps=2)
    estimator.train(toy.input_fn, max_steps=5)
    return fetched


def test_in_local_mode_every_step_fetches_the_loss(monkeypatch, tmp_path):
    fetched = fetched_in_local_mode(monkeypatch, tmp_path, toy.make_model_fn())
    assert fetched == [["global_step", "summary"]] * 5
    assert [step for step, _ in toy.scalars(tmp_path, "loss")] == [1, 3, 5]


@pytest.mark.parametrize("summarize", OTHER)
def test_in_local_mode_other_summaries_are_computed_when_they_are_due(
    monkeypatch, tmp_path, summarize
):
    fetched = fetched_in_local_mode(monkeypatch, tmp_path, with_summary(summarize))
    assert ["summary" in names for names in fetched] == [True, False, True, False, True]


def train_by_tpu_rules(folder, model_fn):
    estimator = toy.make_estimator(folder, model_fn, save_summary_steps=2, iterations_per_loop=2)
    estimator.train(toy.input_fn, max_steps=4)


def test_by_tpu_rules_no_step_is_another_for_the_loss(monkeypatch, tmp_path):
    monkeypatch.delattr(SessionStep, "_run_last_step")
    train_by_tpu_rules(tmp_path, toy.make_model_fn())
    assert [step for step, _ in toy.scalars(tmp_path, "loss")] == [2, 4]


@pytest.mark.parametrize("summarize", OTHER)
def test_by_tpu_rules_other_summaries_are_computed_when_they_are_due(
    monkeypatch, tmp_path, summarize
):
    monkeypatch.delattr(SessionStep, "_run_last_step")
    with pytest.raises(AttributeError, match="_run_last_step"):
        train_by_tpu_rules(tmp_path, with_summary(summarize))


def test_a_summary_op_that_is_an_operation_turns_summaries_off(tmp_path, rules):
    def fields(features, loss):
        tf.summary.scalar("norm", 2 * tf.trainable_variables()[0].read_value())
        return {"scaffold_fn": lambda: tf.train.Scaffold(summary_op=tf.no_op())}

    estimator = toy.make_estimator(
        tmp_path, toy.make_model_fn(fields), save_summary_steps=2, iterations_per_loop=2, **rules
    )
    estimator.train(toy.input_fn, max_steps=4)
    tags = {tag for _, tag, _ in toy.events(tmp_path)}
    assert tags.isdisjoint(["norm", "loss"]) and "global_step/sec" in tags


@pytest.mark.parametrize("merges_all", [True, False])
def test_the_summary_op_of_a_scaffold_fn(tmp_path, rules, merges_all):
    def scaffold_fn():
        (weight,) = tf.trainable_variables()
        own = tf.summary.scalar("own", weight, collections=[])
        others = tf.get_collection(tf.GraphKeys.SUMMARIES) if merges_all else []
        return tf.train.Scaffold(summary_op=tf.summary.merge([own, *others]))

    def fields(features, loss):
        tf.summary.scalar("norm", 2 * tf.trainable_variables()[0].read_value())
        return {"scaffold_fn": scaffold_fn}

    estimator = toy.make_estimator(
        tmp_path, toy.make_model_fn(fields), save_summary_steps=2, iterations_per_loop=2, **rules
    )
    estimator.train(toy.input_fn, max_steps=4)
    tags = {tag for _, tag, _ in toy.events(tmp_path)}
    local = rules == {"use_tpu": False}  # As upstream, it replaces the other summaries.
    assert "own" in tags
    assert ("loss" in tags) == (not local)
    assert ("norm" in tags) == (not local or merges_all)
