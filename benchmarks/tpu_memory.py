"""Finds what fits on a TPU by its compiler: the tables "Memory of a core".

    python -m benchmarks.tpu_memory

This compiles BERT-Large's training step with each option that saves memory. Then it searches the
largest batch of a core on v2 and v3 for several networks, lengths and precisions. Each compilation
is a process of `run_pretraining.py --compile_only`, and as many as the machine has cores run at the
same time. It does not need a TPU, and takes hours. Every compilation adds a row to
results/tpu_memory.csv, and compilations with a row are skipped, so the search can be stopped and
started again at any time. --table prints the tables of all rows.

The batches have at most three significant bits: 1 to 8, 10, 12, 14, 16, 20, 24, 28, ...
"""

import argparse
import csv
import functools
import itertools
import json
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import cores, tpu_plan

CSV = os.path.join(cores.ROOT, "benchmarks", "results", "tpu_memory.csv")
COLUMNS = [
    "topology", "network", "length", "variant", "batch_per_core", "fits", "total", "usable",
    "weights", "optimizer_state", "temporaries", "compiler", "secs",
]  # fmt: skip

NETWORKS = {
    "base": dict(),
    "large": dict(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    ),
}
PREDICTIONS = {128: 20, 512: 77}
VARIANTS = {
    "bfloat16": ["--precision=bfloat16"],
    "float32": ["--precision=float32"],
    "bfloat16, recompute": ["--precision=bfloat16", "--recompute"],
}
# This is the 76-minute run's first stage on four chips. The memory of a core does not depend on the
# number of cores, as benchmarks/results/tpu_plan/ shows for the whole pod.
SAME_AS_IN_A_POD = ("v3:2x2", "large", 128, "bfloat16", 32)

# Options that save memory, each by itself, in the step of the recipe's second stage.
STAGE_2 = ("v3:2x2", "large", 512, 16)
REMEDIES = {
    "bfloat16": [],
    "float32": [],
    "--bfloat16_first_moments": ["--bfloat16_first_moments"],
    "--optimizer=adafactor": ["--optimizer=adafactor"],
    "--micro_batch_size=4": ["--micro_batch_size=4"],
    "bfloat16, recompute": [],
}

STEPS = list(itertools.product(NETWORKS, PREDICTIONS, VARIANTS))
TOPOLOGIES = ("v3:2x2", "v2:2x2")
TPU_CORES = 8  # in each of the topologies
# A search begins with a batch that does not fit, since the compiler refuses it in half a minute.
FIRST_GUESS = {("base", 128): 1024, ("base", 512): 256, ("large", 128): 512, ("large", 512): 128}
CANDIDATES = sorted({m << e for m in range(4, 8) for e in range(10)} | set(range(1, 4)))
USABLE = {"v2:2x2": 7.5, "v3:2x2": 15.5}  # GiB, only for the first guess


def flags_of(variant: str) -> list[str]:
    return VARIANTS.get(variant) or ["--precision=bfloat16", *REMEDIES[variant]]


def compile_step(
    topology: str, network: str, length: int, variant: str, batch: int
) -> tuple[dict[str, Any], float]:
    """Compiles a step; returns (the report, the seconds of the compilation)."""
    with tempfile.TemporaryDirectory() as directory:
        config = os.path.join(directory, "bert_config.json")
        with open(config, "w", encoding="utf-8") as writer:
            json.dump({"vocab_size": 30522, **NETWORKS[network]}, writer)
        start = time.perf_counter()
        report = tpu_plan.compile_only(
            directory,
            f"--tpu_topology={topology}",
            f"--bert_config_file={config}",
            "--optimizer=lamb",
            f"--max_seq_length={length}",
            f"--max_predictions_per_seq={PREDICTIONS[length]}",
            f"--train_batch_size={batch * TPU_CORES}",
            "--num_train_steps=1000",
            "--num_warmup_steps=100",
            *flags_of(variant),
        )
        return report("compile_report.json"), time.perf_counter() - start


def row_of(cell: Sequence[Any], report: dict[str, Any], secs: float) -> dict[str, Any]:
    """Returns the CSV's row of a compilation."""
    memory = report["memory"]
    sizes = {k: f"{memory[k] / 2**30:.3f}" for k in COLUMNS if k in memory}
    return {
        **dict(zip(COLUMNS, cell, strict=False)),
        **{"fits": report["fits"], "usable": f"{report['usable_hbm'] / 2**30:.3f}"},
        **{"compiler": report["compiler"], "secs": round(secs)},
        **sizes,
    }


