"""How fast a CPU trains BERT: this project, and Hugging Face on torch.

    python -m benchmarks.training_speed

For each network, length and precision this runs `run_pretraining.py` and the same work in torch, in
turn, each time in a process of its own, for several rounds; of a side's rounds the best counts. In
the same rounds TensorFlow and torch time the step's matrix products alone: a step of nothing else
is the roofline. The last line is JSON, of which the first keys are about the last network at the
first length in the last precision.

TRANSFORMERS_PYTHON names a Python with torch and transformers; without it, these sides are left
out. All get the same batches of the embedded corpus, dropout 0.1, and clipping by the global norm;
only the masked positions go through the vocabulary's matrix. This project updates with LAMB, torch
with AdamW. The examples have the lengths that the documents give; with --packed, this project also
packs them into rows, as many as a batch needs, and with --use_tpu as many as the fullest batch
needs; and torch also gets them joined and cut into full rows, in which texts see each other. Every
measurement is a row of results/training_speed.csv, and replaces the rows of an earlier run with the
same settings. BERT-base at both lengths takes more than an hour on two cores. To try it:

    python -m benchmarks.training_speed --networks tiny --lengths 32 --tokens 64 --steps 2 \\
        --rounds 1 --results /tmp/training_speed.csv
"""

import argparse
import functools
import glob
import itertools
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import csv_rows, main_job, matrix_products, torch_bert
from bert_estimator.bert_config import PRESETS, BertConfig
from bert_estimator.command_line.choices import PRECISIONS

RESULTS = os.path.join(main_job.ROOT, "benchmarks", "results", "training_speed.csv")
SETTINGS = ["network", "length", "batch", "precision"]
COLUMNS = [
    *SETTINGS, "side", "round", "secs", "cpu_secs", "peak_gib", "first_step_secs", "wait_share",
    "load", "machine", "mean_tokens",
]  # fmt: skip
_VOCAB_SIZE = 30522
_WARMUP_LOOPS, _LOOPS = 1, 3
_BATCHES = 4  # different batches, of which torch's steps take one after the other


class KilledError(SystemExit):
    """A command was killed by SIGKILL; the text names the command."""


class Process:
    """Runs a command to its end.

    Attributes:
      output: its stdout.
      started: when it started, as `time.perf_counter()` says.
      peak_gib: the most memory that it used.

    Raises:
      KilledError: it was killed, as Linux does if memory runs out.
      SystemExit: it failed; the text has the end of its stderr.
    """

    def __init__(self, command: Sequence[str], watch=lambda pid: None):
        """Starts it; while it runs, `watch` is called with its id some fifty times a second."""
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            self.started = time.perf_counter()
            process = subprocess.Popen(command, cwd=main_job.ROOT, env=env, stdout=out, stderr=err)
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                watch(process.pid)
                time.sleep(0.02)
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            self.output = out.read()
            if process.returncode:
                error = KilledError if process.returncode == -signal.SIGKILL else SystemExit
                end = err.read()[-4000:].strip()
                raise error(f"{end}\n{command} ended with {process.returncode}")
        self.peak_gib = usage.ru_maxrss / 2**20  # Linux counts KiB.


