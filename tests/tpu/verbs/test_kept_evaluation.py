"""Evaluations that share a graph and a session: the same results as with a graph for each."""

import os
import signal

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy import (
    HostLog,
    Visits,
    batches,
    events,
    make_estimator,
    make_model_fn,
    py_input_fn,
    scalars,
    threads,
)

from bert_estimator import tpu
from bert_estimator.tpu.verbs import opened_run


class Counted:
    """Calls a function, and counts the calls in `number`."""

    def __init__(self, function):
        self._function, self.number = function, 0

    def __call__(self, features, mode, params):
        self.number += mode == tpu.ModeKeys.EVAL
        return self._function(features, mode, params)


def shuffled(params):
    """Returns eight batches of numbers in a random order, always the same."""
    size = params["batch_size"]
    numbers = np.random.default_rng(0).normal(size=[8 * size]).astype(np.float32)
    examples = tf.data.Dataset.from_tensor_slices({"x": numbers}).shuffle(8 * size, seed=1)
    return examples.batch(size, drop_remainder=True)


def fields(features, loss):
    def metric_fn(x, loss):
        return {"x": tf.metrics.mean(x), "squared": tf.metrics.mean(loss * loss)}

    return {"eval_metrics": (metric_fn, [features["x"], tf.reshape(loss, [1])])}


def squares(weight, features):
    return tf.reduce_mean((0.1 * weight - features["x"]) ** 2)


def with_checkpoints(folder, model_fn, variables=("w",), **rules):
    """Returns an estimator, and its checkpoints of steps 2 and 4, whose variables are the step."""
    with tf.Graph().as_default(), tf.Session() as session:
        made = [tf.get_variable(name, initializer=0.0) for name in variables]
        made.append(tf.train.create_global_step())
        saver = tf.train.Saver()
        for step in (2, 4):
            for variable in made:
                variable.load(step, session)
            saver.save(session, f"{folder}/model.ckpt", step, write_meta_graph=False)
    paths = [f"{folder}/model.ckpt-{step}" for step in (2, 4)]
    return make_estimator(folder, model_fn, **rules), *paths


def of_events(folder):
    return [(step, tag, value.SerializeToString()) for step, tag, value in events(folder)]


def test_results_and_events_are_those_of_a_graph_for_each(tmp_path, rules):
    model_fn = Counted(make_model_fn(fields, loss=squares))
    estimator, first, second = with_checkpoints(tmp_path, model_fn, **rules)
    checkpoints = [second, first, second, None]
    expected = [estimator.evaluate(shuffled, 5, None, path, name="each") for path in checkpoints]
    assert expected[0] == expected[2] == expected[3] != expected[1]
    assert model_fn.number == len(checkpoints)
    with estimator.kept_evaluation(shuffled, 5, name="kept") as evaluation:
        assert [evaluation.evaluate(path) for path in checkpoints] == expected
    assert model_fn.number == len(checkpoints) + 1
    assert of_events(tmp_path / "eval_kept") == of_events(tmp_path / "eval_each")


@pytest.mark.parametrize("collected", [False, True])
def test_a_model_may_have_its_own_local_init_op(tmp_path, rules, collected):
    """The operation does not know the metrics' variables, and the count of evaluated steps."""

    def with_scaffold(features, loss):
        mine = tf.get_variable("mine", initializer=3.0, collections=[tf.GraphKeys.LOCAL_VARIABLES])

        def scaffold_fn():
            operation = tf.group(mine.initializer)
            if collected:
                tf.add_to_collection(tf.GraphKeys.LOCAL_INIT_OP, operation)
            return tf.train.Scaffold(local_init_op=None if collected else operation)

        return {**fields(features, loss), "scaffold_fn": scaffold_fn}

    model_fn = make_model_fn(with_scaffold, loss=squares)
    estimator, *paths = with_checkpoints(tmp_path, model_fn, **rules)
    expected = [estimator.evaluate(shuffled, 5, None, path) for path in paths]
    plain = make_estimator(tmp_path, make_model_fn(fields, loss=squares), **rules)
    assert expected == [plain.evaluate(shuffled, 5, None, path) for path in paths]
    with estimator.kept_evaluation(shuffled, 5) as evaluation:
        assert [evaluation.evaluate(path) for path in paths] == expected


def test_initial_values_come_from_a_graph_of_their_own(tmp_path, cores):
    def with_noise(weight, features):
        noise = tf.get_variable("noise", [], initializer=tf.random_normal_initializer())
        return squares(weight, features) + noise

    model_fn = Counted(make_model_fn(fields, loss=with_noise))
    _, checkpoint, _ = with_checkpoints(tmp_path / "other", model_fn, ("w", "noise"))
    estimator = make_estimator(tmp_path, model_fn, tf_random_seed=5)
    calls = [None, checkpoint, None]
    expected = [estimator.evaluate(shuffled, 5, checkpoint_path=path) for path in calls]
    assert expected[0] == expected[2] != expected[1]
    model_fn.number = 0
    with estimator.kept_evaluation(shuffled, 5) as evaluation:
        assert [evaluation.evaluate(path) for path in calls] == expected
    assert model_fn.number == 2  # the checkpoint's is the graph of the call before it


