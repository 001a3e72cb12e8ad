"""train_and_evaluate: which checkpoints are evaluated, on what, and what is exported."""

import os
import signal

import pytest
import tensorflow.compat.v1 as tf
from toy import checkpoint_steps, input_fn, make_estimator, make_model_fn

from bert_estimator import tpu


class Told(tpu.Exporter):
    """An exporter that exports nothing, but notes what it was asked."""

    def __init__(self, name="told"):
        self.name_, self.asked = name, []

    @property
    def name(self):
        return self.name_

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        place = os.path.relpath(export_path, estimator.model_dir)
        checkpoint = os.path.basename(checkpoint_path)
        self.asked.append((place, checkpoint, eval_result["global_step"], is_the_final_export))
        return len(self.asked)


def make(folder, **keywords):
    """Its evaluation's loss is the weight, which is the step."""
    return make_estimator(folder, make_model_fn(), **{"save_checkpoints_steps": 2, **keywords})


def train_and_evaluate(estimator, max_steps=6, log=None, **of_eval):
    def counted(params):
        if log is not None:
            log.append(params["context"].global_step)
        return input_fn(params)

    eval_spec = tpu.EvalSpec(input_fn, **{"steps": 2, "throttle_secs": 0, **of_eval})
    return tpu.train_and_evaluate(estimator, tpu.TrainSpec(counted, max_steps=max_steps), eval_spec)


def test_every_checkpoint_is_evaluated_and_the_data_goes_on(tmp_path, rules):
    calls, told = [], Told()
    results, exports = train_and_evaluate(make(tmp_path, **rules), log=calls, exporters=told)
    assert calls == [0]
    assert checkpoint_steps(tmp_path) == [0, 2, 4, 6]
    assert told.asked == [
        ("export/told", "model.ckpt-2", 2, False),
        ("export/told", "model.ckpt-4", 4, False),
        ("export/told", "model.ckpt-6", 6, True),
    ]
    # Steps 7 and 8 of the data, after a training whose weight is the number of its steps.
    assert results == {"loss": 7.5, "global_step": 6}
    assert exports == [3]


def test_it_goes_on_after_a_restart(tmp_path):
    told = Told()
    train_and_evaluate(make(tmp_path), max_steps=4)
    train_and_evaluate(make(tmp_path), max_steps=8, exporters=[told])
    assert [step for _, _, step, _ in told.asked] == [6, 8]
    assert train_and_evaluate(make(tmp_path), max_steps=8, exporters=[told]) == (None, None)
    assert len(told.asked) == 2


def test_throttled_the_last_one_is_evaluated_all_the_same(tmp_path, logged):
    told = Told()
    train_and_evaluate(make(tmp_path), exporters=told, throttle_secs=600)
    assert [step for _, _, step, _ in told.asked] == [2, 6]
    assert any("Checkpoint 4 is not evaluated" in text for _, text in logged)


def test_evaluations_are_named_and_have_hooks(tmp_path):
    class Ended(tf.train.SessionRunHook):
        ends = 0

        def end(self, session):
            self.ends += 1

    hook = Ended()
    train_and_evaluate(make(tmp_path), name="dev", hooks=[hook])
    assert (tmp_path / "eval_dev").is_dir()
    assert hook.ends == 3


def test_an_error_in_an_evaluation_is_raised(tmp_path):
    def broken(params):
        raise RuntimeError("no such corpus") if params["context"].global_step else AssertionError

    spec = tpu.EvalSpec(broken, steps=1, throttle_secs=0)
    with pytest.raises(RuntimeError, match="no such corpus"):
        tpu.train_and_evaluate(make(tmp_path), tpu.TrainSpec(input_fn, max_steps=4), spec)
    assert checkpoint_steps(tmp_path) == [0, 2]


class SignalAt(tf.train.SessionRunHook):
    """Sends this process a SIGTERM at its nth visit."""

    def __init__(self, visit):
        self._visit = visit
        self.visits, self.ended = 0, 0

    def after_run(self, run_context, run_values):
        self.visits += 1
        if self.visits == self._visit:
            os.kill(os.getpid(), signal.SIGTERM)

    def end(self, session):
        self.ended += 1


