"""The cost of the XLA runtime's loop: training through TPUEstimator against the compiled step.

    python -m benchmarks.loop_overhead

This trains a network on the embedded corpus through `TPUEstimator.train`. Between the loops it
calls the same step, compiled by itself, as often as a loop has steps. The batches of these calls
are already on the devices, and only the last call is waited for. The two take turns in one process,
so that other load of the machine slows both. On a CPU, glibc's allocator is told to keep its
memory. Otherwise every call of the bare step would get its memory from the system anew, which costs
the bare step more than the loop. Every round adds a row to results/loop_overhead.csv, and replaces
the rows of an earlier run with the same settings. BERT-base takes about ten minutes on two cores.
"""

import argparse
import itertools
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from benchmarks import csv_rows, main_job
from bert_estimator import tpu
from bert_estimator.bert_config import PRESETS, BertConfig
from bert_estimator.command_line.choices import PRECISIONS
from bert_estimator.model_fns import pretraining, update
from bert_estimator.optimization import WarmupPolynomialDecay
from bert_estimator.tpu.program import devices, exported_program
from bert_estimator.tpu.program.core_mesh import CoreMesh
from input_pipelines.embedded import default_data
from input_pipelines.records import pretraining_input

RESULTS = os.path.join(main_job.ROOT, "benchmarks", "results", "loop_overhead.csv")
SETTINGS = ["tpu_name", "network", "length", "batch", "precision", "steps"]
COLUMNS = [
    *SETTINGS, "round", "loop_secs", "bare_secs", "input_wait", "load", "python", "tensorflow",
    "jax", "machine",
]  # fmt: skip
_VOCAB_SIZE = 30522
_KEEPS_MEMORY = {
    "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(10**11),
}  # fmt: skip


class BareStep:
    """Holds a compiled step with its state and batches.

    Args:
      program: an `ExportedProgram`.
      cores: the devices, as many as the program has cores.
    """

    def __init__(self, program: Any, cores: Sequence[Any]):
        mesh = CoreMesh(cores)
        self._step = program.lowered.compile(mesh)
        self._state = mesh.put(program.state, mesh.of_state(program.lowered.state))
        self._batches = [mesh.put(batch, mesh.rows) for batch in program.batches]
        self.secs(1)  # This compiles the step.

    def secs(self, steps: int) -> float:
        """Runs steps, and returns the mean seconds of a step."""
        start, results = time.perf_counter(), []
        for batch in itertools.islice(itertools.cycle(self._batches), steps):
            outputs, self._state = self._step(self._state, batch)
            results.append(outputs)
        devices.import_jax().block_until_ready((results, self._state))
        return (time.perf_counter() - start) / steps


def measure(
    estimator: tpu.TPUEstimator,
    input_fn: Callable[..., Any],
    cores: Sequence[Any],
    steps: int,
    rounds: int,
) -> list[dict[str, float]]:
    """Times training and the bare step in turn.

    Args:
      estimator: a `TPUEstimator` on `cores` with loops of `steps` steps, which logs every loop.
      input_fn: its training data.
      cores: the devices.
      steps: steps of a loop.
      rounds: how often each of the two is timed.

    Returns:
      A list with a dict for each round: `loop_secs` and `bare_secs` of a step, and `input_wait`,
      the share of the loop's time in which the steps waited for input.
    """
    with tempfile.TemporaryDirectory() as directory:
        estimator.export_training_program(input_fn, directory)
        bare = BareStep(exported_program.load(directory), cores)
    rows, loops = [], itertools.count(1)

    def after_log(record):
        # Every other loop is not timed, because its batches were drawn while the bare step ran.
        if next(loops) % 2 == 0:
            secs = {"loop_secs": 1 / record["steps_per_sec"], "bare_secs": bare.secs(steps)}
            rows.append({**secs, "input_wait": record["input_wait"]})

    estimator.train(input_fn, hooks=[tpu.LogListener(after_log)], steps=2 * rounds * steps)
    return rows


