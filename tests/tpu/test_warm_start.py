"""Tests which variables a warm start sets, from which sources, and when it is skipped."""

import os
import shutil
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy import make_estimator, scalars, weight_at

from bert_estimator import tpu
from bert_estimator.tpu import serving, warm_start
from bert_estimator.tpu.step import initial_values


def make_model_fn(names=("a", "b"), first=0.0, adds=1.0):
    """Returns a model_fn with a variable for each name; each training step adds `adds` to it."""

    def model_fn(features, mode, params):
        variables = [tf.get_variable(name, initializer=first) for name in names]
        total = tf.add_n(variables) + 0.0 * tf.reduce_sum(features["x"])
        ones = tf.ones_like(features["x"])
        train_op = None
        if mode == tpu.ModeKeys.TRAIN:
            step = tf.train.get_global_step().assign_add(1)
            train_op = tf.group(
                tpu.cross_replica_sum(total), step, *(v.assign_add(adds) for v in variables)
            )
        return tpu.TPUEstimatorSpec(
            mode,
            loss=total,
            train_op=train_op,
            predictions={name: v * ones for name, v in zip(names, variables, strict=True)},
        )

    return model_fn


def input_fn(params):
    return tf.data.Dataset.from_tensors({"x": tf.zeros([4])}).repeat()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Makes a model_dir with the checkpoints 0, 1 and 2, in which a and b equal the step."""
    folder = tmp_path_factory.mktemp("source")
    make_estimator(folder, make_model_fn(), save_checkpoints_steps=1, iterations_per_loop=1).train(
        input_fn, steps=2
    )
    return str(folder)


def make(folder, warm_start_from, rules=(), **of_model):
    return make_estimator(
        folder,
        make_model_fn(**{"first": 100.0, **of_model}),
        warm_start_from=warm_start_from,
        predict_batch_size=4,
        **dict(rules),
    )


def initial(estimator):
    """Returns the initial weights of a training."""
    estimator.train(input_fn, steps=1)
    return {name: weight_at(estimator.model_dir, 0, name) for name in ("a", "b")}


def test_all_variables_from_a_directory_or_a_checkpoint(tmp_path, source, rules):
    assert initial(make(tmp_path / "1", source, rules)) == {"a": 2.0, "b": 2.0}
    assert initial(make(tmp_path / "2", f"{source}/model.ckpt-1", rules)) == {"a": 1.0, "b": 1.0}


def test_the_first_step_already_has_them(tmp_path, source, rules):
    estimator = make(tmp_path, source, rules)
    assert estimator.evaluate(input_fn, steps=2) == {"loss": 4.0, "global_step": 0}
    assert next(estimator.predict(input_fn)) == {"a": 2.0, "b": 2.0}
    estimator.train(input_fn, steps=3)
    assert estimator.get_variable_value("a") == 5.0
    assert estimator.get_variable_value("global_step") == 3


def test_steps_count_from_a_step_that_the_warm_start_brings(tmp_path, source, rules, logged):
    settings = tpu.WarmStartSettings(source, vars_to_warm_start=[".*"])  # the global step, too
    estimator = make(tmp_path, settings, rules)
    estimator.train(input_fn, steps=3)
    assert estimator.global_step() == 5
    assert estimator.get_variable_value("a") == 5.0
    assert ("INFO", "The warm start begins at step 2: training to step 5.") in logged
    estimator.train(input_fn, max_steps=6)
    assert estimator.global_step() == 6


def test_host_calls_and_summaries_count_from_that_step(tmp_path, source, cores):
    seen = []

    def note(step):
        return tf.py_func(lambda value: seen.append(int(value[0])), [step], [])

    def model_fn(features, mode, params):
        step = tf.reshape(tf.cast(tf.train.get_global_step(), tf.int32), [1])
        spec = make_model_fn()(features, mode, params)
        return spec._replace(host_call=(note, [step]))

    estimator = make_estimator(
        tmp_path,
        model_fn,
        warm_start_from=tpu.WarmStartSettings(source, [".*"]),
        experimental_host_call_every_n_steps=4,
        save_summary_steps=4,
        iterations_per_loop=1,
    )
    estimator.train(input_fn, steps=8)
    assert estimator.global_step() == 10
    assert seen == [4, 8]
    assert [step for step, _ in scalars(tmp_path, "loss")] == [4, 8]


def test_a_saved_model(tmp_path, source):
    receiver_fn = serving.build_raw_serving_input_receiver_fn({"x": tf.zeros([4])})
    path = make_estimator(source, make_model_fn()).export_saved_model(tmp_path / "out", receiver_fn)
    assert initial(make(tmp_path / "model", path)) == {"a": 2.0, "b": 2.0}


def test_what_training_would_begin_with_can_be_exported(tmp_path, source):
    receiver_fn = serving.build_raw_serving_input_receiver_fn({"x": tf.zeros([4])})
    path = make(tmp_path / "model", source).export_saved_model(tmp_path / "out", receiver_fn)
    with tf.Graph().as_default(), tf.Session() as session:
        served = tf.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
        value = session.run(served.outputs["a"].name, {served.inputs["x"].name: [0.0]})
    assert value == [2.0]


def test_a_variable_that_is_not_there_is_an_error(tmp_path, source):
    with pytest.raises(ValueError, match="c"):
        make(tmp_path, source, names=("a", "c")).train(input_fn, steps=1)


@pytest.mark.parametrize("given", [3, ("path",), tf.train.Scaffold])
def test_other_types_are_refused(tmp_path, given):
    with pytest.raises(ValueError, match="warm_start_from must be the path"):
        make(tmp_path, given)


def test_settings_need_a_path():
    with pytest.raises(ValueError, match="ckpt_to_initialize_from must be a path, not ''"):
        tpu.WarmStartSettings("")
    assert tpu.WarmStartSettings("p") == ("p", ".*", {}, {})


def test_of_a_directory_the_newest_complete_checkpoint_is_taken(tmp_path, source):
    folder = shutil.copytree(source, tmp_path / "source")
    os.truncate(folder / "model.ckpt-2.data-00000-of-00001", 1)
    assert initial(make(tmp_path / "damaged", str(folder))) == {"a": 1.0, "b": 1.0}
    folder = shutil.copytree(source, tmp_path / "misnamed")
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"')
    assert initial(make(tmp_path / "state", str(folder))) == {"a": 2.0, "b": 2.0}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "a"),
        ({"vars_to_warm_start": "b"}, None),
        ({"vars_to_warm_start": ["a"]}, "a"),
        ({"vars_to_warm_start": "b", "var_name_to_prev_var_name": {"b": "a"}}, "a"),
    ],
)
def test_values_that_are_not_finite_are_named_before_the_first_step(
    tmp_path, rules, settings, named
):
    prefix = str(tmp_path / "source.ckpt")
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("a", initializer=np.float32(np.nan))
        tf.get_variable("b", initializer=np.float32(3.0))
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, prefix)
    warm_start = tpu.WarmStartSettings(prefix, **settings)
    estimator = make(tmp_path / "run", warm_start, rules)
    if named is None:
        assert initial(estimator) == {"a": 100.0, "b": 3.0}
        return
    message = f"^warm_start_from: {prefix} has values that are not finite: {named}\\. "
    with pytest.raises(ValueError, match=message):
        estimator.train(input_fn, steps=1)
    assert not list((tmp_path / "run").iterdir())  # it was made for the lock, and nothing is in it


def test_rows_of_another_vocabulary(tmp_path, rules):
    """The rows of the words that both have are taken; the variables come back from the cores."""
    for name, words in {"old": "abc", "new": "cdab"}.items():
        (tmp_path / name).write_text("\n".join(words) + "\n")

    def of_words(number):
        def model_fn(features, mode, params):
            table = tf.get_variable("table", [number, 2], initializer=tf.ones_initializer())
            bias = tf.get_variable("bias", [2], initializer=tf.zeros_initializer())
            rows = tf.nn.embedding_lookup(table, tf.constant([0, 1, 1])) + bias
            loss = tf.reduce_mean(rows) + 0.0 * tf.reduce_sum(features["x"])
            optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(3.0))
            train_op = optimizer.minimize(loss, tf.train.get_global_step())
            return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

        return model_fn

    first = make_estimator(tmp_path / "first", of_words(3), **rules)
    first.train(input_fn, steps=1)
    trained = first.get_variable_value("table")
    np.testing.assert_allclose(trained, [[0.5, 0.5], [0, 0], [1, 1]], atol=1e-6)
    vocabulary = tf.train.VocabInfo(
        str(tmp_path / "new"), 4, 0, str(tmp_path / "old"), 3, tf.zeros_initializer()
    )
    settings = tpu.WarmStartSettings(
        str(tmp_path / "first"), ".*", var_name_to_vocab_info={"table": vocabulary}
    )
    second = make_estimator(tmp_path / "second", of_words(4), warm_start_from=settings, **rules)
    second.train(input_fn, steps=1)
    start = tf.train.load_variable(str(tmp_path / "second/model.ckpt-0"), "table")
    np.testing.assert_allclose(start, [trained[2], [0, 0], trained[0], trained[1]])
    np.testing.assert_allclose(
        second.get_variable_value("table"), start - [[0.5], [1], [0], [0]], atol=1e-6
    )


def value_or_initial_value(weight):
    is_initialized = tf.is_variable_initialized(weight)
    return tf.cond(is_initialized, weight.read_value, lambda: weight.initial_value)


def check_averages(folder, source, way, rules, use_resource=True):
    """Checks what averages of restored weights, and of another, start with."""

    def model_fn(features, mode, params):
        with tf.variable_scope("", use_resource=use_resource):
            weights = [tf.get_variable(name, initializer=100.0) for name in "ab"]
            other = tf.get_variable("other", initializer=tf.random_normal([]))
        averages = tf.train.ExponentialMovingAverage(0.5)
        loss = tf.add_n(weights) + other + 0.0 * tf.reduce_sum(features["x"])
        optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(1.0))
        with tf.control_dependencies([optimizer.minimize(loss, tf.train.get_global_step())]):
            train_op = averages.apply([*weights, other])
        twice = 2 * value_or_initial_value(weights[1])
        tf.Variable(twice, name="twice", trainable=False, use_resource=use_resource)

        def scaffold():
            if way == "scaffold_fn":
                tf.train.init_from_checkpoint(source, {"a": "a", "b": "b"})
            return tf.train.Scaffold()

        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, scaffold_fn=scaffold)

    settings = tpu.WarmStartSettings(source, "a|b") if way == "warm start" else None
    estimator = make_estimator(folder, model_fn, warm_start_from=settings, **rules)
    estimator.train(input_fn, steps=1)
    start = tf.train.load_checkpoint(str(folder / "model.ckpt-0"))
    names = ("a", "b", "a/ExponentialMovingAverage", "b/ExponentialMovingAverage", "twice")
    assert [start.get_tensor(name) for name in names] == [2, 2, 2, 2, 4]
    assert start.get_tensor("other/ExponentialMovingAverage") == start.get_tensor("other")
    assert estimator.get_variable_value("a/ExponentialMovingAverage") == 1.5


@pytest.mark.parametrize("way", ["warm start", "scaffold_fn"])
def test_averages_start_with_the_values_of_a_checkpoint(tmp_path, source, rules, way):
    """Not with the weights' old initial values, as chance would have it in TensorFlow."""
    for number in range(3):
        check_averages(tmp_path / str(number), source, way, rules)


