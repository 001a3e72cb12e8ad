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
import math
import os
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import cores, csv_rows, tpu_plan
from bert_estimator.bert_config import BertConfig

CSV = os.path.join(cores.ROOT, "benchmarks", "results", "tpu_memory.csv")
COLUMNS = [
    "topology", "network", "length", "variant", "batch_per_core", "fits", "total", "usable",
    "weights", "optimizer_state", "temporaries", "compiler", "secs",
]  # fmt: skip
NUM_KEYS = 5

NETWORKS = ("base", "large")
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
TOPOLOGIES = ("v2:2x2", "v3:2x2")
TPU_CORES = 8  # in each of the topologies
CANDIDATES = sorted({m << e for m in range(4, 8) for e in range(10)} | set(range(1, 4)))


def flags_of(variant: str) -> list[str]:
    return VARIANTS.get(variant) or ["--precision=bfloat16", *REMEDIES[variant]]


def compile_step(
    topology: str, network: str, length: int, variant: str, batch: int
) -> tuple[dict[str, Any], float]:
    """Compiles a step; returns (the report, the seconds of the compilation)."""
    with tempfile.TemporaryDirectory() as directory:
        config = os.path.join(directory, "bert_config.json")
        with open(config, "w", encoding="utf-8") as writer:
            json.dump(BertConfig.preset(network, 30522).to_dict(), writer)
        start = time.perf_counter()
        report = tpu_plan.compile_only(
            directory, f"--tpu_topology={topology}", f"--bert_config_file={config}",
            "--optimizer=lamb", f"--max_seq_length={length}",
            f"--max_predictions_per_seq={PREDICTIONS[length]}",
            f"--train_batch_size={batch * TPU_CORES}", "--num_train_steps=1000",
            "--num_warmup_steps=100", *flags_of(variant),
        )  # fmt: skip
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


def bounds(tried: Sequence[dict[str, str]]) -> tuple[int, list[int]]:
    """Returns the largest batch of a core that fits, and larger batches that may fit."""
    batches = {fits: [] for fits in ("True", "False")}
    for row in tried:
        batches[row["fits"]].append(int(row["batch_per_core"]))
    fit, beyond = max(batches["True"], default=0), min(batches["False"], default=math.inf)
    return fit, [batch for batch in CANDIDATES if fit < batch < beyond]


def largest(tried: Sequence[dict[str, str]]) -> str:
    """Returns the largest batch known to fit, with a + if a larger batch may fit; empty without
    rows."""
    fit, between = bounds(tried)
    return f"{fit}{'+' if between else ''}" if tried else ""


def table(results: csv_rows.Results) -> str:
    """Returns docs/results.md's table of the largest batches of a core."""
    return csv_rows.markdown(
        "network, length | " + " | ".join(f"v2, {v} | v3, {v}" for v in VARIANTS),
        (
            [f"{network}, {length}"]
            + [
                largest(results.find(topology, network, length, variant))
                for variant, topology in itertools.product(VARIANTS, TOPOLOGIES)
            ]
            for network, length in itertools.product(NETWORKS, PREDICTIONS)
        ),
    )


def remedies_table(results: csv_rows.Results) -> str:
    """Returns docs/results.md's table of the options that save memory, for the second stage."""
    topology, network, length, batch = STAGE_2
    rows = [r for v in REMEDIES for r in results.find(topology, network, length, v, batch)]
    names = ("variant", "weights", "optimizer_state", "temporaries", "total")
    return csv_rows.markdown(
        "BERT-Large, 512 tokens, 16 a core | weights | optimizer state "
        "| activations and temporaries | total, GiB | fits v3",
        ([*(r[n] for n in names), "yes" if r["fits"] == "True" else "no"] for r in rows),
    )


def search(results: csv_rows.Results, step: tuple[str, int, str]) -> None:
    """Finds the largest batch of (network, length, variant) on each TPU in turn, by bisection."""
    for topology in TOPOLOGIES:
        while between := bounds(results.find(topology, *step))[1]:
            results.row((topology, *step, between[len(between) // 2]), measure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print the tables, and stop")
    arguments = parser.parse_args()
    results = csv_rows.Results(CSV, COLUMNS, NUM_KEYS)
    if not arguments.table:
        topology, network, length, batch = STAGE_2
        cells = [(topology, network, length, variant, batch) for variant in REMEDIES]
        cells.append(SAME_AS_IN_A_POD)
        jobs = [functools.partial(results.row, cell, measure) for cell in cells]
        jobs += [functools.partial(search, results, step) for step in STEPS]
        cores.side_by_side(jobs)
    print(remedies_table(results), table(results), sep="\n\n")


if __name__ == "__main__":
    main()