def next_batch(
    tried: Sequence[dict[str, str]],
    elsewhere: Sequence[dict[str, str]] = (),
    usable: float | None = None,
    first: int | None = None,
) -> int | None:
    """Returns the next batch of a core to try, or None if the largest batch is known.

    Args:
      tried: rows of one cell.
      elsewhere: rows of the same step on another TPU, for the first guess.
      usable: usable GiB of a core of this cell's TPU; needed with `elsewhere`.
      first: the first guess if there are no rows.
    """
    fit = max((int(r["batch_per_core"]) for r in tried if r["fits"] == "True"), default=0)
    beyond = [int(r["batch_per_core"]) for r in tried if r["fits"] == "False"]
    between = [n for n in CANDIDATES if fit < n < min(beyond, default=CANDIDATES[-1] + 1)]
    if not between:
        return None
    usable = float(tried[0]["usable"]) if tried else usable
    # A batch that does not fit tells most: the compiler has then saved as much as it can, and all
    # memory but weights and state grows with the batch. A batch that fits may take all the memory.
    too_much = [r for r in [*tried, *elsewhere] if r["fits"] == "False"]
    if too_much:
        near = min(too_much, key=lambda r: abs(float(r["total"]) - usable))
        fixed = float(near["weights"]) + float(near["optimizer_state"])
        guess = int(near["batch_per_core"]) * (usable - fixed) / (float(near["total"]) - fixed)
    else:
        guess = 2 * fit or first
    return min(between, key=lambda n: abs(n - guess))


def largest(tried: Sequence[dict[str, str]]) -> str:
    """Returns the largest batch known to fit, with a + if a larger batch may fit.

    Without rows, it returns an empty text.
    """
    if not tried:
        return ""
    fit = max((int(r["batch_per_core"]) for r in tried if r["fits"] == "True"), default=0)
    return f"{fit}" if next_batch(tried) is None else f"{fit}+"


def rows_of(rows: list[dict[str, str]], cell: Sequence[Any]) -> list[dict[str, str]]:
    keys = COLUMNS[: len(cell)]
    return [r for r in rows if [r[k] for k in keys] == [str(value) for value in cell]]


def table(rows: list[dict[str, str]]) -> str:
    """Returns docs/results.md's table of the largest batches of a core."""
    lines = [
        "| network, length | " + " | ".join(f"v2, {v} | v3, {v}" for v in VARIANTS) + " |",
        "|---|" + "---|" * 2 * len(VARIANTS),
    ]
    for network, length in itertools.product(NETWORKS, PREDICTIONS):
        batches = [
            largest(rows_of(rows, (topology, network, length, variant)))
            for variant in VARIANTS
            for topology in ("v2:2x2", "v3:2x2")
        ]
        lines.append(f"| {network}, {length} | " + " | ".join(batches) + " |")
    return "\n".join(lines)


def remedies_table(rows: list[dict[str, str]]) -> str:
    """Returns docs/results.md's table of the options that save memory, for the second stage."""
    topology, network, length, batch = STAGE_2
    lines = [
        "| BERT-Large, 512 tokens, 16 a core | weights | optimizer state "
        "| activations and temporaries | total, GiB | fits v3 |",
        "|---|---|---|---|---|---|",
    ]
    for variant in REMEDIES:
        for row in rows_of(rows, (topology, network, length, variant, batch)):
            sizes = (row[k] for k in ("weights", "optimizer_state", "temporaries", "total"))
            fits = "yes" if row["fits"] == "True" else "no"
            lines.append(f"| {variant} | " + " | ".join([*sizes, fits]) + " |")
    return "\n".join(lines)


class Compilations:
    """Holds the table of finished compilations, and makes further ones; threads may share it.

    Args:
      path: the CSV file; its rows are kept.
    """

    def __init__(self, path: str):
        self.rows = []
        self._path = path
        self._lock = threading.Lock()
        if os.path.exists(path):
            with open(path, newline="", encoding="utf-8") as reader:
                self.rows = list(csv.DictReader(reader))

    def add(self, cell: Sequence[Any]) -> None:
        """Compiles a cell, unless the table has it."""
        if rows_of(self.rows, cell):
            return
        report, secs = compile_step(*cell)
        row = {k: str(v) for k, v in row_of(cell, report, secs).items()}
        with self._lock:
            self.rows.append(row)
            is_new = not os.path.exists(self._path)
            with open(self._path, "a", newline="", encoding="utf-8") as writer:
                csv_writer = csv.DictWriter(writer, COLUMNS, lineterminator="\n")
                if is_new:
                    csv_writer.writeheader()
                csv_writer.writerow(row)

    def search(self, step: tuple[str, int, str]) -> None:
        """Finds the largest batch of (network, length, variant) on each TPU in turn."""
        for topology in TOPOLOGIES:
            cell = (topology, *step)
            start = dict(
                elsewhere=[r for other in TOPOLOGIES for r in rows_of(self.rows, (other, *step))],
                usable=USABLE[topology],
                first=FIRST_GUESS[step[:2]],
            )
            while (batch := next_batch(rows_of(self.rows, cell), **start)) is not None:
                self.add((*cell, batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print the tables, and stop")
    arguments = parser.parse_args()
    compilations = Compilations(CSV)
    if not arguments.table:
        topology, network, length, batch = STAGE_2
        cells = [(topology, network, length, variant, batch) for variant in REMEDIES]
        jobs = [functools.partial(compilations.add, cell) for cell in [SAME_AS_IN_A_POD, *cells]]
        jobs += [functools.partial(compilations.search, step) for step in STEPS]
        cores.side_by_side(jobs)
    print(remedies_table(compilations.rows), table(compilations.rows), sep="\n\n")


if __name__ == "__main__":
    main()
