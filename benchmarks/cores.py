"""Runs jobs side by side, one process per core of a Linux machine.

In a small step, threads that share two cores mostly wait for each other, and a compiler mostly uses
one core. Two processes with one core each do twice the work.
"""

import concurrent.futures
import os
import queue
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CORES = sorted(os.sched_getaffinity(0))

_idle = queue.SimpleQueue()
for _core in CORES:
    _idle.put(_core)


def run(command: list[str]) -> subprocess.CompletedProcess:
    """Runs a command in the project's root, on the next idle core."""
    core = _idle.get()
    try:
        pinned = ["taskset", "--cpu-list", str(core), *command]
        return subprocess.run(pinned, cwd=ROOT, capture_output=True, text=True)
    finally:
        _idle.put(core)


def side_by_side(jobs: Iterable[Callable[[], Any]]) -> list[Any]:
    """Calls functions, as many at a time as there are cores; returns their results in order. After
    an error, the running functions finish, and the others are not started."""
    with concurrent.futures.ThreadPoolExecutor(len(CORES)) as pool:
        futures = [pool.submit(job) for job in jobs]
        concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
        pool.shutdown(cancel_futures=True)
        failed = [f for f in futures if not f.cancelled() and f.exception()]
        return [future.result() for future in failed or futures]
