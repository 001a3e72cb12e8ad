"""Tests jobs that run side by side on the cores of this machine."""

import functools
import sys
import time

import pytest

from benchmarks import cores


def test_after_an_error_no_more_jobs_are_begun(monkeypatch):
    monkeypatch.setattr(cores, "CORES", [0])
    begun = []

    def run(number):
        begun.append(number)
        if number == 1:
            sys.exit("job 1 failed")
        if number == 2 and begun[-2:] == [1, 2]:
            time.sleep(
                1
            )  # This job starts before the error of the other job is known, and takes its time.
        return number

    jobs = [functools.partial(run, number) for number in range(4)]
    assert cores.side_by_side(jobs[:1] + jobs[2:]) == [0, 2, 3]
    begun.clear()
    with pytest.raises(SystemExit, match="job 1 failed"):
        cores.side_by_side(jobs)
    assert begun[:2] == [0, 1] and 3 not in begun


def test_a_command_has_a_core_of_its_own():
    command = [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"]
    jobs = [functools.partial(cores.run, command)] * (len(cores.CORES) + 1)
    used = [int(done.stdout) for done in cores.side_by_side(jobs)]
    assert set(used) <= set(cores.CORES) and len(used) == len(jobs)
