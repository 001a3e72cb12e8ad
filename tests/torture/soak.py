"""A soak: many trainings, evaluations and predictions in one process, whose use must stay flat."""

import os
import statistics
import sys
import threading
import time

import tensorflow.compat.v1 as tf
import toy

from bert_estimator.tpu.verbs import snapshot

MOST_GROWTH = 0.02


class Use:
    """What a process uses: memory in bytes, threads and file descriptors."""

    def __init__(self):
        with open("/proc/self/statm", encoding="ascii") as reader:
            self.memory = int(reader.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.threads = len(os.listdir("/proc/self/task"))
        self.files = len(os.listdir("/proc/self/fd"))


def rounds(master, folder, going_on):
    """Trains, evaluates and predicts while `going_on(calls)`; returns a `Use` for each round."""
    uses = []

    def model_fn(features, mode, params):
        def predictions(features, loss):
            if mode == "infer":
                return {"predictions": {"x": features["x"]}}
            return {}

        return toy.make_model_fn(predictions)(features, mode, params)

    def input_fn(params):
        return toy.batches(batch_size=params["batch_size"])

    while going_on(3 * len(uses)):
        estimator = toy.make_estimator(
            folder, model_fn, master=master, save_checkpoints_steps=10, keep_checkpoint_max=2,
            predict_batch_size=toy.BATCH_SIZE,
        )  # fmt: skip
        least = snapshot.LEAST_BYTES
        snapshot.LEAST_BYTES = 0 if len(uses) % 2 else least
        try:
            estimator.train(toy.input_fn, steps=10)
        finally:
            snapshot.LEAST_BYTES = least
        estimator.evaluate(input_fn, steps=2)
        predictions = estimator.predict(input_fn)
        for _ in range(8):
            next(predictions)
        predictions.close()
        tf.summary.FileWriterCache.clear()
        uses.append(Use())
    return uses


def of_quarters(statistic, uses, name):
    """Returns a statistic of "memory", "threads" or "files" in each quarter of the rounds."""
    values, quarter = [getattr(use, name) for use in uses], len(uses) // 4
    starts = (0, quarter, 2 * quarter, len(values) - quarter)
    return [statistic(values[start : start + quarter]) for start in starts]


def problems_of(uses):
    """Returns what has grown from the second quarter to the last: the first one fills caches."""
    found = []
    for name in ("memory", "threads", "files"):
        _, before, _, after = of_quarters(min, uses, name)
        if after > before * (1 + MOST_GROWTH):
            found.append(f"{name} grew from {before} to {after}")
    return found


def run(secs, folder):
    """Soaks each runtime for half of the time; prints what it found, and returns the problems."""
    problems = []
    for master in ("", "rehearse:2"):
        end = time.monotonic() + secs / 2
        path = folder / f"soak-{master or 'session'}"
        uses = rounds(master, path, lambda calls, end=end: calls < 48 or time.monotonic() < end)
        found = problems_of(uses)
        least, median = (
            " ".join(f"{value / 2**20:.1f}" for value in of_quarters(statistic, uses, "memory"))
            for statistic in (min, statistics.median)
        )
        print(
            f"soak, {master or 'session'}: {3 * len(uses)} calls in {secs / 120:.0f} minutes. The "
            f"least of each quarter: memory {least} MiB (medians {median}), threads "
            f"{of_quarters(min, uses, 'threads')} ({threading.active_count()} of Python), files "
            f"{of_quarters(min, uses, 'files')}. {'; '.join(found) or 'Flat.'}"
        )
        sys.stdout.flush()
        problems += found
    return problems
