"""Tests checkpoints that are written while training goes on, whatever a model does meanwhile."""

import errno
import os
import signal
import threading
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from kills import Killed
from toy import QUICK, checkpoint_steps, input_fn, make_estimator, make_model_fn

from bert_estimator.tpu.verbs import checkpoint_saver, checkpoints, snapshot

LONG_SECS = 60


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    monkeypatch.setattr(snapshot, "LEAST_BYTES", 0)


@pytest.fixture
def gate(monkeypatch):
    """Has each write of a copy wait until the event is set; gives it up after a while."""
    opened = threading.Event()

    def wait_and_run(self, *args, run_write=snapshot.Snapshot.run_write):
        assert opened.wait(LONG_SECS)
        return run_write(self, *args)

    monkeypatch.setattr(snapshot.Snapshot, "run_write", wait_and_run)
    yield opened
    opened.set()


class At(tf.train.SessionRunHook):
    """Calls a function after some step, and notes the steps."""

    def __init__(self, step, function):
        self._step, self._function, self.steps = step, function, []

    def after_run(self, run_context, run_values):
        self.steps.append(int(run_context.session.run(tf.train.get_global_step())))
        if self.steps[-1] == self._step:
            self._function()


def large_model_fn(features, mode, params):
    """The toy, with a variable that is large enough for a device to lend its memory."""
    spec = make_model_fn()(features, mode, params)
    large = tf.get_variable("large", [50_000], initializer=tf.zeros_initializer())
    with tf.control_dependencies([spec.train_op]):
        return spec._replace(train_op=tf.group(large.assign_add(tf.ones([50_000]))))


def values_at(folder, step):
    """Returns the values of the toy's variables in a checkpoint: a number each."""
    reader = tf.train.load_checkpoint(f"{folder}/model.ckpt-{step}")
    names = ("global_step", "w", "large")
    return [number for name in names for number in np.unique(reader.get_tensor(name))]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, cores, gate):
    """The files hold the values of the checkpoint's step, though they are written steps later."""

    def open_gate():
        assert checkpoint_steps(tmp_path) == []
        assert not (tmp_path / "checkpoint").exists()
        gate.set()

    hook = At(2, open_gate)
    estimator = make_estimator(tmp_path, large_model_fn, save_checkpoints_steps=4)
    estimator.train(input_fn, steps=6, hooks=[hook])
    assert hook.steps == [2, 4, 6]
    assert checkpoint_steps(tmp_path) == [0, 4, 6]
    for step in (0, 4, 6):
        assert values_at(tmp_path, step) == [step] * 3
    estimator.train(input_fn, steps=4)
    assert checkpoint_steps(tmp_path) == [0, 4, 6, 10]
    assert values_at(tmp_path, 10) == [10] * 3


# How a graph may change a variable of the session runtime, in place or not.
UPDATES = {
    "assign": lambda v, ones: v.assign(v + ones),
    "assign_add": lambda v, ones: v.assign_add(ones),
    "gradient descent": lambda v, ones: tf.raw_ops.ResourceApplyGradientDescent(
        var=v.handle, alpha=-1.0, delta=ones
    ),
    "scatter": lambda v, ones: tf.scatter_add(v, np.arange(1000), ones),
    "slice": lambda v, ones: v[:].assign(v + ones),
    "compiled": lambda v, ones: tf.function(lambda: v.assign_add(ones), jit_compile=True)(),
    "reference": lambda v, ones: tf.assign_add(v, ones),
    "reference, in place": lambda v, ones: tf.scatter_add(v, np.arange(1000), ones),
}


