"""What runs the tasks of a creation: processes of this machine, or an Apache Beam runner.

A Beam runner is the machines of Dataflow, Flink or Spark, or processes here. The tasks read and
write files, so all machines must see the text, the vocabulary and the directory of the records
under the same paths: on a network disk, or a mounted bucket. The machines need this package and
Apache Beam, but not TensorFlow.
"""

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from bert_estimator.system import disk_files


class WorkerError(RuntimeError):
    """Says that a worker failed for a reason that is not the user's, and names the task."""


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class WorkerPool:
    """Runs functions on tasks in this many processes, or in this process itself if it is 0."""

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
        Function, tasks and results are pickled, so they must be small."""
        if not self._num_workers:
            for number, task in enumerate(tasks):
                yield number, function(task)
            return
        # Tasks are popped from the end, so in their order.
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
        # Processes are started afresh, so they have neither TensorFlow nor the memory of this one.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), name="worker", daemon=True)
        process.start()
        # Else the end of the worker would not be seen: this process would hold the pipe open.
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
        # The kernel may have killed it. Its exit code is known only once it has been joined.
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
        # These are the user's errors: wrong text or a full disk, which need no traceback.
        if isinstance(result, (ValueError, OSError)):
            raise result
        raise WorkerError(f"the worker that was {what} failed:\n{text}")


def _work(connection) -> None:
    """Does tasks until this process is terminated, or the process that started it has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one acts
    # A killed parent cannot terminate its workers, which would go on with the task, and write.
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
        # An error with arguments of its own may be written, and fail only when it is read.
        pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error


def _end_with_parent() -> None:
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


class BeamPool:
    """Runs functions on tasks, as `WorkerPool` does, each list of tasks as a pipeline whose results
    pass through a directory that all machines see."""

    def __init__(self, runner: str, options: Sequence[str], directory: str):
        self._beam = import_beam()
        self._directory = os.path.abspath(directory)
        self._runner = runner
        self._options = [f"--runner={runner}", *options]

    def __enter__(self) -> "BeamPool":
        return self

    def __exit__(self, *_) -> None:
        pass

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], describe: Callable[[Any], str]
    ) -> Iterator[tuple[int, Any]]:
        """Calls a function with each task; yields (number of the task, result) in order."""
        with tempfile.TemporaryDirectory(prefix=".beam.", dir=self._directory) as directory:
            path = os.path.join(directory, "results")
            try:
                self._run_pipeline(function, tasks, path)
            except Exception as error:
                what = f"{describe(tasks[0])} with {self._runner}"
                raise WorkerError(f"{what}: {type(error).__name__}: {error}") from error
            # The pipeline has written the results, but on another machine's disk.
            if not os.path.exists(path):
                raise WorkerError(
                    f"the machines of {self._runner} do not see {self._directory}: write to a "
                    "directory that all machines share"
                )
            with open(path, "rb") as file:
                results = pickle.load(file)
        for number, result, error in sorted(results, key=lambda entry: entry[0]):
            if error is not None:
                raise error
            yield number, result

    def _run_pipeline(self, function, tasks, path):
        beam = self._beam
        options = beam.options.pipeline_options.PipelineOptions(self._options)
        with beam.Pipeline(options=options) as pipeline:
            _ = (
                pipeline
                | "tasks" >> beam.Create(list(enumerate(tasks)))
                # Without it, a runner may fuse all steps and run the tasks one after the other.
                | "spread" >> beam.Reshuffle()
                | function.__name__ >> beam.Map(functools.partial(_called, function))
                | "gather" >> beam.combiners.ToList()
                | "write" >> beam.Map(functools.partial(_write, path))
            )


def import_beam() -> ModuleType:
    """Imports Apache Beam; raises ValueError if it is not installed."""
    try:
        import apache_beam
        import apache_beam.options.pipeline_options
    except ImportError:
        raise ValueError(
            "--runner: Apache Beam is not installed. Install it: pip install 'bert-estimator[beam]'"
        ) from None
    return apache_beam


def _called(function, numbered_task):
    """Returns (number, result, None), or (number, None, error) if another try would not help."""
    number, task = numbered_task
    try:
        return number, function(task), None
    except ValueError as error:
        return number, None, error


def _write(path, results):
    with disk_files.writer(path, "wb") as file:
        pickle.dump(results, file)
