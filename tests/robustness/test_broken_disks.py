"""Both scripts on disks that are full, gone or read-only: a sentence, and nothing is lost."""

import contextlib
import os
import resource
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from scripts import CLASSIFIER, PRETRAINING, SCRIPTS
from tiny_run import metrics_of, steps_of, training_metrics, variables_of, without_timing

from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.tpu.verbs import snapshot


def one_quick(quick):
    """Returns both scripts as parameters; the test of one of them is slow."""
    slow = {script: () if script is quick else pytest.mark.slow for script in SCRIPTS.values()}
    return [pytest.param(script, id=script.name, marks=slow[script]) for script in slow]


@pytest.fixture
def limit_files():
    """Makes writing beyond a size into a file fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        # stderr may be a file of pytest's, which already has messages of TensorFlow.
        in_use = os.fstat(2).st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (in_use + size, limits[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    forget_event_files()


def forget_event_files():
    """Lets the next run open event files: a file that could not be written cannot be closed."""
    with contextlib.suppress(Exception):
        tf.summary.FileWriterCache.clear()
    tf.summary.FileWriterCache._cache.clear()


def after_step(monkeypatch, step, action):
    """Has something done once a step was logged."""

    def add_metrics(self, record, add_metrics=RunDirectory.add_metrics):
        add_metrics(self, record)
        if record["step"] == step:
            action()

    monkeypatch.setattr(RunDirectory, "add_metrics", add_metrics)


IN_BACKGROUND = pytest.param("in the background", marks=pytest.mark.slow)


@pytest.fixture(params=["while training waits", IN_BACKGROUND])
def way(request, monkeypatch):
    """How checkpoints are written: in the background all of them are, whatever their size."""
    if request.param == "in the background":
        monkeypatch.setattr(snapshot, "LEAST_BYTES", 0)


@pytest.mark.parametrize("script", one_quick(PRETRAINING))
@pytest.mark.usefixtures("way")
def test_a_disk_that_becomes_full(script, data, tmp_path, capsys, limit_files, monkeypatch):
    def run(name):
        changes = {**script.steps(12), "optimizer": "lars", "do_train": True}  # the smallest graph
        return script.main(script.flags(data[script.name], tmp_path / name, **changes))

    def become_full():
        snapshot.wait_for(str(tmp_path / "run"))  # of step 4
        limit_files(4000)

    assert run("whole") == 0
    tf.summary.FileWriterCache.clear()
    with monkeypatch.context() as patched:
        after_step(patched, 6, become_full)
        # The write of step 8 has failed when step 10 has been logged.
        after_step(patched, 10, lambda: snapshot.wait_for(str(tmp_path / "run")))
        assert run("run") == 1
    limit_files(1 << 40)
    err = capsys.readouterr().err
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith(f"{script.name}: error: {tmp_path}/run/")
    assert last.endswith(
        ": File too large. Raise the limit of the size of files (ulimit -f); then run the same "
        "command again: it resumes from what was saved."
    )
    assert steps_of(tmp_path / "run") == [0, 4]
    assert not [name for name in os.listdir(tmp_path / "run") if "temp" in name or "tmp" in name]
    forget_event_files()
    assert run("run") == 0
    found, expected = (variables_of(tmp_path / name, 12) for name in ("run", "whole"))
    np.testing.assert_equal(found, expected)
    assert training_metrics(tmp_path / "run") == training_metrics(tmp_path / "whole")


def test_a_directory_that_vanishes(data, tmp_path, capsys, monkeypatch):
    after_step(monkeypatch, 2, lambda: shutil.rmtree(tmp_path / "run"))
    changes = {"num_train_steps": 8, "optimizer": "lars", "do_train": True}
    flags = PRETRAINING.flags(data[PRETRAINING.name], tmp_path / "run", **changes)
    assert PRETRAINING.main(flags) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert f"the directory {tmp_path}/run is gone. Bring it back; then run" in err.splitlines()[-1]


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Returns the directory of a finished run of a script."""
    paths = {}

    def of(script):
        if script not in paths:
            paths[script] = tmp_path_factory.mktemp("trained") / "run"
            flags = script.flags(data[script.name], paths[script], **script.steps(8))
            assert script.main([*flags, "--do_train", "--do_eval"]) == 0
            tf.summary.FileWriterCache.clear()
        return paths[script]

    return of


def files_of(path):
    found = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return {file: os.stat(file).st_mtime_ns for file in found}


@pytest.mark.parametrize("script", one_quick(CLASSIFIER))
def test_a_run_that_cannot_be_written_is_evaluated(script, data, trained, tmp_path, capsys):
    path = trained(script)
    before = files_of(path)
    changes = {"init_checkpoint": path, "do_eval": True, "do_train": False}
    if script is CLASSIFIER:
        changes |= {"do_predict": True, "predict_file": data[script.name] / "dev.tsv"}
    os.chmod(path, 0o500)
    try:
        assert script.main(script.flags(data[script.name], tmp_path / "other", **changes)) == 0
    finally:
        os.chmod(path, 0o700)
    assert files_of(path) == before
    (found,) = map(without_timing, metrics_of(tmp_path / "other"))
    *_, expected = map(without_timing, metrics_of(path))
    expected.pop("eval_bag_of_words_baseline", None)  # it is of the training's examples
    assert found == expected
    assert found["step"] == 8
    if script is CLASSIFIER:
        assert (tmp_path / "other" / "test_results.tsv").exists()