class Cell:
    """A network, a length and a batch, with its data in a directory, as every side reads them.

    Attributes:
      flags: the script's flags for them.
      mean_tokens: tokens of an example in the mean, without padding.
    """

    def __init__(self, directory: str, network: str, length: int, batch: int):
        self.directory, self.network, self.length, self.batch = directory, network, length, batch
        self.predictions = math.ceil(0.15 * length)
        self.sizes = BertConfig.preset(network, _VOCAB_SIZE).to_dict()
        self.config, self.records = (
            os.path.join(directory, name) for name in ("bert_config.json", "records")
        )
        self.flags = [
            f"--input_file={self.records}", f"--bert_config_file={self.config}",
            f"--max_seq_length={length}", f"--max_predictions_per_seq={self.predictions}",
            f"--train_batch_size={batch}",
        ]  # fmt: skip
        # TensorFlow's threads and memory are in a process that has ended when others are timed.
        code = (
            "import sys; from benchmarks import training_speed as speed; "
            "speed.write_data(*sys.argv[1:3], *map(int, sys.argv[3:]))"
        )
        numbers = [self.length, self.predictions, self.batch]
        os.makedirs(self.directory)
        Process([sys.executable, "-c", code, self.directory, self.records, *map(str, numbers)])
        for name, value in (
            (self.config, self.sizes),
            (os.path.join(self.directory, "benchmark.json"), {"bert_config": self.sizes}),
        ):
            with open(name, "w", encoding="utf-8") as writer:
                json.dump(value, writer)
        (manifest,) = glob.glob(os.path.join(self.directory, "data", "manifest.train*.json"))
        with open(manifest, encoding="utf-8") as reader:
            self.mean_tokens = json.load(reader)["corpus"]["record_lengths"]["mean"]

    def ours(self, precision: str, steps: int, *flags: str) -> dict[str, float]:
        """Runs the script; loops have this many steps, and the mean of all after the first ones
        counts, as on the other sides."""
        loops = []
        with tempfile.TemporaryDirectory(dir=self.directory) as folder:
            metrics = os.path.join(folder, "metrics.jsonl")

            def watch(pid):
                number = _num_lines(metrics)
                if number > len(loops):
                    loops.append((number, time.perf_counter(), _cpu_secs_of(pid)))

            command = [
                sys.executable, os.path.join(main_job.ROOT, "run_pretraining.py"), *flags,
                "--do_train", f"--precision={precision}", "--optimizer=lamb",
                *self.flags, f"--output_dir={folder}", f"--iterations_per_loop={steps}",
                f"--num_train_steps={(_WARMUP_LOOPS + _LOOPS) * steps}", "--num_warmup_steps=0",
            ]  # fmt: skip
            process = Process(command, watch)
            with open(metrics, encoding="utf-8") as reader:
                records = [json.loads(line) for line in reader]
        timed = [record for record in records if record["step"] > _WARMUP_LOOPS * steps]
        secs = statistics.mean(1 / record["steps_per_sec"] for record in timed)
        (start, started, cpu_start), (end, _, cpu_end) = loops[0], loops[-1]
        start, end = (records[lines - 1]["step"] for lines in (start, end))
        first = started - process.started - (start - 1) * secs
        return {
            "secs": secs,
            "cpu_secs": (cpu_end - cpu_start) / max(end - start, 1),
            "peak_gib": process.peak_gib,
            "first_step_secs": first,
            "wait_share": statistics.median(record.get("input_wait", 0) for record in timed),
        }

    def other(self, command: Sequence[str]) -> dict[str, float]:
        """Runs a side that prints the `secs` and `cpu_secs` of a step as JSON."""
        process = Process(command)
        times = json.loads(process.output.splitlines()[-1])
        return {**{k: times[k] for k in ("secs", "cpu_secs")}, "peak_gib": process.peak_gib}

    def roofline(self, python: str, library: str, precision: str) -> dict[str, float]:
        """Times the products of a step; `secs` is a step of nothing else."""
        sizes = [str(number) for number in (self.batch, self.length, self.predictions)]
        command = [python, "-m", "benchmarks.matrix_products", library, self.config, *sizes]
        process = Process([*command, precision])
        counts = matrix_products.products(self.sizes, self.batch, self.length, self.predictions)
        secs = json.loads(process.output.splitlines()[-1])
        return {"secs": matrix_products.step_secs(counts, secs)}

    def sides(self, precision: str, steps: int, is_packed: bool = False) -> dict[str, Any]:
        """Returns a dict of a side's name -> the function that measures it; if `is_packed`, packed
        and joined rows are sides, too."""

        def ours(*flags):
            return lambda: self.ours(precision, steps, *flags)

        def roofline(python, library):
            return lambda: self.roofline(python, library, precision)

        sides = {"ours": ours("--use_tpu")}
        sides["products by TensorFlow"] = roofline(sys.executable, "tensorflow")
        if is_packed:
            sides["ours, packed"] = ours("--pack")
            sides["ours, packed, --use_tpu"] = ours("--pack", "--use_tpu")
        if torch := os.environ.get("TRANSFORMERS_PYTHON"):
            sides["products by torch"] = roofline(torch, "torch")
            command = [torch, "-m", "benchmarks.torch_bert", self.directory, str(_LOOPS * steps)]
            rows = {"padded": "", **({"joined": ", joined"} if is_packed else {})}
            for variant, (kind, name) in itertools.product(
                torch_bert.VARIANTS[precision], rows.items()
            ):
                other = functools.partial(self.other, [*command, variant, kind])
                sides[f"Hugging Face, {variant}{name}"] = other
        return sides


def write_data(directory: str, records: str, length: int, predictions: int, batch: int) -> None:
    """Writes records of the embedded corpus, and some batches of them as batches.npz."""
    import numpy as np
    import tensorflow as tf

    from input_pipelines.embedded import default_data
    from input_pipelines.records import pretraining_input

    data = default_data.make(
        os.path.join(directory, "data"), 2000, length, predictions, 1, seed=1, masking="static"
    )
    # The records leave their manifest, which says that the vocabulary has 2000 pieces.
    os.rename(data.train_files[0], records)
    input_fn = pretraining_input.input_fn_builder([records], length, predictions, is_training=True)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        features = tf.compat.v1.data.make_one_shot_iterator(
            input_fn({"batch_size": batch})
        ).get_next()
        batches = [session.run(features) for _ in range(_BATCHES)]
    arrays = {name: np.stack([each[name] for each in batches]) for name in batches[0]}
    np.savez(os.path.join(directory, "batches.npz"), **arrays)


def _num_lines(path):
    if not os.path.exists(path):
        return 0
    with open(path, "rb") as reader:
        return reader.read().count(b"\n")


