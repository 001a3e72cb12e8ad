"""An evaluator in a process of its own: what it reads while it waits, wherever the run lies."""

import json
import shutil
import time
import types

import pytest
import tensorflow.compat.v1 as tf
from toy import input_fn, make_estimator, make_model_fn

from bert_estimator import tpu
from bert_estimator.storage import remote
from bert_estimator.tpu import errors, serving
from bert_estimator.tpu.train_eval import train_and_evaluate
from bert_estimator.tpu.verbs import checkpoints

_NUM_WEIGHTS = 1 << 20  # 4 MiB in a checkpoint
_FEW_BYTES = 4096  # the state file, and this process's count of bytes
_POLLS = 5
_TF_CONFIG = {"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}


def model_fn(features, mode, params):
    loss = tf.reduce_mean(features["x"])
    with tf.control_dependencies([tpu.cross_replica_sum(loss)]):
        large = tf.get_variable("large", [_NUM_WEIGHTS], initializer=tf.zeros_initializer())
        train_op = tf.group(large.assign_add(large), tf.train.get_global_step().assign_add(1))
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


class Polls(tpu.ContinuousEvalListener):
    """Notes how many bytes were read until each answer; `then` is called once, amid the polls."""

    def __init__(self, then):
        self._then = then
        self.seen, self.num_bytes = [], []

    def after_eval(self, eval_result):
        self.seen.append(eval_result.status)
        with open("/proc/self/io") as file:
            self.num_bytes.append(int(file.readline().split()[1]))
        if len(self.seen) == _POLLS:
            self._then()
        return len(self.seen) < 2 * _POLLS


def names_of(folder, step):
    """Returns the names of a checkpoint's files; the index comes last, as a mirror uploads it."""
    return sorted(path.name for path in folder.glob(f"model.ckpt-{step}.[di]*"))


@pytest.fixture
def polls(tmp_path, rules, monkeypatch):
    """Returns a function of a URL: an evaluator's polls there, where two checkpoints arrive."""

    def of(url, change=lambda step: None):
        source = tmp_path / "source"
        maker = {"save_checkpoints_steps": 1, "iterations_per_loop": 1, **rules}
        make_estimator(source, model_fn, **maker).train(input_fn, steps=2)

        def put(step):
            for name in names_of(source, step):
                remote.upload(str(source / name), f"{url}/{name}")
            change(step)

        put(1)
        monkeypatch.setattr(train_and_evaluate, "_POLL_SECS", 0)
        monkeypatch.setenv("TF_CONFIG", json.dumps(_TF_CONFIG))
        listener, evaluator = Polls(lambda: put(2)), make_estimator(url, model_fn, **rules)
        spec = tpu.EvalSpec(input_fn, steps=1, start_delay_secs=0, throttle_secs=0)
        tpu.train_with_listener(evaluator, tpu.TrainSpec(input_fn), spec, listener)
        return listener

    return of


@pytest.mark.parametrize("system", ["local", "file", "other"])
def test_waiting_reads_no_checkpoint(tmp_path, polls, monkeypatch, system):
    if system == "other":  # TensorFlow lists the files, as it does on gs://
        monkeypatch.setattr(checkpoints, "is_remote", lambda path: True)
    listener = polls(f"file://{tmp_path}/run" if system == "file" else f"{tmp_path}/run")
    waiting = ["no new checkpoint"] * (_POLLS - 1)
    assert listener.seen == ["evaluated", *waiting] * 2
    for first in (0, _POLLS):
        read = listener.num_bytes[first + _POLLS - 1] - listener.num_bytes[first]
        assert read < len(waiting) * _FEW_BYTES


def test_a_checkpoint_that_goes_while_it_is_evaluated_is_passed_over(tmp_path, polls, monkeypatch):
    """A training removes it after it has written the next one."""
    run, gone = tmp_path / "run", []

    def remove(checkpoint, *arguments):
        if checkpoint.endswith("-1"):
            gone.append(checkpoint)
            for path in run.glob("model.ckpt-1.*"):
                path.unlink()
            for path in (tmp_path / "source").glob("model.ckpt-2.*"):
                shutil.copy(path, run)
        check(checkpoint, *arguments)

    check = checkpoints.warn_unless_finite
    monkeypatch.setattr(checkpoints, "warn_unless_finite", remove)
    listener = polls(str(run))
    assert gone == [f"{run}/model.ckpt-1"]
    assert listener.seen == ["evaluated"] + ["no new checkpoint"] * (2 * _POLLS - 1)


def receiver():
    return serving.build_raw_serving_input_receiver_fn({"x": tf.ones([4])})()


READING = {
    "evaluate": lambda estimator, path: estimator.evaluate(input_fn, steps=1),
    "predict": lambda estimator, path: next(iter(estimator.predict(input_fn))),
    "export": lambda estimator, path: estimator.export_saved_model(str(path / "out"), receiver),
}


@pytest.mark.parametrize("verb", READING)
def test_a_checkpoint_that_goes_is_named(tmp_path, rules, monkeypatch, verb):
    model_fn = make_model_fn(lambda features, loss: {"predictions": {"x": features["x"]}})
    estimator = make_estimator(tmp_path, model_fn, predict_batch_size=4, **rules)
    estimator.train(input_fn, steps=2)

    def remove(checkpoint, *arguments):
        for path in tmp_path.glob("model.ckpt-*"):
            path.unlink()
        check(checkpoint, *arguments)

    check = checkpoints.warn_unless_finite
    monkeypatch.setattr(checkpoints, "warn_unless_finite", remove)
    with pytest.raises(errors.CheckpointGoneError, match="ckpt-2 was removed while it was"):
        READING[verb](estimator, tmp_path)


def test_waiting_reads_a_damaged_checkpoint_once(tmp_path, polls, monkeypatch):
    def damage(step):
        if step == 2:
            with open(tmp_path / "run" / "model.ckpt-2.data-00000-of-00001", "r+b") as file:
                file.seek(-1, 2)
                file.write(b"?")

    listener = polls(f"file://{tmp_path}/run", damage)
    assert listener.seen == ["evaluated"] + ["no new checkpoint"] * (2 * _POLLS - 1)
    assert listener.num_bytes[-1] - listener.num_bytes[_POLLS] < (_POLLS - 1) * _FEW_BYTES


def test_it_does_not_wait_after_the_last_checkpoint(tmp_path, monkeypatch):
    estimator, slept = make_estimator(tmp_path), []
    estimator.train(input_fn, steps=2)
    monkeypatch.setenv("TF_CONFIG", json.dumps(_TF_CONFIG))
    fake = types.SimpleNamespace(sleep=slept.append, monotonic=time.monotonic)
    monkeypatch.setattr(train_and_evaluate, "time", fake)
    results, _ = tpu.train_and_evaluate(
        make_estimator(tmp_path),
        tpu.TrainSpec(input_fn, max_steps=2),
        tpu.EvalSpec(input_fn, steps=1, start_delay_secs=3, throttle_secs=600),
    )
    assert results["global_step"] == 2
    assert slept == [3]
