"""Tests the hook that evaluates within a training, on every runtime; the oracle has local mode."""

import glob
import json
import os
import signal

import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu


def losses_of(folder):
    """Returns step -> the loss of its evaluation."""
    (path,) = glob.glob(os.path.join(folder, "events*"))
    return {
        event.step: value.simple_value
        for event in tf.train.summary_iterator(path)
        for value in event.summary.value
        if value.tag == "loss"
    }


@pytest.mark.parametrize("runtime", ["local", "session", "cores"])
def test_a_training_is_evaluated_as_its_checkpoints_are(tmp_path, request, runtime):
    """And it ends as a training without the hook does."""
    options = {"local": {"use_tpu": False}, "session": {}, "cores": {"master": "rehearse:2"}}[
        runtime
    ]
    if runtime == "cores":
        request.getfixturevalue("xla_runtime")

    def estimator(name):
        return toy.make_estimator(
            tmp_path / name, iterations_per_loop=2, save_checkpoints_steps=2, **options
        )

    plain, hooked = estimator("plain"), estimator("hooked")
    plain.train(toy.input_fn, steps=6)
    hook = tpu.InMemoryEvaluatorHook(hooked, toy.input_fn, steps=2, every_n_iter=3, name="memory")
    hooked.train(toy.input_fn, steps=6, hooks=[hook])
    # Under the TPU's rules hooks see the ends of loops: steps 2, 4 and 6.
    due = [0, 3, 6] if runtime == "local" else [0, 4, 6]
    found = losses_of(tmp_path / "hooked" / "eval_memory")
    assert list(found) == due
    for step in due:
        if step % 2 == 0:
            path = str(tmp_path / "plain" / f"model.ckpt-{step}")
            expected = plain.evaluate(toy.input_fn, steps=2, checkpoint_path=path)
            assert found[step] == pytest.approx(expected["loss"], rel=1e-6)
    for name in plain.get_variable_names():
        assert (plain.get_variable_value(name) == hooked.get_variable_value(name)).all(), name
    assert hooked.latest_checkpoint() == str(tmp_path / "hooked" / "model.ckpt-6")


@pytest.mark.parametrize("place", ["in a step", "in an evaluation"])
def test_a_signal_ends_the_training_with_a_checkpoint(tmp_path, rules, place):
    class Signal(tf.train.SessionRunHook):
        def __init__(self, counted):
            self.calls, self._counted = 0, counted

        def after_run(self, run_context, run_values):
            self.calls += 1
            if self.calls == self._counted:
                os.kill(os.getpid(), signal.SIGTERM)

    in_training, in_evaluation = Signal(5), Signal(6)
    is_in_step = place == "in a step"
    estimator = toy.make_estimator(tmp_path, iterations_per_loop=1, **rules)
    hook = tpu.InMemoryEvaluatorHook(
        estimator,
        toy.input_fn,
        steps=2,
        hooks=[] if is_in_step else [in_evaluation],
        every_n_iter=2,
    )
    hooks = [in_training, hook] if is_in_step else [hook]
    with pytest.raises(SystemExit) as ended:
        estimator.train(toy.input_fn, steps=50, hooks=hooks)
    assert ended.value.code == 128 + signal.SIGTERM
    # Hooks of an evaluation see each of its two steps in local mode, and else its end alone.
    in_evaluation_of = 10 if rules.get("use_tpu", True) else 4
    assert toy.checkpoint_steps(tmp_path) == [0, 5 if is_in_step else in_evaluation_of]


def test_data_that_ends_early_does_not_just_end_the_training(tmp_path):
    estimator = toy.make_estimator(tmp_path)
    hook = tpu.InMemoryEvaluatorHook(estimator, toy.ending_at(8), steps=5)
    with pytest.raises(tf.errors.OutOfRangeError, match="input_fn's data ended before the 5"):
        estimator.train(toy.input_fn, steps=4, hooks=[hook])


def test_it_is_refused_with_several_processes(tmp_path, monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    estimator = toy.make_estimator(tmp_path)
    message = (
        r"^InMemoryEvaluator supports only single machine .* Unset TF_CONFIG, or use train_and"
    )
    with pytest.raises(ValueError, match=message):
        tpu.InMemoryEvaluatorHook(estimator, toy.input_fn, steps=1)
