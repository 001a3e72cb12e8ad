# The workers import this module, which does not import TensorFlow therefore.

import multiprocessing
import os
import signal
import sys
import time

import pytest

from input_pipelines.creation import pools
from input_pipelines.creation.pools import WorkerError, WorkerPool


def act(task):
    """Does what the task says; it runs in a worker, so it is a function of the module."""
    kind, value, *_ = task
    if kind == "raise":
        raise value
    if kind == "raise unsendable":
        raise UnsendableError(value, "which pickle gets wrong")
    if kind == "sleep":
        time.sleep(value)
    if kind == "end":
        os._exit(value)
    return value + 1, os.getpid(), "tensorflow" in sys.modules


def describe(task):
    return f"doing {task[0]}"


class UnsendableError(ValueError):
    def __init__(self, a, b):
        super().__init__(a)


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(2) as pool:
        yield pool


def test_results_of_workers(pool):
    results = dict(pool.run(act, [("add", number) for number in range(20)], describe))
    assert sorted(results) == list(range(20))
    assert [results[number][0] for number in range(20)] == list(range(1, 21))
    pids = {pid for _, pid, _ in results.values()}
    assert 1 <= len(pids) <= 2 and os.getpid() not in pids
    assert not any(has_tensorflow for *_, has_tensorflow in results.values())


def test_one_worker_has_a_process_of_its_own():
    with WorkerPool(1) as pool:
        ((_, (_, pid, has_tensorflow)),) = pool.run(act, [("add", 1)], describe)
    assert pid != os.getpid() and not has_tensorflow


def test_without_workers_this_process_works():
    with WorkerPool(0) as pool:
        assert [r[1] for _, r in pool.run(act, [("add", 1)] * 3, describe)] == [os.getpid()] * 3
        with pytest.raises(KeyError):
            list(pool.run(act, [("raise", KeyError("x"))] * 3, describe))


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        (("raise", ValueError("a.txt: is not text")), ValueError, r"^a\.txt: is not text$"),
        (("raise", OSError(28, "No space left", "b")), OSError, r"\[Errno 28\] No space left: 'b'"),
        (
            ("raise", KeyError("x")),
            WorkerError,
            "(?s)^the worker that was doing raise failed:.*Traceback .*KeyError: 'x'",
        ),
        (
            ("raise unsendable", "x"),
            WorkerError,
            "(?s)^the worker that was doing raise unsendable failed:.*UnsendableError: x",
        ),
        (
            ("end", 9),
            WorkerError,
            r"^a worker that was doing (add or doing )?end( or doing add)? was killed, or has cr",
        ),
    ],
)
def test_errors_of_workers(task, error, message):
    before = set(multiprocessing.active_children())
    with WorkerPool(2) as pool, pytest.raises(error, match=message):
        list(pool.run(act, [("add", 1), task, ("add", 2)], describe))
    assert set(multiprocessing.active_children()) <= before


def test_large_tasks_do_not_wait_for_a_worker_that_was_killed():
    """Beyond what a pipe holds, a task is only sent while a worker reads."""
    tasks = [("end", 9), *([("add", 1, bytes(1 << 20))] * 9)]
    with WorkerPool(2) as pool, pytest.raises(WorkerError, match=r"was doing .*end.* was killed"):
        list(pool.run(act, tasks, describe))


def test_a_worker_that_is_killed_between_tasks():
    with WorkerPool(1) as pool:
        results = pool.run(act, [("add", 1), ("add", 2)], describe)
        _, (_, pid, _) = next(results)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"that was (waiting|doing add) was killed, or has"):
            list(results)


def test_a_pool_that_is_left_ends_its_workers_at_once():
    before = set(multiprocessing.active_children())
    start = time.monotonic()
    with WorkerPool(2) as pool:
        next(pool.run(act, [("add", 1), ("sleep", 600), ("sleep", 600)], describe))
    assert time.monotonic() - start < 300
    assert set(multiprocessing.active_children()) <= before


def test_available_cores(monkeypatch):
    assert 1 <= pools.available_cores() <= os.cpu_count()
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert pools.available_cores() == os.cpu_count()
