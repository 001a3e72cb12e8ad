"""The main job over seeds and precisions: the table "The main job" of docs/results.md.

    python -m benchmarks.main_job

This runs `run_pretraining.py --use_tpu` for seeds 1, 2 and 3 in bfloat16 and in float32, one run at
a time, in a process and a directory of its own. It writes results/main_job.csv, and skips runs that
have a row there. On two cores it takes about a quarter of an hour.
"""

import argparse
import itertools
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks import csv_rows

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "benchmarks", "results", "main_job.csv")
COLUMNS = [
    "precision", "seed", "train_secs", "start", "masked_lm_loss", "unigram", "masked_lm_accuracy",
    "next_sentence_accuracy", "wait_share", "python", "tensorflow", "machine",
]  # fmt: skip


def run(precision: str, seed: int) -> dict[str, Any]:
    """Runs the script once; returns the columns of its results."""
    with tempfile.TemporaryDirectory() as directory:
        command = [
            sys.executable, os.path.join(ROOT, "run_pretraining.py"), "--use_tpu",
            f"--precision={precision}", f"--random_seed={seed}", f"--output_dir={directory}",
        ]  # fmt: skip
        done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        print(done.stdout, flush=True)
        with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as reader:
            records = [json.loads(line) for line in reader]
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as reader:
            versions = json.load(reader)["versions"]
    first, *_, last = (record for record in records if "eval_loss" in record)
    return {
        "train_secs": int(re.search(r"Training took (\d+) s", done.stdout).group(1)),
        "start": round(first["eval_masked_lm_loss"], 4),
        "masked_lm_loss": round(last["eval_masked_lm_loss"], 4),
        "unigram": round(last["eval_unigram_baseline"], 4),
        "masked_lm_accuracy": round(last["eval_masked_lm_accuracy"], 4),
        "next_sentence_accuracy": round(last["eval_next_sentence_accuracy"], 4),
        "wait_share": round(wait_share(records), 5),
        "python": versions["python"],
        "tensorflow": versions["tensorflow"],
        "machine": machine(),
    }


def wait_share(records: list[dict[str, Any]]) -> float:
    """Returns the share of the training's time, without its first steps, that waited for input."""
    steps = [record for record in records if "input_wait" in record]
    secs = waited = 0.0
    for before, record in itertools.pairwise(steps):
        of_steps = (record["step"] - before["step"]) / record["steps_per_sec"]
        secs, waited = secs + of_steps, waited + of_steps * record["input_wait"]
    return waited / secs


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the table: a line over the seeds for each precision."""
    table_rows = []
    for (precision,), own in sorted(csv_rows.by_keys(rows, "precision").items()):
        starts, unigrams, ends, secs = (
            csv_rows.numbers(own, name)
            for name in ("start", "unigram", "masked_lm_loss", "train_secs")
        )
        below = [unigram - end for unigram, end in zip(unigrams, ends, strict=True)]
        medians = (f"{statistics.median(values):.2f}" for values in (starts, unigrams))
        least = f"at least {math.floor(min(below) * 100) / 100:.2f}"
        ends, secs = csv_rows.spread(ends), csv_rows.span(secs)
        table_rows.append([precision, len(own), *medians, ends, least, secs])
    return csv_rows.markdown(
        "precision | seeds | start | unigram baseline | end: median (min to max) | below | s",
        table_rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="run these")
    parser.add_argument("--results", default=RESULTS, help="keep the rows in this CSV file")
    arguments = parser.parse_args()
    results = csv_rows.Results(arguments.results, COLUMNS, 2)
    for key in itertools.product(("bfloat16", "float32"), arguments.seeds):
        results.row(key, run)
    rows = results.rows
    print(table(rows))
    waits = [100 * float(row["wait_share"]) for row in rows if row.get("wait_share")]
    if waits:
        print(f"Training waited for input for {max(waits):.2f} % of its time at most.")
    missed = [row for row in rows if not keeps_promises(row)]
    if missed:
        sys.exit(f"{len(missed)} runs break the promises of the main job: {missed}")


def keeps_promises(row: dict[str, Any]) -> bool:
    """Returns whether a run ended 0.3 nat below the baseline and 1 below its start in 3 minutes."""
    end = float(row["masked_lm_loss"])
    return (
        end <= float(row["unigram"]) - 0.3
        and end <= float(row["start"]) - 1.0
        and float(row["train_secs"]) <= 180
    )


def machine() -> str:
    """Describes this machine, on which the figures are measured."""
    name = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as reader:
            names = re.findall(r"model name\s*: (.*)", reader.read())
            name = names[0] if names else name
    return f"{os.cpu_count()} cores, {name}"


if __name__ == "__main__":
    main()
