"""Processes that work on tasks, each process on one task at a time.

The processes are started afresh (spawn), so they have neither TensorFlow nor the memory of this
process. They end when this process ends, in whatever way.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class WorkerError(RuntimeError):
    """A worker failed for a reason that is not the user's; the message names the task."""


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkerPool:
    """Runs functions on tasks; a context manager.

    Args:
      num_workers: the number of processes; 0 for this process itself.
    """

    def __init__(self, num_workers: int):
        self._num_workers = num_workers
        self._workers: dict[Any, Any] = {}  # connection -> process

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_) -> None:
        for connection, process in self._workers.items():
            connection.close()
            process.terminate()
        for process in self._workers.values():
            process.join()
        self._workers.clear()

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], describe: Callable[[Any], str]
    ) -> Iterator[tuple[int, Any]]:
        """Calls a function with each task; yields (number of the task, result) as they are ready.

        Args:
          function: function of one argument. Like tasks and results, it must be small, and known
            to `pickle`.
          tasks: the tasks.
          describe: returns what a task does, for an error's message, such as "reading a.txt".

        Raises:
          ValueError, OSError: as the function raises them.
          WorkerError: the function raised anything else in a worker, or the worker ended.
        """
        if not self._num_workers:
            for number, task in enumerate(tasks):
                yield number, function(task)
            return
        waiting = list(enumerate(tasks))[::-1]
        while len(self._workers) < min(self._num_workers, len(tasks)):
            self._start_worker()
        busy: dict[Any, int] = {}
        for connection in self._workers:
            self._send(connection, function, waiting, busy)
        while busy:
            for connection in multiprocessing.connection.wait(list(busy)):
                number = busy.pop(connection)
                result = self._result(connection, describe(tasks[number]))
                self._send(connection, function, waiting, busy)
                yield number, result

    def _start_worker(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), name="worker", daemon=True)
        process.start()
        theirs.close()
        self._workers[ours] = process

    def _send(self, connection, function, waiting, busy) -> None:
        if waiting:
            number, task = waiting.pop()
            # If the worker has just ended, `_result` says so.
            with contextlib.suppress(BrokenPipeError):
                connection.send((function, task))
            busy[connection] = number

    def _result(self, connection, what: str) -> Any:
        try:
            succeeded, result, text = connection.recv()
        except (EOFError, ConnectionResetError):
            process = self._workers[connection]
            process.join()
            raise WorkerError(
                f"the worker that was {what} has ended (exit code {process.exitcode}). If it was "
                "killed because memory ran out, use fewer workers, then run the command again: "
                "it resumes."
            ) from None
        if succeeded:
            return result
        if isinstance(result, (ValueError, OSError)):
            raise result
        raise WorkerError(f"the worker that was {what} failed:\n{text}")


def _work(connection) -> None:
    """Does tasks until this process is terminated, or the process that started it has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one acts
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            function, task = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            answer = (True, function(task), "")
        except Exception as error:
            answer = (False, _sendable(error), traceback.format_exc())
        with contextlib.suppress(BrokenPipeError):
            connection.send(answer)


def _sendable(error: Exception) -> Exception | None:
    """Returns an error that the other process can read, or None."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error


def _end_with_parent() -> None:
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)
