"""Tortures the scripts: kills, signals, damaged files and lost hosts, at random.

    python -m tests.torture --minutes=20

Each trial interrupts a run, perhaps several times, and compares what it left with a run that was
not interrupted. The exit code is 1 if a trial found something; its directory is kept. A trial
depends only on its seed, but for kills at a time, since machines are not equally fast.
"""

import argparse
import collections
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "torture")]

from bert_estimator.system import standard_streams  # noqa: E402

standard_streams.prepare()  # before loggers get hold of the streams, which each run replaces

import scenarios  # noqa: E402
import soak  # noqa: E402
import trials  # noqa: E402


def main(argv):
    """Runs trials until the time is over; returns the exit code."""
    options = parsed(argv)
    folder = pathlib.Path(options.directory or tempfile.mkdtemp(prefix="torture-"))
    problems, counts = [], collections.Counter()
    kinds = [
        kind
        for kind in scenarios.SCENARIOS
        if options.only in kind.name
        and (not options.action or options.action in trials.actions_of(kind))
    ]
    seed, end = options.seed, time.monotonic() + 60 * options.minutes
    while kinds and time.monotonic() < end:
        # Each scenario comes once before one comes again.
        kind = kinds.pop(0)
        generator = random.Random(f"{kind.name} {seed}")
        trial = trials.Trial(kind, generator, folder, options.action)
        found = trial.run()
        counts[kind.name, trial.action] += 1
        for what, times in trial.hits.items():
            counts[kind.name, trial.action, what] += times
        print(f"seed {seed}  {kind.name}  {trial.described()}  {found or 'as it should be'}")
        sys.stdout.flush()
        if found:
            problems.append((seed, kind.name, trial, found))
        else:
            shutil.rmtree(trial.folder)
        kinds.append(kind)
        seed += 1
    print_table(counts, problems, options.seed, seed - 1)
    if options.soak:
        problems += soak.run(60 * options.soak, folder)
    if not problems and not options.directory:
        shutil.rmtree(folder)
    return 1 if problems else 0


def parsed(argv):
    parser = argparse.ArgumentParser(prog="tests.torture", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="Set the minutes of torture.")
    parser.add_argument("--seed", type=int, default=1, help="Set the seed of the first trial.")
    parser.add_argument("--only", default="", help="Run only scenarios whose name contains this.")
    parser.add_argument(
        "--action", choices=trials.ACTIONS, help="Set the only thing to do; default: all."
    )
    parser.add_argument(
        "--directory", help="Write into this directory, and keep everything; default: /tmp."
    )
    parser.add_argument("--soak", type=float, default=0, help="Set the minutes of a soak after it.")
    return parser.parse_args(argv)


def print_table(counts, problems, first, last):
    """Prints how many trials there were of each kind, and how many of them found something."""
    found = collections.Counter((name, trial.action) for _, name, trial, _ in problems)
    rows = [("scenario", "action", "trials", "interruptions", "findings")]
    for name, action in sorted(key for key in counts if len(key) == 2):
        hits = {key[2]: counts[key] for key in counts if key[:2] == (name, action) and key[2:]}
        rows.append((name, action, counts[name, action], sum(hits.values()), found[name, action]))
    total = [sum(row[column] for row in rows[1:]) for column in (2, 3, 4)]
    rows.append(("all", f"seeds {first} to {last}", *total))
    inside = collections.Counter()
    for key in counts:
        if len(key) == 3:
            inside[key[2]] += counts[key]
    widths = [max(len(str(row[column])) for row in rows) for column in range(5)]
    print()
    for row in rows:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)))
    print("\nInterruptions: " + ", ".join(f"{what} {n}" for what, n in sorted(inside.items())))
    for seed, name, trial, text in problems:
        print(f"\nseed {seed}, {name}, {trial.described()}, in {trial.folder}:\n{text}")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
