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
import functools
import itertools
import json
import os
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import cores, csv_rows, tpu_plan

CSV = os.path.join(cores.ROOT, "benchmarks", "results", "tpu_memory.csv")
COLUMNS = [
    "topology", "network", "length", "variant", "batch_per_core", "fits", "total", "usable",
    "weights", "optimizer_state", "temporaries", "compiler", "secs",
]  # fmt: skip
NUM_KEYS = 5

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


def measure(*cell) -> dict[str, Any]:
    """Compiles a cell, the first columns of a row; returns the other columns."""
    report, secs = compile_step(*cell)
    memory = report["memory"]
    return {
        **{name: f"{memory[name] / 2**30:.3f}" for name in COLUMNS if name in memory},
        **{"fits": report["fits"], "usable": f"{report['usable_hbm'] / 2**30:.3f}"},
        **{"compiler": report["compiler"], "secs": round(secs)},
    }


def next_batch(
    tried: Sequence[dict[str, str]],
    elsewhere: Sequence[dict[str, str]] = (),
    usable: float | None = None,
    first: int | None = None,
) -> int | None:
    """Returns the next batch of a core to try, or None if the largest batch is known.

    The first guess is `first`, or goes by rows of the same step `elsewhere`, on another TPU, and by
    the `usable` GiB of a core here.
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
    """Returns the largest batch known to fit, with a + if a larger batch may fit; empty without
    rows."""
    if not tried:
        return ""
    fit = max((int(r["batch_per_core"]) for r in tried if r["fits"] == "True"), default=0)
    return f"{fit}" if next_batch(tried) is None else f"{fit}+"


def table(results: csv_rows.Results) -> str:
    """Returns docs/results.md's table of the largest batches of a core."""
    lines = [
        "| network, length | " + " | ".join(f"v2, {v} | v3, {v}" for v in VARIANTS) + " |",
        "|---|" + "---|" * 2 * len(VARIANTS),
    ]
    for network, length in itertools.product(NETWORKS, PREDICTIONS):
        batches = [
            largest(results.find(topology, network, length, variant))
            for variant in VARIANTS
            for topology in ("v2:2x2", "v3:2x2")
        ]
        lines.append(f"| {network}, {length} | " + " | ".join(batches) + " |")
    return "\n".join(lines)


def remedies_table(results: csv_rows.Results) -> str:
    """Returns docs/results.md's table of the options that save memory, for the second stage."""
    topology, network, length, batch = STAGE_2
    lines = [
        "| BERT-Large, 512 tokens, 16 a core | weights | optimizer state "
        "| activations and temporaries | total, GiB | fits v3 |",
        "|---|---|---|---|---|---|",
    ]
    for variant in REMEDIES:
        for row in results.find(topology, network, length, variant, batch):
            sizes = (row[k] for k in ("weights", "optimizer_state", "temporaries", "total"))
            fits = "yes" if row["fits"] == "True" else "no"
            lines.append(f"| {variant} | " + " | ".join([*sizes, fits]) + " |")
    return "\n".join(lines)


def search(results: csv_rows.Results, step: tuple[str, int, str]) -> None:
    """Finds the largest batch of (network, length, variant) on each TPU in turn."""
    for topology in TOPOLOGIES:
        start = dict(
            elsewhere=[row for other in TOPOLOGIES for row in results.find(other, *step)],
            usable=USABLE[topology],
            first=FIRST_GUESS[step[:2]],
        )
        while (batch := next_batch(results.find(topology, *step), **start)) is not None:
            results.row((topology, *step, batch), measure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print the tables, and stop")
    arguments = parser.parse_args()
    results = csv_rows.Results(CSV, COLUMNS, NUM_KEYS)
    if not arguments.table:
        topology, network, length, batch = STAGE_2
        cells = [(topology, network, length, variant, batch) for variant in REMEDIES]
        jobs = [
            functools.partial(results.row, cell, measure) for cell in [SAME_AS_IN_A_POD, *cells]
        ]
        jobs += [functools.partial(search, results, step) for step in STEPS]
        cores.side_by_side(jobs)
    print(remedies_table(results), table(results), sep="\n\n")


if __name__ == "__main__":
    main()
