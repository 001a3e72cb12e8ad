"""A soak: many trainings, evaluations and predictions in one process, whose use must stay flat."""

import os
import sys
import threading
import time

import tensorflow.compat.v1 as tf
import toy

MOST_GROWTH = 0.02


class Use:
    """What a process uses: memory in bytes, threads and file descriptors."""

    def __init__(self):
        with open("/proc/self/statm", encoding="ascii") as reader:
            self.memory = int(reader.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.threads = len(os.listdir("/proc/self/task"))
        self.files = len(os.listdir("/proc/self/fd"))


def rounds(master, folder, going_on):
    """Trains, evaluates and predicts in turn while `going_on(number of calls)`.

    Returns:
      A list of `Use`, one for each round.
    """
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
        estimator.train(toy.input_fn, steps=10)
        estimator.evaluate(input_fn, steps=2)
        predictions = estimator.predict(input_fn)
        for _ in range(8):
            next(predictions)
        predictions.close()
        tf.summary.FileWriterCache.clear()
        uses.append(Use())
    return uses


def problems_of(uses):
    """Returns what has grown from the second quarter to the last, as texts.

    The first quarter fills the caches of TensorFlow and of the allocator.
    """
    quarter = len(uses) // 4
    found = []
    for name in ("memory", "threads", "files"):
        values = [getattr(use, name) for use in uses]
        before, after = min(values[quarter : 2 * quarter]), min(values[-quarter:])
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
        first, last = uses[len(uses) // 4], uses[-1]
        print(
            f"soak, {master or 'session'}: {3 * len(uses)} calls; memory {first.memory >> 20} to "
            f"{last.memory >> 20} MiB, threads {first.threads} to {last.threads} "
            f"({threading.active_count()} of Python), files {first.files} to {last.files}. "
            f"{'; '.join(found) or 'Flat.'}"
        )
        sys.stdout.flush()
        problems += found
    return problems
