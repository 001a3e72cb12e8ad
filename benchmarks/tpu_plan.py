"""The 76-minute recipe's plan: both stages compiled for the paper's pod, and for TPUs of today.

    python -m benchmarks.tpu_plan

runs `run_pretraining.py --use_tpu --recipe=lamb_76min --compile_only` for each stage on each
topology, six to fifteen minutes each on one core, and copies the reports into results/tpu_plan/.
What is there is not compiled again. It needs no TPU. It prints README.md's table; --table prints
what is there, and compiles nothing.
"""

import argparse
import functools
import itertools
import json
import os
import sys
import tempfile

from benchmarks import cores

RESULTS = os.path.join(cores.ROOT, "benchmarks", "results", "tpu_plan")
# The paper's, and of those that Google Cloud rents the largest slices of one pod for one job, or,
# of v5p, as many chips as the paper had; with what a stage needs there to fit.
TOPOLOGIES = {
    "v3:32x32": {},
    "v5e:16x16": {2: "--micro_batch_size=8"},
    "v5p:8x8x16": {},
    "v6e:16x16": {},
}
STAGES = (1, 2)


def path_of(topology, stage):
    return os.path.join(RESULTS, f"{topology.replace(':', '_')}_stage_{stage}.json")


def compile_only(directory, *flags):
    """Runs `run_pretraining.py --compile_only` with --output_dir=`directory`; prints what it says.

    Returns:
      A function of a report's path in the directory that returns the report, and ends the program
      with what the script said where there is none.
    """
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


def compile_stage(topology, stage):
    """Compiles a stage for a topology and keeps its report."""
    flags = ["--recipe=lamb_76min", f"--stage={stage}", f"--tpu_topology={topology}"]
    flags += TOPOLOGIES[topology].get(stage, "").split()
    with tempfile.TemporaryDirectory() as directory:
        report = compile_only(directory, *flags)(f"stage_{stage}/compile_report.json")
    os.makedirs(RESULTS, exist_ok=True)
    with open(path_of(topology, stage), "w", encoding="utf-8") as writer:
        writer.write(json.dumps(report, indent=2) + "\n")


def reports_of(topology):
    """Returns the reports of both stages, or None."""
    reports = []
    for stage in STAGES:
        if not os.path.exists(path_of(topology, stage)):
            return None
        with open(path_of(topology, stage), encoding="utf-8") as reader:
            reports.append(json.load(reader))
    return reports


def table(topologies):
    """Returns README.md's table.

    Args:
      topologies: dict of topology -> reports of both stages.
    """
    lines = [
        "| topology | cores | examples a core, stages 1, 2 | GiB of a core | changed "
        "| minutes, at least | minutes at 28.3 % of peak |",
        "|---|---|---|---|---|---|---|",
    ]
    for topology, reports in topologies.items():
        cells = [
            topology,
            str(reports[0]["cores"]),
            ", ".join(str(each["batch_per_core"]) for each in reports),
            ", ".join(
                f"{each['memory']['total'] / 2**30:.1f}" + ("" if each["fits"] else ": too much")
                for each in reports
            )
            + f" of {reports[0]['usable_hbm'] / 2**30:.1f}",
            ", ".join(f"stage {n}: `{flags}`" for n, flags in TOPOLOGIES[topology].items()),
        ]
        for name in ("least_total_secs", "total_secs_at_share_of_the_paper"):
            fit = all(each["fits"] for each in reports)
            cells.append(f"{sum(each[name] for each in reports) / 60:.1f}" if fit else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print the table, compile nothing")
    arguments = parser.parse_args()
    if not arguments.table:
        cores.side_by_side(
            functools.partial(compile_stage, topology, stage)
            for topology, stage in itertools.product(TOPOLOGIES, STAGES)
            if not os.path.exists(path_of(topology, stage))
        )
    found = {topology: reports_of(topology) for topology in TOPOLOGIES}
    print(table({topology: reports for topology, reports in found.items() if reports}))


if __name__ == "__main__":
    main()
