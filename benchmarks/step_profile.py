"""The profile of a training step: its time by kind of operation, and by part of the model.

    python -m benchmarks.step_profile --network=base --length=128 --batch=32 --precision=bfloat16

trains through `TPUEstimator` on the session runtime, traces steps, and prints both as tables. Times
are the operations' own; operations that run side by side count in full, so their sum may be more
than the step's time. Of the traced steps each kind's shortest time counts.
"""

import argparse
import collections
import re
import tempfile
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from benchmarks import loop_overhead
from bert_estimator.bert_config import PRESETS
from bert_estimator.command_line.choices import PRECISIONS

_WARMUP = 2  # steps before the traced ones
_PARTS = [
    ("optimizer", r"Optimizer"),
    ("clipping", r"clip_by_global_norm"),
    ("attention", r"/attention/self/"),
    ("attention's output", r"/attention/output/"),
    ("intermediate", r"/intermediate/"),
    ("output", r"/output/"),
    ("embeddings", r"bert/embeddings"),
    ("heads", r"cls/|pooler|softmax_cross|SparseSoftmax"),
]


class Tracer(tf.train.SessionRunHook):
    """Traces steps.

    Attributes:
      steps: a list with a list for each traced step: (name, kind, seconds) of its operations.
    """

    def __init__(self, warmup: int):
        self.steps = []
        self._warmup = warmup

    def before_run(self, run_context):
        if self._warmup > 0:
            return None
        options = tf.RunOptions(trace_level=tf.RunOptions.SOFTWARE_TRACE)
        return tf.train.SessionRunArgs(None, options=options)

    def after_run(self, run_context, run_values):
        self._warmup -= 1
        if run_values.run_metadata is not None:
            stats = run_values.run_metadata.step_stats
            self.steps.append([_timed(n) for d in stats.dev_stats for n in d.node_stats])


def _timed(node):
    """Returns (name, kind, seconds) of an operation that was traced."""
    # Labels are "name = Kind(inputs)"; the CPU's kernels for oneDNN have kinds of their own.
    found = re.match(r".* = (\w+)\(", node.timeline_label)
    kind = found[1] if found else "other"
    if kind in ("PartitionedCall", "StatefulPartitionedCall"):
        kind = "compiled by XLA"
    secs = (node.op_end_rel_micros - node.op_start_rel_micros) * 1e-6
    return node.node_name, kind, secs


def by_kind(operations: Sequence[tuple[str, str, float]]) -> dict[str, tuple[int, float]]:
    """Sums operations by kind; returns a dict of kind -> (how many, seconds)."""
    return _summed((kind, secs) for _, kind, secs in operations)


def by_part(operations: Sequence[tuple[str, str, float]]) -> dict[str, tuple[int, float]]:
    """Sums operations by part of the model; gradients are parts of their own."""
    return _summed((part_of(name), secs) for name, _, secs in operations)


def part_of(name: str) -> str:
    """Returns the part of the model that an operation belongs to, by its name."""
    part = next((part for part, pattern in _PARTS if re.search(pattern, name)), "other")
    is_gradient = name.startswith("gradients") and part not in ("optimizer", "clipping")
    return f"{part}, gradient" if is_gradient else part


def _summed(pairs):
    sums = collections.defaultdict(lambda: (0, 0.0))
    for name, secs in pairs:
        number, total = sums[name]
        sums[name] = (number + 1, total + secs)
    return dict(sums)


def table(title: str, steps: Sequence[dict[str, tuple[int, float]]], most: int = 25) -> str:
    """Returns a table of the shortest time of each row among several steps, the longest first.

    Args:
      title: what the rows are.
      steps: what `by_kind` or `by_part` returned for each step.
      most: how many rows to give; the others are one row.
    """
    best = {
        name: (number, min(step[name][1] for step in steps if name in step))
        for name, (number, _) in steps[0].items()
    }
    total = sum(secs for _, secs in best.values())
    rows = sorted(best.items(), key=lambda row: -row[1][1])
    rest = [figures for _, figures in rows[most:]]
    if rest:
        others = (sum(number for number, _ in rest), sum(secs for _, secs in rest))
        rows = [*rows[:most], (f"{len(rest)} others", others)]
    rows.append(("together", (sum(number for number, _ in best.values()), total)))
    lines = [f"| {title} | operations | ms | share |", "|---|---|---|---|"]
    for name, (number, secs) in rows:
        lines.append(f"| {name} | {number} | {1000 * secs:.1f} | {secs / total:.1%} |")
    return "\n".join(lines)


def trace(arguments: argparse.Namespace) -> list[list[tuple[str, str, float]]]:
    """Trains the network of the arguments; returns `Tracer.steps`."""
    tracer = Tracer(_WARMUP)
    job = argparse.Namespace(**{**vars(arguments), "tpu_name": "", "steps": 1})
    with tempfile.TemporaryDirectory() as directory:
        estimator, input_fn = loop_overhead.pretraining_job(job, directory)
        estimator.train(input_fn, hooks=[tracer], steps=_WARMUP + arguments.steps)
    return tracer.steps


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="base", choices=PRESETS, help="train this preset")
    parser.add_argument("--length", type=int, default=128, help="set the tokens of an example")
    parser.add_argument("--batch", type=int, default=32, help="set the examples of a batch")
    parser.add_argument(
        "--precision", default="bfloat16", choices=PRECISIONS, help="compute in this precision"
    )
    parser.add_argument("--steps", type=int, default=3, help="measure this many steps")
    steps = trace(parser.parse_args(argv))
    print(table("kind of operation", [by_kind(step) for step in steps]))
    print()
    print(table("part of the model", [by_part(step) for step in steps]))


if __name__ == "__main__":
    main()