def pretraining_job(
    arguments: argparse.Namespace, directory: str
) -> tuple[tpu.TPUEstimator, Callable[..., Any]]:
    """Returns (estimator, input_fn) for the network and the data in the arguments."""
    data = default_data.make(
        os.path.join(directory, "data"),
        vocab_size=2000,
        max_seq_length=arguments.length,
        max_predictions_per_seq=20,
        dupe_factor=1,
        seed=1,
        masking="dynamic",
    )
    input_fn = pretraining_input.input_fn_builder(
        data.train_files, arguments.length, 20, is_training=True, precision=arguments.precision
    )
    model_dir = os.path.join(directory, "model")
    model_fn = pretraining.model_fn_builder(
        BertConfig.preset(arguments.network, _VOCAB_SIZE),
        update.UpdateRule("lamb", WarmupPolynomialDecay(1e-4, 10**6, 10**3), summary_dir=model_dir),
        precision=arguments.precision,
    )
    estimator = tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(
            master=arguments.tpu_name,
            model_dir=model_dir,
            save_checkpoints_steps=None,
            save_checkpoints_secs=None,
            log_step_count_steps=arguments.steps,
            tpu_config=tpu.TPUConfig(iterations_per_loop=arguments.steps),
        ),
        train_batch_size=arguments.batch,
    )
    return estimator, input_fn


def table(rows: list[dict[str, Any]]) -> str:
    """Returns a table with a line for each run, with the medians of its rounds."""
    lines = [
        "| cores | network, length, batch | precision | s a step: loop (min to max) | "
        "bare (min to max) | overhead | input wait |",
        "|---|---|---|---|---|---|---|",
    ]
    for settings in dict.fromkeys(_settings(row) for row in rows):
        own = [row for row in rows if _settings(row) == settings]
        tpu_name, network, length, batch, precision, _ = settings
        loop, bare, wait = (
            [float(row[name]) for row in own] for name in ("loop_secs", "bare_secs", "input_wait")
        )
        overhead = statistics.median(loop) / statistics.median(bare) - 1
        lines.append(
            f"| {tpu_name} | {network}, {length}, {batch} | {precision} | {_range(loop)} | "
            f"{_range(bare)} | {overhead:+.1%} | {statistics.median(wait):.1%} |"
        )
    return "\n".join(lines)


def _settings(row):
    return tuple(str(row[name]) for name in SETTINGS)


def _range(secs):
    return f"{statistics.median(secs):.4g} ({min(secs):.4g} to {max(secs):.4g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tpu_name", default="rehearse:1", help=f"run on {devices.ALLOWED}")
    parser.add_argument("--network", default="base", choices=PRESETS, help="train this preset")
    parser.add_argument("--length", type=int, default=128, help="set the tokens of an example")
    parser.add_argument("--batch", type=int, default=4, help="set the examples of a global batch")
    parser.add_argument(
        "--precision",
        default="float32",
        choices=PRECISIONS,
        help="compute in this precision",
    )
    parser.add_argument("--steps", type=int, default=8, help="set the steps of a loop")
    parser.add_argument("--rounds", type=int, default=5, help="time each of the two this often")
    parser.add_argument("--results", default=RESULTS, help="keep the rows in this CSV file")
    arguments = parser.parse_args()
    if not _KEEPS_MEMORY.items() <= os.environ.items():  # glibc reads them when a process starts
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **_KEEPS_MEMORY})
    tf.logging.set_verbosity(tf.logging.INFO)
    cores = devices.find(arguments.tpu_name)
    with tempfile.TemporaryDirectory() as directory:
        estimator, input_fn = pretraining_job(arguments, directory)
        rounds = measure(estimator, input_fn, cores, arguments.steps, arguments.rounds)
    settings = {name: getattr(arguments, name) for name in SETTINGS}
    versions = {
        "load": f"{os.getloadavg()[1]:.1f}",
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "jax": devices.import_jax().__version__,
        "machine": f"{len(cores)} x {cores[0].device_kind}, {main_job.machine()}",
    }
    kept = csv_rows.read(arguments.results)
    rows = [row for row in kept if _settings(row) != _settings(settings)]
    for number, measured in enumerate(rounds, 1):
        rounded = {name: f"{value:.5g}" for name, value in measured.items()}
        rows.append({**settings, "round": number, **rounded, **versions})
    csv_rows.write(arguments.results, COLUMNS, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