def test_between_two_evaluations_the_variables_take_no_memory(tmp_path, rules, monkeypatch):
    sessions, opened_session = [], opened_run.opened_session

    class Noted:
        """Is `opened_session`, and keeps the session."""

        def __init__(self, *args):
            self._context = opened_session(*args)

        def __enter__(self):
            sessions.append(self._context.__enter__())
            return sessions[-1]

        def __exit__(self, *exc_info):
            return self._context.__exit__(*exc_info)

    estimator, *paths = with_checkpoints(tmp_path, make_model_fn(loss=squares), **rules)
    monkeypatch.setattr(opened_run, "opened_session", Noted)
    with estimator.kept_evaluation(shuffled, 5) as evaluation:
        for path in paths:
            evaluation.evaluate(path)
            (session,) = sessions
            with pytest.raises(tf.errors.FailedPreconditionError):
                session.run("w/Read/ReadVariableOp:0")
    assert not threads("infeed")


def test_after_an_error_the_next_evaluation_is_as_any(tmp_path, cores):
    is_broken = [True]

    def batch(i):
        if is_broken[0] and i == 3:
            raise ValueError("record 3 is broken")
        return np.full([4], i, np.float32)

    def with_another(weight, features):
        return squares(weight, features) + tf.get_variable("another", initializer=0.0)

    model_fn, input_fn = make_model_fn(fields, loss=with_another), py_input_fn(batch)
    estimator, first, second = with_checkpoints(tmp_path, model_fn, ("w", "another"))
    _, lacking, _ = with_checkpoints(tmp_path / "lacking", model_fn)
    found = []
    with estimator.kept_evaluation(input_fn, 4) as evaluation:
        with pytest.raises(tf.errors.InvalidArgumentError, match="record 3 is broken"):
            evaluation.evaluate(first)
        is_broken[0] = False
        found.append(evaluation.evaluate(second))
        with pytest.raises(ValueError, match="another: not in the checkpoint"):
            evaluation.evaluate(lacking)
        found.append(evaluation.evaluate(first))
    assert found == [estimator.evaluate(input_fn, 4, None, path) for path in (second, first)]


def test_a_signal_ends_it_and_the_training_that_it_interrupts(tmp_path, cores, capsys):
    estimator = make_estimator(tmp_path, make_model_fn(fields), save_checkpoints_steps=2)
    evaluated = []

    def batch(i):
        if len(evaluated) == 1 and i == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return np.full([4], i, np.float32)

    with estimator.kept_evaluation(py_input_fn(batch), 4) as evaluation:

        class Evaluates(tf.train.CheckpointSaverListener):
            def after_save(self, session, global_step_value):
                evaluated.append(evaluation.evaluate()["global_step"])

        with pytest.raises(SystemExit) as raised:
            estimator.train(
                lambda params: batches(batch_size=params["batch_size"]),
                steps=4,
                saving_listeners=[Evaluates()],
            )
    assert raised.value.code == 128 + signal.SIGTERM
    assert evaluated == [0]
    assert "SIGTERM: ending the evaluation" in capsys.readouterr().err
    assert estimator.evaluate(shuffled, 2)["global_step"] == 2


def test_hooks_of_the_model_and_its_host_call_see_each_evaluation(tmp_path, cores):
    log, visits = HostLog(), Visits()

    def with_hooks(features, loss):
        return {
            **fields(features, loss),
            "host_call": (log, [tf.reshape(loss, [1])]),
            "evaluation_hooks": [visits],
        }

    estimator, *paths = with_checkpoints(
        tmp_path, make_model_fn(with_hooks), experimental_host_call_every_n_steps=3
    )
    with estimator.kept_evaluation(lambda params: batches(batch_size=4), 4) as evaluation:
        for path in paths:
            evaluation.evaluate(path)
    of_each = ["after_create_session", "before_run", "after_run", "end"]
    assert visits.calls == ["begin", *of_each, *of_each]
    assert visits.fetched == [(2, 2.0), (4, 4.0)]
    # As upstream, every n steps is said of training only.
    assert log.values == [[[batch] * cores] for batch in (1.0, 2.0, 3.0, 4.0)] * 2


def test_tensors_as_input_are_refused(tmp_path, rules):
    estimator = make_estimator(tmp_path, make_model_fn(fields), **rules)
    tensors = lambda params: {"x": tf.ones([params["batch_size"]])}  # noqa: E731
    with (
        estimator.kept_evaluation(tensors, 2) as evaluation,
        pytest.raises(ValueError, match="needs an input_fn that returns a Dataset: tensors would"),
    ):
        evaluation.evaluate()
    with pytest.raises(ValueError, match="steps must be positive, not 0"):
        estimator.kept_evaluation(shuffled, 0)


def test_data_that_ends_is_read_again(tmp_path):
    model_fn = make_model_fn(fields, loss=squares)
    estimator, *paths = with_checkpoints(tmp_path, model_fn, use_tpu=False)
    with estimator.kept_evaluation(lambda params: batches(last=3)) as evaluation:
        for path in paths:
            assert evaluation.evaluate(path)["x"] == 2.0
    assert [step for step, _ in scalars(tmp_path / "eval", "x")] == [2, 4]