def test_a_copy_stays_as_it_is_whatever_changes_the_variable(tmp_path):
    with tf.Graph().as_default() as graph:
        ones = tf.ones([1000])
        variables = {
            name: tf.get_variable(
                str(number), initializer=tf.zeros([1000]), use_resource="reference" not in name
            )
            for number, name in enumerate(UPDATES)
        }
        updates = [UPDATES[name](variable, ones) for name, variable in variables.items()]
        strings = tf.get_variable("s", initializer=["a", "b"], use_resource=False)
        updates.append(strings.assign(["c", "d"]))
        saver = tf.train.Saver(sharded=True)
        copy = snapshot.Snapshot(tf.train.Scaffold(saver=saver))
        copy.begin()
        assert copy.is_possible
        graph.finalize()
        with tf.Session(config=QUICK) as session:
            session.run([v.initializer for v in tf.global_variables()])
            for step in (0, 1, 2):
                copy.take(session)
                session.run(updates)
                copy.run_write(session, f"{tmp_path}/model.ckpt-{step}")
                copy.release(session)
                reader = tf.train.load_checkpoint(f"{tmp_path}/model.ckpt-{step}")
                for number, name in enumerate(UPDATES):
                    value = reader.get_tensor(str(number))
                    np.testing.assert_array_equal(value, np.full(1000, step, np.float32), name)
                assert reader.get_tensor("s")[0] == (b"c" if step else b"a")
            now = session.run(list(variables.values()))
            np.testing.assert_array_equal(now, np.full([len(UPDATES), 1000], 3, np.float32))


# What waits for a write.


@pytest.fixture
def opened_by_waiting(gate, monkeypatch):
    """Opens the gate when the training waits for a write, and not before."""

    def join(self, join=snapshot.PendingWrite.join):
        gate.set()
        join(self)

    monkeypatch.setattr(snapshot.PendingWrite, "join", join)
    return gate


def train(folder, steps=4, save_every=2, **keywords):
    estimator = make_estimator(folder, large_model_fn, save_checkpoints_steps=save_every)
    estimator.train(input_fn, steps=steps, **keywords)