def test_after_a_signal_to_training_nothing_is_evaluated(tmp_path, rules, logged):
    told, hook = Told(), SignalAt(3)
    spec = tpu.EvalSpec(input_fn, steps=2, exporters=told, throttle_secs=0)
    train_spec = tpu.TrainSpec(input_fn, max_steps=6, hooks=[hook])
    with pytest.raises(SystemExit, match="143"):
        tpu.train_and_evaluate(make(tmp_path, iterations_per_loop=1, **rules), train_spec, spec)
    assert checkpoint_steps(tmp_path) == [0, 2, 3]
    assert [step for _, _, step, _ in told.asked] == [2]
    assert hook.ended == 1
    assert [t for _, t in logged if t.startswith("Checkpoint")] == [
        "Checkpoint 3 is not evaluated: a signal ends training."
    ]


def test_a_signal_to_an_evaluation_ends_training(tmp_path, rules):
    told = Told()
    with pytest.raises(SystemExit, match="143"):
        train_and_evaluate(make(tmp_path, **rules), hooks=[SignalAt(1)], exporters=told)
    assert checkpoint_steps(tmp_path) == [0, 2]
    assert told.asked == []


def test_a_listener_s_evaluation_after_a_signal_is_not_begun(tmp_path):
    class Evaluates(tf.train.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            begun.append(int(global_step_value))
            estimator.evaluate(counted, steps=1)

    def counted(params):
        evaluated.append(params["context"].global_step)
        return input_fn(params)

    begun, evaluated, estimator = [], [], make(tmp_path, iterations_per_loop=1)
    with pytest.raises(SystemExit, match="143"):
        estimator.train(input_fn, max_steps=6, hooks=[SignalAt(3)], saving_listeners=[Evaluates()])
    assert begun == checkpoint_steps(tmp_path) == [0, 2, 3]
    assert evaluated == [0, 2]


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"max_steps": 0}, ValueError, "max_steps must be positive, not 0"),
        ({"input_fn": 3}, TypeError, "input_fn must be a function, not 3"),
        ({"hooks": ["h"]}, TypeError, "hooks must be SessionRunHook objects, not 'h'"),
        ({"hooks": 3}, TypeError, "hooks must be a list of SessionRunHook"),
        ({"saving_listeners": ["l"]}, TypeError, "must be CheckpointSaverListener objects"),
    ],
)
def test_train_spec_is_checked(keywords, error, message):
    with pytest.raises(error, match=message):
        tpu.TrainSpec(**{"input_fn": input_fn, **keywords})


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"steps": 0}, ValueError, "steps must be positive, not 0"),
        ({"input_fn": None}, TypeError, "input_fn must be a function, not None"),
        ({"name": 3}, TypeError, "name must be a string, not 3"),
        ({"hooks": ["h"]}, TypeError, "hooks must be SessionRunHook objects, not 'h'"),
        ({"exporters": ["e"]}, TypeError, "exporters must be Exporter objects, not 'e'"),
        ({"exporters": 3}, TypeError, "exporters must be a list of Exporter, not 3"),
        ({"exporters": [Told(), Told()]}, ValueError, r"distinct names, not \['told', 'told'\]"),
        ({"exporters": [Told(None)]}, ValueError, r"distinct names, not \[None\]"),
        ({"start_delay_secs": -1}, ValueError, "start_delay_secs must be 0 or more"),
        ({"throttle_secs": -1}, ValueError, "throttle_secs must be 0 or more"),
    ],
)
def test_eval_spec_is_checked(keywords, error, message):
    with pytest.raises(error, match=message):
        tpu.EvalSpec(**{"input_fn": input_fn, **keywords})


def test_defaults_are_upstream_s():
    assert tpu.EvalSpec(input_fn)[1:] == (100, None, (), (), 120, 600)
    assert tpu.TrainSpec(input_fn)[1:] == (None, (), ())


def test_arguments_have_their_types(tmp_path):
    train, evaluate = tpu.TrainSpec(input_fn, 1), tpu.EvalSpec(input_fn)
    for arguments in (
        ("e", train, evaluate),
        (make(tmp_path), None, evaluate),
        (make(tmp_path), train, train),
    ):
        with pytest.raises(TypeError, match="train_and_evaluate needs"):
            tpu.train_and_evaluate(*arguments)
