"""Tasks on an Apache Beam runner: the machines of Dataflow, Flink or Spark, or processes here.

The tasks of `creation` read and write files, so all machines must see the text, the vocabulary and
the directory of the records under the same paths: on a network disk, or a mounted bucket. The
machines need this package and Apache Beam, but not TensorFlow.
"""

import functools
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from bert_estimator.system import disk_files
from input_pipelines.creation.worker_pool import WorkerError


class BeamPool:
    """Runs functions on tasks, as `worker_pool.WorkerPool` does, each list of tasks as a pipeline.

    Args:
      runner: the runner's name, such as "DirectRunner".
      options: the options of Beam and of its runner, as on a command line.
      directory: where the results of tasks are written for a while; all machines see it.

    Raises:
      ValueError: Apache Beam is not installed.
    """

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
        """Calls a function with each task; yields (number of the task, result).

        Args:
          function, tasks: as for `WorkerPool.run`.
          describe: returns what a task does, for an error's message.

        Raises:
          ValueError: as the function raises it.
          WorkerError: the pipeline failed, or its machines do not see the directory.
        """
        with tempfile.TemporaryDirectory(prefix=".beam.", dir=self._directory) as directory:
            path = os.path.join(directory, "results")
            try:
                self._run_pipeline(function, tasks, path)
            except Exception as error:
                what = f"{describe(tasks[0])} with {self._runner}"
                raise WorkerError(f"{what}: {type(error).__name__}: {error}") from error
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
                | "spread" >> beam.Reshuffle()
                | function.__name__ >> beam.Map(functools.partial(_called, function))
                | "gather" >> beam.combiners.ToList()
                | "write" >> beam.Map(functools.partial(_write, path))
            )


def import_beam() -> ModuleType:
    """Imports Apache Beam.

    Raises:
      ValueError: it is not installed.
    """
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
