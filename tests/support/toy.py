"""A model whose numbers name their step, with its data, and observers of its training.

Step k = 1, 2, ... gets a batch of values k, has the loss k and leaves the weight `w` at k.
"""

import os
import re
import threading
import time

import tensorflow.compat.v1 as tf

from bert_estimator import tpu

BATCH_SIZE = 4

# What estimators run on: the session runtime, unless the fixture `cores` says otherwise.
MASTER = ""

# A graph of a few operations takes longer to optimize than to run.
QUICK = tf.ConfigProto()
QUICK.graph_options.rewrite_options.disable_meta_optimizer = True


def batches(first=1, last=10**6, batch_size=BATCH_SIZE):
    """Returns the batches first, ..., last: {"x": float32 [B], filled with the batch's number}."""
    return tf.data.Dataset.range(first, last + 1).map(
        lambda i: {"x": tf.fill([batch_size], tf.cast(i, tf.float32))}
    )


def input_fn(params):
    """Returns the data from the step at which training starts."""
    return batches(params["context"].global_step + 1, batch_size=params["batch_size"])


def ending_at(last):
    """Returns an input_fn whose data ends after the batch of step `last`."""
    return lambda params: batches(params["context"].global_step + 1, last)


def py_input_fn(function):
    """Returns an input_fn whose batch k is the Python function's result for k."""

    def called(params):
        def batch(i):
            x = tf.py_func(function, [i], tf.float32)
            return {"x": tf.ensure_shape(x, [BATCH_SIZE])}

        return tf.data.Dataset.range(1, 10**6).map(batch)

    return called


def make_model_fn(fields=None, w_after=None, loss=None):
    """Returns a model_fn, whose further fields, weight after a step and loss functions may give."""

    def model_fn(features, mode, params):
        weight = tf.get_variable("w", initializer=0.0)
        value = loss(weight, features) if loss else tf.reduce_mean(features["x"], name="toy_loss")
        train_op = None
        if mode == tpu.ModeKeys.TRAIN:
            after = w_after(weight, features) if w_after else weight + 1
            # The sum is for the XLA runtime, which insists on one.
            with tf.control_dependencies([tpu.cross_replica_sum(value)]):
                train_op = tf.group(weight.assign(after), tf.train.get_global_step().assign_add(1))
        further = fields(features, value) if fields else {}
        return tpu.TPUEstimatorSpec(
            **{"mode": mode, "loss": value, "train_op": train_op, **further}
        )

    return model_fn


def make_estimator(folder, model_fn=None, **keywords):
    """Makes a TPUEstimator under TPU rules; each keyword goes to the class that has it."""
    tpu_keywords = {k: keywords.pop(k) for k in tpu.TPUConfig._fields if k in keywords}
    own = ("use_tpu", "train_batch_size", "eval_batch_size", "eval_on_tpu", "params",
           "predict_batch_size", "units_per_example", "warm_start_from",
           "sharding")  # fmt: skip
    estimator_keywords = {k: keywords.pop(k) for k in own if k in keywords}
    config = tpu.RunConfig(
        model_dir=str(folder),
        tpu_config=tpu.TPUConfig(**tpu_keywords),
        **{
            "session_config": QUICK,
            "checkpoint_save_graph_def": False,
            "master": None if "cluster" in keywords else MASTER,
            **keywords,
        },
    )
    sizes = {"train_batch_size": BATCH_SIZE, "eval_batch_size": BATCH_SIZE}
    return tpu.TPUEstimator(
        model_fn or make_model_fn(), config=config, **{**sizes, **estimator_keywords}
    )


# Observers.


class Visits(tf.train.SessionRunHook):
    """Notes every call, and the global step and the weight fetched at the end of each loop."""

    def __init__(self, stop_at=None):
        self._stop_at = stop_at
        self.calls = []
        self.fetched = []

    def begin(self):
        self.calls.append("begin")
        (weight,) = (v for v in tf.global_variables() if v.op.name == "w")
        self._fetches = {"step": tf.train.get_global_step(), "w": weight}

    def after_create_session(self, session, coord):
        self.calls.append("after_create_session")

    def before_run(self, run_context):
        self.calls.append("before_run")
        return tf.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context, run_values):
        self.calls.append("after_run")
        self.fetched.append((int(run_values.results["step"]), run_values.results["w"].tolist()))
        if self._stop_at is not None and run_values.results["step"] >= self._stop_at:
            run_context.request_stop()

    def end(self, session):
        self.calls.append("end")

    @property
    def steps(self):
        return [step for step, _ in self.fetched]


class HostLog:
    """Is a host function, which keeps the values of every call in `values`, in order."""

    def __init__(self, fails_at=None, secs=0.0):
        self.values = []
        self._fails_at = fails_at
        self._secs = secs

    def __call__(self, *args, **kwargs):
        names = sorted(kwargs)

        def note(*arrays):
            time.sleep(self._secs)
            self.values.append(
                {n: a.tolist() for n, a in zip(names, arrays, strict=True)}
                if names
                else [a.tolist() for a in arrays]
            )
            if self._fails_at is not None and len(self.values) == self._fails_at:
                raise RuntimeError(f"the host call failed in its call {self._fails_at}")

        return tf.py_func(note, list(args) or [kwargs[name] for name in names], [])


def checkpoint_steps(folder):
    """Returns the global steps of the checkpoints in a folder, in order."""
    matches = (re.fullmatch(r"model\.ckpt-(\d+)\.index", name) for name in os.listdir(folder))
    return sorted(int(match[1]) for match in matches if match)


def weight_at(folder, step, name="w"):
    return float(tf.train.load_variable(os.path.join(str(folder), f"model.ckpt-{step}"), name))


def events(folder):
    """Returns all summary values of a folder's event files: (step, tag, value proto), by step."""
    found = []
    for name in sorted(os.listdir(folder)):
        if "tfevents" in name:
            for event in tf.train.summary_iterator(os.path.join(str(folder), name)):
                found += [(event.step, value.tag, value) for value in event.summary.value]
    return sorted(found, key=lambda each: each[0])


def scalars(folder, tag):
    """Returns the (step, value) pairs of one tag, in v1 and v2 summaries."""
    return [
        (step, float(tf.make_ndarray(v.tensor)) if v.HasField("tensor") else v.simple_value)
        for step, name, v in events(folder)
        if name == tag
    ]


def wait_until(condition, secs=5.0):
    """Waits until another thread makes a condition true; fails if it takes too long."""
    end = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def threads(name):
    return [t for t in threading.enumerate() if t.name == name and t.is_alive()]
