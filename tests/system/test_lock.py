"""One process at a time writes in a directory; who is refused learns which process does."""

import contextlib
import errno
import json
import os
import re
import socket
import subprocess
import sys

import locked
import pytest
import tensorflow.compat.v1 as tf
from toy import checkpoint_steps, input_fn, make_estimator, make_model_fn

import bert_estimator
from bert_estimator.system import lock
from bert_estimator.tpu import serving

ROOT = os.path.dirname(os.path.dirname(bert_estimator.__file__))

# Holds the lock of a directory until its input ends; forks a process first, if asked to.
HOLDER = """
import os, sys
from bert_estimator.system import lock

def no_locks(*args):
    raise OSError({errno}, "no locks here")

if {errno}:
    lock.fcntl.flock = no_locks
with lock.held(sys.argv[1]):
    child = {forks} and os.fork()
    if not child:  # The forked process says that it runs: by then it has forgotten the lock.
        print("held", flush=True)
    sys.stdin.read()
    if {forks} and not child:
        os._exit(0)
"""


@contextlib.contextmanager
def another_process(directory, errno=0, forks=False):
    """Another process, which holds the lock of a directory meanwhile."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(errno=errno, forks=forks), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    try:
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def no_locks(monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)


def is_free(directory):
    try:
        with lock.held(directory):
            return True
    except lock.InUseError:
        return False


def test_a_second_process_learns_which_one_is_the_first(tmp_path):
    with another_process(tmp_path) as process:
        with pytest.raises(lock.InUseError) as raised, lock.held(tmp_path):
            pass
        described = json.loads((tmp_path / ".lock").read_text())
        assert described["pid"] == process.pid
        assert described["command"] == f"-c {tmp_path}"
        assert str(raised.value) == (
            f"{tmp_path} is being written by process {process.pid} on {socket.gethostname()} since "
            f"{described['since']} (-c {tmp_path}). One process writes there at a time: wait until "
            "it has ended, or write elsewhere."
        )
        with lock.held(tmp_path / "other"), lock.held_for(tmp_path / "file"):
            pass
        process.stdin.close()
        process.wait()
        assert not (tmp_path / ".lock").exists()
        assert is_free(tmp_path)


@pytest.mark.parametrize("no", [0, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_lock_ends_with_its_process_however_it_ends(tmp_path, request, no):
    if no:
        request.getfixturevalue("no_locks")
    with another_process(tmp_path, no) as process:
        assert not is_free(tmp_path)
        process.kill()
        process.wait()
        assert [name for name in os.listdir(tmp_path) if name.startswith(".lock")]
        assert is_free(tmp_path)
        assert os.listdir(tmp_path) == []


def test_a_lock_is_free_if_its_holder_has_ended(tmp_path):
    path = tmp_path / lock.FILE
    assert lock.is_free(str(tmp_path)) and lock.is_free(str(tmp_path / "missing"))
    with lock.held(str(tmp_path)):
        assert not lock.is_free(str(tmp_path))
    described = json.loads(lock.description_of_this_process())
    for name in (lock.FILE, f"{lock.FILE}-held"):
        path = tmp_path / name
        path.write_text(json.dumps({**described, "started": -1}))  # Its number was given anew.
        assert lock.is_free(str(tmp_path))
        for unknown in (json.dumps({**described, "host": "another"}), ""):
            path.write_text(unknown)
            assert not lock.is_free(str(tmp_path))
        path.unlink()


def test_a_refusal_names_what_it_is_told_to(tmp_path):
    with (
        locked.by_another(tmp_path / lock.FILE),
        pytest.raises(lock.InUseError, match=r"^gs://bucket/name is being written by process 77"),
        lock.held(str(tmp_path), "gs://bucket/name"),
    ):
        pass


def test_a_forked_process_does_not_hold_what_its_parent_holds(tmp_path):
    with another_process(tmp_path, forks=True) as process:
        assert not is_free(tmp_path)
        process.kill()  # the other one lives on
        process.wait()
        assert is_free(tmp_path)


def test_within_a_process_it_is_held_any_number_of_times(tmp_path):
    link = tmp_path / "link"
    (tmp_path / "run").mkdir()
    link.symlink_to(tmp_path / "run")
    with lock.held(tmp_path / "run"):
        with lock.held(link), lock.held(str(tmp_path / "run")):
            pass
        assert (tmp_path / "run" / ".lock").exists()
    assert not (tmp_path / "run" / ".lock").exists()
    with pytest.raises(KeyError), lock.held(tmp_path / "run"):
        raise KeyError
    assert os.listdir(tmp_path / "run") == []


def test_a_directory_may_go_while_its_lock_is_held(tmp_path):
    with lock.held(tmp_path / "run"):
        os.remove(tmp_path / "run" / ".lock")
        os.rmdir(tmp_path / "run")
    assert is_free(tmp_path / "run")


def test_who_opens_the_file_as_its_holder_removes_it_looks_again(tmp_path, monkeypatch):
    flock, calls = lock.fcntl.flock, []

    def removed_first(descriptor, operation):
        if not calls:
            os.remove(tmp_path / ".lock")
        calls.append(operation)
        flock(descriptor, operation)

    monkeypatch.setattr(lock.fcntl, "flock", removed_first)
    with lock.held(tmp_path):
        assert len(calls) == 2
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_other_errors_are_raised(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(errno.EIO, "the disk has gone")

    monkeypatch.setattr(lock.fcntl, "flock", fail)
    with pytest.raises(OSError, match="the disk has gone"), lock.held(tmp_path):
        pass


def ended_process():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("changes", "is_taken_over"),
    [
        ({}, False),
        ({"pid": "ended"}, True),
        ({"pid": "ended", "host": "another"}, False),
        ({"pid": "ended", "machine": "another boot"}, False),
        ({"started": -1}, True),  # the process of this number is another one
        ({"pid": "one"}, False),
        (None, False),  # only just created
    ],
)
def test_without_locks_the_file_of_an_ended_process_is_taken_over(
    tmp_path, no_locks, logged, changes, is_taken_over
):
    path = tmp_path / ".lock-held"
    described = json.loads(lock.description_of_this_process())
    if changes is not None:
        if changes.get("pid") == "ended":
            changes = {**changes, "pid": ended_process()}
        path.write_text(json.dumps({**described, **changes}))
    else:
        path.write_text("")
    if is_taken_over:
        with lock.held(tmp_path):
            assert json.loads(path.read_text())["pid"] == os.getpid()
        (warning,) = [text for level, text in logged if level == "WARNING"]
        assert warning.startswith(f"The file system of {tmp_path} has no locks: {path} keeps oth")
        assert is_free(tmp_path)
    else:
        with pytest.raises(lock.InUseError, match=f"If that process has ended, remove {path}.$"):
            lock.held(tmp_path).__enter__()
        assert path.exists()


def test_what_another_process_has_just_put_there_is_not_removed(tmp_path):
    path = str(tmp_path / ".lock-held")
    (tmp_path / ".lock-held").write_text('{"pid": 2}')
    lock._remove_left(path, {"pid": 1})
    assert json.loads((tmp_path / ".lock-held").read_text()) == {"pid": 2}
    lock._remove_left(path, {"pid": 2})
    assert os.listdir(tmp_path) == []


def test_where_no_lock_can_be_it_says_so(warned):
    with lock.held("gs://bucket/run"):
        pass
    assert warned() == [
        "gs://bucket/run is not in a file system of this machine: nothing locks other writers out."
    ]


# What an estimator locks.


def test_a_second_training_is_refused_and_readers_are_not(tmp_path, rules):
    make_estimator(tmp_path).train(input_fn, steps=2)

    def fields(features, loss):
        return {"predictions": {"x": features["x"]}}

    estimator = make_estimator(tmp_path, make_model_fn(fields), predict_batch_size=4, **rules)

    def receiver():
        x = {"x": tf.placeholder(tf.float32, [4])}
        return serving.ServingInputReceiver(x, x)

    with locked.by_another(tmp_path / ".lock"):
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(lock.InUseError, match=re.escape(f"{tmp_path} {locked.WHO}")):
            estimator.train(input_fn, steps=2)
        assert sorted(os.listdir(tmp_path)) == before
        assert estimator.latest_checkpoint().endswith("-2")
        assert estimator.evaluate(input_fn, steps=1)["global_step"] == 2
        assert next(estimator.predict(input_fn))["x"] == 3.0
        assert estimator.export_saved_model(str(tmp_path / "export"), receiver)
    assert checkpoint_steps(estimator.train(input_fn, steps=2).model_dir) == [0, 2, 4]


def test_what_a_training_calls_itself_is_not_refused(tmp_path):
    class Evaluates(tf.train.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            evaluated.append(int(estimator.evaluate(input_fn, steps=1)["global_step"]))
            if global_step_value:  # there is nothing left of this one
                make_estimator(tmp_path).train(input_fn, max_steps=2)

    evaluated, estimator = [], make_estimator(tmp_path, save_checkpoints_steps=2)
    with lock.held(tmp_path):
        estimator.train(input_fn, steps=4, saving_listeners=[Evaluates()])
    assert evaluated == checkpoint_steps(tmp_path) == [0, 2, 4]
    assert not (tmp_path / ".lock").exists()


def test_an_exported_program_is_written_by_one_process(tmp_path):
    with (
        locked.by_another(tmp_path / ".lock"),
        pytest.raises(lock.InUseError, match=re.escape(f"{tmp_path} {locked.WHO}")),
    ):
        make_estimator(tmp_path / "run").export_training_program(input_fn, str(tmp_path))