def _cpu_secs_of(pid):
    """Returns the seconds of processors that a process has used; 0 if it has just ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as reader:
            fields = reader.read().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns what the rows of one cell in one precision say of our fastest round. Ratios are of
    rates; Hugging Face's is of its fastest variant, and None if none was measured."""
    ours = min((row for row in rows if row["side"] == "ours"), key=lambda row: float(row["secs"]))
    secs = float(ours["secs"])

    def ratio(side):
        others = [float(row["secs"]) for row in rows if row["side"].startswith(side)]
        return round(min(others) / secs, 3) if others else None

    return {
        **{name: rows[0][name] for name in SETTINGS},
        "examples_per_second": round(float(rows[0]["batch"]) / secs, 3),
        "roofline_share": ratio("products by TensorFlow"),
        "ratio_to_huggingface": ratio("Hugging Face"),
        "wait_share": float(ours["wait_share"]),
        "first_step_seconds": float(ours["first_step_secs"]),
        "peak_gib": float(ours["peak_gib"]),
        "cpu_seconds": float(ours["cpu_secs"]),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns a table with a line for each side of each cell and precision."""
    table_rows = []
    for values, own in csv_rows.by_keys(rows, *SETTINGS, "side").items():
        network, length, batch, precision, side = values
        secs = [float(row["secs"]) for row in own]
        rate, tokens = int(batch) / min(secs), own[0]["mean_tokens"]  # earlier rows lack it
        table_rows.append([
            f"{network}, {length}, {batch}", precision, side,
            f"{min(secs):.3g} ({max(secs):.3g})", f"{rate:.3g}",
            f"{rate * float(tokens):.4g}" if tokens else "",
        ])  # fmt: skip
        for column in ("cpu_secs", "peak_gib", "first_step_secs"):
            figures = (f"{float(row[column]):.3g}" for row in own if row[column])
            table_rows[-1].append(min(figures, key=float, default=""))
    return csv_rows.markdown(
        "network, length, batch | precision | side | s a step: best (worst) | examples/s | "
        "tokens/s, without padding | CPU s a step | GiB | first step, s",
        table_rows,
    )


def measure(arguments: argparse.Namespace, directory: str) -> list[dict[str, Any]]:
    """Measures all sides of all cells, round by round; returns the rows."""
    rows = []
    for network, length in itertools.product(arguments.networks, arguments.lengths):
        cell_directory = os.path.join(directory, f"{network}_{length}")
        cell = Cell(cell_directory, network, length, max(1, arguments.tokens // length))
        steps = arguments.steps or (25 if network in ("tiny", "mini") else 2)
        for number, precision in itertools.product(
            range(1, arguments.rounds + 1), arguments.precisions
        ):
            for side, measured in cell.sides(precision, steps, arguments.packed).items():
                values = (network, length, cell.batch, precision)
                row = dict.fromkeys(COLUMNS, "") | dict(zip(SETTINGS, values, strict=True))
                try:
                    row |= {name: f"{value:.5g}" for name, value in measured().items()}
                except KilledError:
                    if side == "ours":  # which the summary is about
                        raise
                    print(f"{values} {side}, round {number}: killed; no memory?", flush=True)
                    continue
                row |= {"side": side, "round": number, "load": f"{os.getloadavg()[0]:.1f}"}
                row["mean_tokens"] = f"{cell.mean_tokens:.4g}"
                row["machine"] = f"{main_job.machine()}, Python {platform.python_version()}"
                rows.append(row)
                write(arguments.results, rows)  # one side that fails costs no others
                print(f"{values} {side}, round {number}: {row['secs']} s", flush=True)
    return rows


def write(path: str, rows: Sequence[dict[str, Any]]) -> None:
    """Adds rows to a file; they replace the rows with the same settings."""
    measured = {_settings(row) for row in rows}
    kept = [row for row in csv_rows.read(path) if _settings(row) not in measured]
    csv_rows.write(path, COLUMNS, [*kept, *rows])


def _settings(row):
    return tuple(str(row[name]) for name in SETTINGS)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--networks", nargs="+", default=["tiny", "base"], choices=PRESETS, help="train these")
    add("--lengths", type=int, nargs="+", default=[128, 512], help="set the tokens of an example")
    add("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS, help="compute in these")
    add("--tokens", type=int, default=4096, help="set the tokens of a batch")
    add("--steps", type=int, help="set the steps of a loop, by default 25 or 2")
    add("--packed", action="store_true", help="measure packed rows, too")
    add("--rounds", type=int, default=3, help="measure every side this often")
    add("--results", default=RESULTS, help="keep the rows in this CSV file")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        rows = measure(arguments, directory)
    print(table(rows))
    summaries = [summary(own) for own in csv_rows.by_keys(rows, *SETTINGS).values()]
    wanted = (arguments.networks[-1], arguments.lengths[0], arguments.precisions[-1])
    (headline,) = (s for s in summaries if (s["network"], s["length"], s["precision"]) == wanted)
    print(json.dumps({**headline, "cells": summaries}))


if __name__ == "__main__":
    main()
