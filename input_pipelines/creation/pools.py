"""What runs the tasks of a creation: processes of this machine, or an Apache Beam runner.

A Beam runner is the machines of Dataflow, Flink or Spark, or processes here. The tasks read and
write files, so all machines must see the text, the vocabulary and the directory of the records
under the same paths: on a network disk, or a mounted bucket. The machines need this package and
Apache Beam, but not TensorFlow.
"""

import functools
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
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
        self._num_workers, self._executor = num_workers, None

    def __enter__(self) -> "WorkerPool":
        if self._num_workers:
            # Processes are started afresh, without TensorFlow and the memory of this one.
            context = multiprocessing.get_context("spawn")
            ends, self._ours = context.Pipe(duplex=False)
            self._executor = ProcessPoolExecutor(
                self._num_workers, context, _set_up_worker, (ends,)
            )
        return self

    def __exit__(self, *_) -> None:
        if self._executor is not None:
            self._ours.close()
            self._executor.shutdown(cancel_futures=True)

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], describe: Callable[[Any], str]
    ) -> Iterator[tuple[int, Any]]:
        """Calls a function with each task; yields (number of the task, result) as they are ready.
        Function, tasks and results are pickled, so they must be small."""
        if self._executor is None:
            for number, task in enumerate(tasks):
                yield number, function(task)
            return
        # A worker has one task at most: errors could not tell waiting tasks from running ones, and
        # Python 3.10 waits forever for a large task that no worker reads any more (gh-94777).
        waiting, running = iter(enumerate(tasks)), {}
        while True:
            try:
                for number, task in itertools.islice(waiting, self._num_workers - len(running)):
                    running[self._executor.submit(_called_here, function, task)] = number
                if not running:
                    return
                future = next(as_completed(running))
                number = running[future]
                result = future.result()
            except BrokenProcessPool:
                what = " or ".join(dict.fromkeys(describe(tasks[n]) for n in running.values()))
                raise WorkerError(
                    f"a worker that was {what or 'waiting'} was killed, or has crashed. If memory "
                    "ran out, use fewer workers, then run the command again: it resumes."
                ) from None
            except (ValueError, OSError):
                raise  # the user's errors: wrong text or a full disk, which need no traceback
            except Exception as error:
                what = describe(tasks[number])
                raise WorkerError(f"the worker that was {what} failed:{error.__cause__}") from None
            del running[future]
            yield number, result


def _called_here(function, task):
    try:
        return function(task)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an error with arguments of its own would end the pool
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise


def _set_up_worker(ends):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one acts
    # A worker that goes on with its task would write: it ends at once when the first process closes
    # its pool, or is killed.
    threading.Thread(target=_end_with, args=(ends,), daemon=True).start()


def _end_with(ends):
    multiprocessing.connection.wait([ends])
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