def test_the_next_checkpoint_waits_for_the_one_before(tmp_path, opened_by_waiting):
    seen = []

    class Listens(tf.train.CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            seen.append(checkpoint_steps(tmp_path))

    train(tmp_path, saving_listeners=[Listens()])
    assert seen == [[], [0], [0, 2]]
    assert checkpoint_steps(tmp_path) == [0, 2, 4]
    assert [values_at(tmp_path, step) for step in (0, 2, 4)] == [[0] * 3, [2] * 3, [4] * 3]


def test_listeners_find_the_checkpoint_when_they_are_told_of_it(tmp_path):
    told = []

    class Listens(tf.train.CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            told.append(("before", int(global_step_value), checkpoint_steps(tmp_path)))

        def after_save(self, session, global_step_value):
            told.append(("after", int(global_step_value), checkpoint_steps(tmp_path)))
            return global_step_value == 2

        def end(self, session, global_step_value):
            told.append(("end", int(global_step_value), checkpoint_steps(tmp_path)))

    train(tmp_path, saving_listeners=[Listens()])
    assert told == [
        ("before", 0, []),
        ("after", 0, [0]),
        ("before", 2, [0]),
        ("after", 2, [0, 2]),
        ("end", 2, [0, 2]),
    ]


def test_a_listener_may_say_that_it_does_not_read_the_checkpoint(tmp_path, opened_by_waiting):
    told = []

    class Listens(tf.train.CheckpointSaverListener):
        def reads_checkpoint(self, step):
            return step == 2

        def after_save(self, session, global_step_value):
            told.append((int(global_step_value), checkpoint_steps(tmp_path)))

        def end(self, session, global_step_value):
            told.append(("end", checkpoint_steps(tmp_path)))

    train(tmp_path, saving_listeners=[Listens()])
    assert told[:2] == [(0, []), (2, [0, 2])]
    assert told[-1] == ("end", [0, 2, 4])


def test_a_hook_that_asks_for_the_newest_checkpoint_gets_it(tmp_path, cores, opened_by_waiting):
    seen = []

    class Looks(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            seen.append(checkpoints.newest_whole(str(tmp_path))[-1])
            opened_by_waiting.clear()

    train(tmp_path, 6, hooks=[Looks()])
    assert seen == ["2", "4", "6"]


@pytest.mark.parametrize("call", ["after_run", "after_create_session"])
@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_if_training_fails_the_checkpoint_is_completed(tmp_path, opened_by_waiting, error, call):
    """It is begun when the session is created; other hooks come after that."""

    def fail(*args):
        assert checkpoint_steps(tmp_path) == []
        raise error

    hook = tf.train.SessionRunHook()
    setattr(hook, call, fail)
    with pytest.raises(type(error)):
        train(tmp_path, save_every=10, hooks=[hook])
    assert checkpoint_steps(tmp_path) == [0]
    assert checkpoints.newest_whole(str(tmp_path)) == f"{tmp_path}/model.ckpt-0"
    assert values_at(tmp_path, 0) == [0] * 3
    assert not [t for t in threading.enumerate() if t.name == "checkpoint writer"]


@pytest.mark.parametrize("error", [ValueError("mine"), tf.train.NanLossDuringTrainingError()])
def test_if_training_and_the_write_fail_both_errors_are_told(
    tmp_path, monkeypatch, caplog, opened_by_waiting, error
):
    def write(self, session, prefix):
        assert opened_by_waiting.wait(LONG_SECS)
        raise OSError(errno.ENOSPC, "No space left on device")

    def fail():
        raise error

    monkeypatch.setattr(snapshot.Snapshot, "run_write", write)
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    with pytest.raises(type(error)) as raised:
        train(tmp_path, save_every=10, hooks=[At(2, fail)])
    assert raised.value is error
    warnings = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert warnings[1:] == [  # the first one tells of the TPU that was not found
        "Could not write the checkpoint of step 0: [Errno 28] No space left on device"
    ]
    assert checkpoint_steps(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_completes_the_checkpoint(tmp_path, opened_by_waiting, number):
    def interrupt():
        assert checkpoint_steps(tmp_path) == []
        signal.raise_signal(number)

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train(tmp_path, 20, save_every=10, hooks=[At(2, interrupt)])
    assert checkpoint_steps(tmp_path) == [0, 2]
    assert values_at(tmp_path, 2) == [2] * 3


class Forwards(tf.train.CheckpointSaverListener):
    def __getattribute__(self, name):
        forwarded = super().__getattribute__("__dict__").get("forwarded", {})
        return forwarded[name] if name in forwarded else super().__getattribute__(name)


LISTENERS = {
    "of the instance": tf.train.CheckpointSaverListener,
    "forwarded": Forwards,
    "a mock": lambda: mock.Mock(spec=tf.train.CheckpointSaverListener),
}


@pytest.mark.parametrize("kind", LISTENERS)
def test_after_save_of_any_kind_finds_the_checkpoint(tmp_path, kind):
    listener, found = LISTENERS[kind](), []

    def after_save(session, global_step_value):
        found.append(checkpoint_steps(tmp_path)[-1])

    if kind == "of the instance":
        listener.after_save = after_save
    elif kind == "forwarded":
        listener.forwarded = {"after_save": after_save}
    else:
        listener.after_save.side_effect = after_save
        listener.after_save.return_value = None
    train(tmp_path, saving_listeners=[listener])
    assert found == [0, 2, 4]


def test_an_error_of_the_write_ends_training_before_the_next_loop(tmp_path, monkeypatch):
    failed = threading.Event()

    def fail(prefix, sync=checkpoint_saver.sync):
        if not prefix.endswith("-2"):
            return sync(prefix)
        failed.set()
        raise OSError(errno.ENOSPC, "No space left on device", prefix)

    def wait():  # until the thread has failed, and has cleaned up
        assert failed.wait(LONG_SECS)
        snapshot.wait_for(str(tmp_path))

    monkeypatch.setattr(checkpoint_saver, "sync", fail)
    hook = At(2, wait)
    with pytest.raises(OSError, match="No space left"):
        train(tmp_path, 20, hooks=[hook])
    assert hook.steps == [2]
    assert checkpoint_steps(tmp_path) == [0]
    assert not [name for name in os.listdir(tmp_path) if "ckpt-2" in name or "tmp" in name]
    monkeypatch.undo()
    train(tmp_path, 4)
    assert values_at(tmp_path, 4) == [4] * 3


def test_a_kill_while_a_checkpoint_is_written(tmp_path, cores, monkeypatch):
    def write(self, session, prefix, run_write=snapshot.Snapshot.run_write):
        if prefix == f"{tmp_path}/model.ckpt-4":
            raise Killed
        return run_write(self, session, prefix)

    with monkeypatch.context() as patched:
        patched.setattr(snapshot.Snapshot, "run_write", write)
        with pytest.raises(Killed):
            train(tmp_path, 20)
    assert checkpoint_steps(tmp_path) == [0, 2]
    train(tmp_path, 4)
    assert checkpoint_steps(tmp_path) == [0, 2, 4, 6]
    assert [values_at(tmp_path, step) for step in (4, 6)] == [[4] * 3, [6] * 3]


# Which checkpoints.


def test_a_small_checkpoint_is_written_while_training_waits(tmp_path, monkeypatch, gate):
    monkeypatch.setattr(snapshot, "LEAST_BYTES", 2**20)
    train(tmp_path)  # The gate is closed, so a write of a copy would not come to its end.
    assert checkpoint_steps(tmp_path) == [0, 2, 4]


SAVERS = {
    "deferred": lambda: tf.train.Saver(sharded=True, max_to_keep=2, defer_build=True),
    "of some variables": lambda: tf.train.Saver(
        {"x/w": tf.trainable_variables()[0], "global_step": tf.train.get_global_step()},
        pad_step_number=True,
    ),
    "of objects": lambda: tf.compat.v2.train.Checkpoint(
        w=tf.trainable_variables()[0], step=tf.train.get_global_step()
    ),
}


class Swapping(tf.train.Saver):
    """Saves doubled values, as savers do that save moving averages; with TF1's arguments only."""

    def save(self, sess, save_path, global_step=None):
        (variable,) = tf.trainable_variables()
        value = sess.run(variable)
        variable.load(2 * value, sess)
        try:
            return super().save(sess, save_path, global_step=global_step)
        finally:
            variable.load(value, sess)


class Naming(tf.train.Saver):
    """Passes all arguments on: a saver with a method of its own names and deletes checkpoints."""

    def save(self, *args, **kwargs):
        return super().save(*args, **kwargs)


@pytest.mark.parametrize(("saver", "factor"), [(Swapping, 2.0), (Naming, 1.0)])
@pytest.mark.parametrize("use_tpu", [False, True])
def test_a_saver_may_save_in_its_own_way(tmp_path, saver, factor, use_tpu):
    """It may run the session, so a copy does not know what it writes."""

    def fields(features, loss):
        return {"scaffold_fn": lambda: tf.train.Scaffold(saver=saver())}

    config = {"save_checkpoints_steps": 2, "checkpoint_save_graph_def": True, "use_tpu": use_tpu}
    make_estimator(tmp_path, make_model_fn(fields), **config).train(input_fn, steps=3)
    assert checkpoint_steps(tmp_path) == [0, 2, 3]
    values = tf.train.load_checkpoint(f"{tmp_path}/model.ckpt-3")
    assert values.get_tensor("w") == 3.0 * factor
    assert os.path.exists(f"{tmp_path}/model.ckpt-3.meta")


class Wrapping:
    """Has a few public methods of a saver, and writes as it does."""

    def __init__(self):
        self._of = tf.train.Saver(max_to_keep=2)
        self.saver_def, self.called = self._of.saver_def, []

    def save(self, *args, **kwargs):
        self.called.append("save")
        return self._of.save(*args, **kwargs)

    def build(self):  # which a Scaffold calls
        self._of.build()

    def restore(self, session, path):
        self.called.append("restore")
        self._of.restore(session, path)

    def recover_last_checkpoints(self, paths):
        self._of.recover_last_checkpoints(paths)


def mocked():
    saver = tf.train.Saver(max_to_keep=2)
    return mock.Mock(wraps=saver, saver_def=saver.saver_def)


@pytest.mark.parametrize("make", [Wrapping, mocked])
@pytest.mark.parametrize("use_tpu", [False, True])
def test_a_saver_may_wrap_another(tmp_path, make, use_tpu):
    savers = []

    def fields(features, loss):
        savers.append(make())
        return {"scaffold_fn": lambda: tf.train.Scaffold(saver=savers[-1])}

    config = {"save_checkpoints_steps": 2, "checkpoint_save_graph_def": True, "use_tpu": use_tpu}
    estimator = make_estimator(tmp_path, make_model_fn(fields), **config)
    estimator.train(input_fn, steps=3)
    estimator.train(input_fn, steps=2)  # it resumes
    estimator.evaluate(input_fn, steps=1)
    assert checkpoint_steps(tmp_path) == [3, 5]
    assert tf.train.load_checkpoint(f"{tmp_path}/model.ckpt-5").get_tensor("w") == 5.0
    assert os.path.exists(f"{tmp_path}/model.ckpt-5.meta")
    if make is mocked:
        assert savers[0].save.called and savers[1].restore.called and savers[2].restore.called
    else:
        assert [set(saver.called) for saver in savers] == [
            {"save"},
            {"save", "restore"},
            {"restore"},
        ]


@pytest.mark.parametrize("kind", SAVERS)
def test_savers_of_a_model(tmp_path, kind):
    """Whatever saver a model gives, its checkpoints have the same names with a copy and without."""

    def model_fn(features, mode, params):
        spec = large_model_fn(features, mode, params)
        return spec._replace(scaffold_fn=lambda: tf.train.Scaffold(saver=SAVERS[kind]()))

    for name in ("with", "without"):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(snapshot, "LEAST_BYTES", 0 if name == "with" else 2**30)
            make_estimator(tmp_path / name, model_fn, save_checkpoints_steps=2).train(
                input_fn, steps=4
            )
    found, expected = (
        tf.train.load_checkpoint(tf.train.latest_checkpoint(str(tmp_path / name)))
        for name in ("with", "without")
    )
    assert found.get_variable_to_shape_map() == expected.get_variable_to_shape_map()
    for name in expected.get_variable_to_shape_map():
        np.testing.assert_array_equal(found.get_tensor(name), expected.get_tensor(name))
    files = [sorted(os.listdir(tmp_path / name)) for name in ("with", "without")]
    with_copy, without = ([n for n in names if "ckpt" in n] for names in files)
    assert with_copy == without
    step = "00000004" if kind == "of some variables" else "4"
    assert f"model.ckpt-{step}.index" in without


def test_a_model_s_own_saver_says_which_checkpoints_there_are(tmp_path):
    """TF1 programs read `last_checkpoints` of the saver that they gave."""
    savers, seen = [], []

    def fields(features, loss):
        savers.append(tf.train.Saver(max_to_keep=2))
        return {"scaffold_fn": lambda: tf.train.Scaffold(saver=savers[-1])}

    class Listens(tf.train.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            seen.append([path.rpartition("-")[2] for path in savers[-1].last_checkpoints])

    estimator = make_estimator(tmp_path, make_model_fn(fields), save_checkpoints_steps=2)
    estimator.train(input_fn, steps=4, saving_listeners=[Listens()])
    estimator.train(input_fn, steps=2, saving_listeners=[Listens()])
    assert seen == [["0"], ["0", "2"], ["2", "4"], ["4", "6"]]
