"""Tests that scripts in TF1 idiom give what TensorFlow 1.15 gave from the same weights."""

import concurrent.futures
import json
import sys

import forked
import numpy as np
import pytest
import replay
import tensorflow.compat.v1 as tf

from bert_estimator.legacy import wheel


def run(script, folder, *flags):
    command = [sys.executable, "-m", "bert_estimator.legacy"]
    replay.run(command, script, folder, *flags, process=forked.run)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Starts all scripts, two at a time; returns script -> (its folder, the future of its run)."""
    root = tmp_path_factory.mktemp("legacy")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        started = {}
        for script in replay.QUICK:
            flags, _ = replay.FLAGS[script]
            folder = root / script
            replay.start_from(folder, replay.GOLDENS / script, 0)
            started[script] = folder, pool.submit(run, script, folder, *flags)
        yield started
        pool.shutdown(cancel_futures=True)


def check(script, folder):
    golden = json.loads((replay.GOLDENS / f"{script}.json").read_text())
    assert len(golden["losses"]) == 20 and golden["results"]
    lines, _ = replay.differences(golden, replay.observe(folder), replay.LOSSES.get(script))
    assert not lines


@pytest.mark.parametrize("script", replay.QUICK)
def test_script_gives_what_tensorflow_1_gave(runs, script):
    folder, done = runs[script]
    done.result()
    check(script, folder)


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(set(replay.FLAGS) - set(replay.QUICK)))
def test_further_script_gives_what_tensorflow_1_gave(tmp_path, script):
    if script in replay.CANNED and wheel.folder() is None:
        pytest.skip("needs tensorflow-estimator: the extra [estimator]")
    folder = tmp_path / "out"
    replay.start_from(folder, replay.GOLDENS / script, 0)
    run(script, folder, *replay.FLAGS[script][0])
    check(script, folder)


def test_host_calls_wrote_a_summary_for_each_step(runs):
    folder, done = runs["regression"]
    done.result()
    (path,) = (folder / "host").glob("events*")
    values = {
        (value.tag, event.step): value.simple_value
        for event in tf.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.HasField("simple_value")
    }
    golden = json.loads((replay.GOLDENS / "regression.json").read_text())
    steps = range(20)
    assert sorted(values) == sorted(
        (tag, step) for tag in ("host_loss", "learning_rate") for step in steps
    )
    np.testing.assert_allclose(
        [values["host_loss", step] for step in steps],
        [golden["losses"][str(step + 1)] for step in steps],
        rtol=1e-4,
    )


def test_a_scripts_own_hooks_saw_each_step(runs):
    folder, done = runs["moving_averages"]
    done.result()
    lines = (folder / "steps.txt").read_text().splitlines()
    assert lines[-1] == "end 20" and len(lines) == 21


def check_on_cores(script, folder, cores):
    replay.start_from(folder, replay.GOLDENS / script, 0)
    flags = ["--use_tpu"] if cores == 1 else ["--use_tpu", f"--tpu=rehearse:{cores}"]
    run(script, folder, *flags)
    golden = json.loads((replay.GOLDENS / f"{script}.json").read_text())
    lines, _ = replay.differences_on_cores(script, folder, golden)
    assert not lines


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.usefixtures("xla_runtime")
def test_a_script_runs_on_tpu_cores(tmp_path, cores):
    """On two virtual cores, by the TPU's rules, a step's mean loss is the mean over the batch."""
    check_on_cores("regression", tmp_path / "out", cores)


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(set(replay.ON_CORES) - {"regression"}))
@pytest.mark.usefixtures("xla_runtime")
def test_further_script_runs_on_two_cores(tmp_path, script):
    check_on_cores(script, tmp_path / "out", 2)


def test_differences_are_seen():
    one = {"losses": {"1": 1.0}, "results": {"a": "x", "b": "2.0"}, "variables": {"w": [2]}}
    assert replay.differences(one, one) == ([], 0.0)
    other = {"losses": {"1": 1.001}, "results": {"a": "y"}, "variables": {"w": [3]}}
    lines, largest = replay.differences(one, other)
    assert len(lines) == 4 and largest == pytest.approx(1e-3, rel=1e-2)
