"""Compiles both stages of the 76-minute recipe, for the paper's pod and for today's TPUs.

    python -m benchmarks.tpu_plan

This runs `run_pretraining.py --use_tpu --recipe=lamb_76min --compile_only` for each stage on each
topology, six to fifteen minutes each on one core, and copies the reports into results/tpu_plan/.
Stages with a report are skipped. The second stage is also compiled for packed rows of records that
are not full. It does not need a TPU. It prints the table of docs/results.md; --table prints the
table of the reports that are there.
"""

import argparse
import functools
import itertools
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import cores, csv_rows

RESULTS = os.path.join(cores.ROOT, "benchmarks", "results", "tpu_plan")
# Topology -> stage -> the flags that the stage needs to fit. The first topology is the paper's. For
# v5e and v6e, it is the largest slice that Google Cloud rents for one job; for v5p, it has as many
# chips as the paper's pod.
TOPOLOGIES = {
    "v3:32x32": {},
    "v5e:16x16": {2: "--micro_batch_size=8"},
    "v5p:8x8x16": {},
    "v6e:16x16": {},
}
STAGES = (1, 2)
# How full the records of the second stage are: 0.46 in the embedded corpus, about 0.5 in
# Wikipedia (Krell et al., 2021).
FILLS = {"v3:32x32": (None, 0.46, 0.5)}


def path_of(topology: str, stage: int, fill: float | None = None) -> str:
    """Returns the path of the report of a stage; `fill` counts in the second stage alone."""
    packed = f"_fill_{fill}" if fill and stage == 2 else ""
    return os.path.join(RESULTS, f"{topology.replace(':', '_')}_stage_{stage}{packed}.json")


def plans() -> list[tuple[str, float | None]]:
    """Returns (topology, how full records are, or None for full ones) of each line of the table."""
    return [(topology, fill) for topology in TOPOLOGIES for fill in FILLS.get(topology, (None,))]


def compile_only(directory: str, *flags: str) -> Callable[[str], dict[str, Any]]:
    """Runs `run_pretraining.py --compile_only`; returns a function that reads the report at a path
    in the directory, or exits with the script's errors if there is no report."""
    command = [sys.executable, os.path.join(cores.ROOT, "run_pretraining.py"), "--use_tpu"]
    command += ["--compile_only", f"--output_dir={directory}", *flags]
    done = cores.run(command)
    print(done.stdout, flush=True)

    def report(path):
        path = os.path.join(directory, path)
        if not os.path.exists(path):
            sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")
        with open(path, encoding="utf-8") as reader:
            return json.load(reader)

    return report


def compile_stage(topology: str, fill: float | None, stage: int) -> None:
    """Compiles a stage for a topology and keeps its report."""
    flags = ["--recipe=lamb_76min", f"--stage={stage}", f"--tpu_topology={topology}"]
    flags += TOPOLOGIES[topology].get(stage, "").split()
    flags += [f"--fill={fill}"] if fill else []
    with tempfile.TemporaryDirectory() as directory:
        report = compile_only(directory, *flags)(f"stage_{stage}/compile_report.json")
    os.makedirs(RESULTS, exist_ok=True)
    with open(path_of(topology, stage, fill), "w", encoding="utf-8") as writer:
        writer.write(json.dumps(report, indent=2) + "\n")


def reports_of(topology: str, fill: float | None = None) -> list[dict[str, Any]] | None:
    """Returns the reports of both stages, or None if one is missing."""
    paths = [path_of(topology, stage, fill) for stage in STAGES]
    if not all(map(os.path.exists, paths)):
        return None
    return [json.loads(pathlib.Path(path).read_text(encoding="utf-8")) for path in paths]


def table(reports_of_plans: Mapping[tuple[str, float | None], Sequence[dict[str, Any]]]) -> str:
    """Returns docs/results.md's table of the reports of both stages by plan."""
    rows = []
    for (topology, fill), reports in reports_of_plans.items():
        sizes = (
            f"{r['memory']['total'] / 2**30:.1f}" + ("" if r["fits"] else ": too much")
            for r in reports
        )
        rows.append([
            topology + (f", records {fill:.0%} full in stage 2" if fill else ""),
            reports[0]["cores"],
            ", ".join(str(report["batch_per_core"]) for report in reports),
            f"{', '.join(sizes)} of {reports[0]['usable_hbm'] / 2**30:.1f}",
            ", ".join(f"stage {n}: `{flags}`" for n, flags in TOPOLOGIES[topology].items()),
        ])  # fmt: skip
        for name in ("least_total_secs", "total_secs_at_share_of_the_paper"):
            fit = all(report["fits"] for report in reports)
            rows[-1].append(f"{sum(r[name] for r in reports) / 60:.1f}" if fit else "")
    return csv_rows.markdown(
        "topology | cores | examples a core, stages 1, 2 | GiB of a core | changed "
        "| minutes, at least | minutes at 28.3 % of peak",
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print the table, and stop")
    arguments = parser.parse_args()
    if not arguments.table:
        cores.side_by_side(
            functools.partial(compile_stage, *plan, stage)
            for plan, stage in itertools.product(plans(), STAGES)
            if not os.path.exists(path_of(plan[0], stage, plan[1])) and (stage == 2 or not plan[1])
        )
    by_plan = {plan: reports_of(*plan) for plan in plans()}
    print(table({plan: reports for plan, reports in by_plan.items() if reports}))


if __name__ == "__main__":
    main()