@pytest.mark.usefixtures("old_control_flow")
@pytest.mark.parametrize("way", ["warm start", "scaffold_fn"])
@pytest.mark.parametrize("use_resource", [False, True])
def test_averages_in_programs_of_tensorflow_1(tmp_path, source, way, use_resource):
    for number in range(3):
        check_averages(tmp_path / str(number), source, way, {"use_tpu": False}, use_resource)


@pytest.mark.parametrize("use_resource", [False, True])
def test_a_sum_of_weights_waits_for_the_weight_that_is_restored_later(source, use_resource):
    """Though its initial value is of a checkpoint, too, and its initializer waits for a read."""
    with tf.Graph().as_default(), tf.Session() as session:
        with tf.variable_scope("", use_resource=use_resource):
            weights = [tf.get_variable(name, initializer=100.0) for name in "ab"]
            tf.train.init_from_checkpoint(source, {"a": "a"})
            values = [value_or_initial_value(weight) for weight in weights]
            total = tf.get_variable("total", initializer=tf.add_n(values))
        total.initializer._add_control_input((weights[0] + 0.0).op)
        tf.train.init_from_checkpoint(source, {"b": "b"})
        for weight in weights:
            later = tf.py_func(lambda: time.sleep(0.1), [], [])
            initial_values.initializer_of(weight)._add_control_input(later)
        warm_start.read_after_restoring()
        session.run(tf.global_variables_initializer())
        assert session.run(total) == 4
