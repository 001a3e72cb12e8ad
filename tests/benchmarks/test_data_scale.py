"""Tests that the benchmark of large texts measures and compares what it says."""

import json
import os
import sys

import pytest

from benchmarks import data_scale, data_speed

GOOD = {
    "differ_from_one_worker": [],
    "kills": 3,
    "worker_megabytes": 400,
    "main_process_megabytes": 700,
}


def test_memory_of_a_command_and_of_its_processes(tmp_path, monkeypatch):
    peak_megabytes, ready, seen = data_speed.peak_megabytes, tmp_path / "ready", tmp_path / "seen"

    def noted(pid):
        is_child = ready.exists() and ready.read_text() == f"{pid}."
        megabytes = peak_megabytes(pid)
        if is_child:
            seen.touch()  # It may end now.
        return megabytes

    monkeypatch.setattr(data_speed, "peak_megabytes", noted)
    child = (
        "import os, pathlib, time; y = bytearray(100_000_000); "
        f"pathlib.Path({str(ready)!r}).write_text(f'{{os.getpid()}}.')\n"
        f"while not os.path.exists({str(seen)!r}): time.sleep(0.01)"
    )
    code = (
        f"import subprocess, sys; x = bytearray(300_000_000); child = {child!r}; "
        "sys.exit(subprocess.call([sys.executable, '-c', child]))"
    )
    run = data_scale.Run([sys.executable, "-c", code])
    assert not run.was_killed
    assert 300 < run.megabytes < 400 and 100 < run.worker_megabytes < 200


def test_a_killed_command():
    code = "import time; time.sleep(600)"
    run = data_scale.Run([sys.executable, "-c", code], kill_after=0.0)
    assert run.was_killed and run.secs < 600


def test_a_command_that_fails():
    with pytest.raises(SystemExit, match=r"(?s)^no\n.* ended with 3$"):
        data_scale.Run([sys.executable, "-c", "import sys; print('no'); sys.exit(3)"])


def test_the_moments_of_kills_are_random_and_repeatable():
    moments = data_scale.kill_moments(100.0, seed=1)
    assert len(moments) == 3 and all(moment >= 1.5 for moment in moments)
    assert sum(moments) <= 75 + 3 * 1.5
    assert moments == data_scale.kill_moments(100.0, 1) != data_scale.kill_moments(100.0, 2)


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, []),
        ({"differ_from_one_worker": ["beam"]}, ["beam wrote other files"]),
        ({"kills": 2}, ["only 2 kills came before the end; give more text"]),
        (
            {"worker_megabytes": 1001},
            ["worker_megabytes is 1001, but at most 1000 is promised"],
        ),
    ],
)
def test_what_breaks_the_promises(changes, broken):
    assert data_scale.broken_promises({**GOOD, **changes}) == broken


@pytest.mark.slow
def test_the_last_line_is_json(tmp_path, capsys):
    data_scale.main(["--megabytes=48", "--vocab_size=400", f"--directory={tmp_path}"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["kills"] == 3 and result["compared_with"] == ["resumed"]
    assert result["compared_files"] == 8 + 4  # shards; manifest, counts, lengths, vocabulary
    assert 0 < result["worker_megabytes"] < result["main_process_megabytes"]
    assert os.listdir(tmp_path) == []
