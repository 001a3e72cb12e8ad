"""What every scenario of the oracle is made of: the table of scenarios, a toy model, observers.

A scenario is a function `(api, folder, **row) -> observations`: `api` has the public names of one
framework, as `bert_estimator.tpu`, `folder` is an empty directory, observations are JSON values.

The model is a regression with one float32 weight `w`, initially 0.5, on data that nothing random
touches: x runs through 1/8, 2/8, ... 8/8 and starts again, y = 3x, the loss is the mean square.
"""

import contextlib
import functools
import logging
import os
import re
from types import SimpleNamespace

import numpy as np
import tensorflow.compat.v1 as tf

BATCH_SIZE = 4
INITIAL_WEIGHT = 0.5
LEARNING_RATE = 0.0625

# A graph of a few operations takes longer to optimize and to print than to run.
QUICK = tf.ConfigProto()
QUICK.graph_options.rewrite_options.disable_meta_optimizer = True

SCENARIOS = {}


def _register(function, row, call):
    group = function.__module__.removesuffix("_scenarios")
    name = f"{group}.{function.__name__}" + (f"[{row}]" if row else "")
    if name in SCENARIOS:
        raise ValueError(f"two scenarios are called {name}")
    SCENARIOS[name] = call


def scenario(function):
    """Registers one scenario, as `group.function`: train_scenarios.py holds the group train."""
    _register(function, None, function)
    return function


def table(**rows):
    """Registers one scenario per row, `group.function[row]`; a row holds keyword arguments."""

    def register(function):
        for row, keywords in rows.items():
            _register(function, row, functools.partial(function, **keywords))
        return function

    return register


# The toy: data, model, estimator.


def dataset(examples, batch_size, labels=True):
    """Batches of `examples` examples (None: endless): float32 x [B] and, if asked, y [B]."""
    x = np.arange(1, 9, dtype=np.float32) / 8
    slices = ({"x": x}, 3 * x) if labels else {"x": x}
    data = tf.data.Dataset.from_tensor_slices(slices).repeat()
    if examples is not None:
        data = data.take(examples)
    return data.batch(batch_size)


def make_input_fn(examples=None, log=None):
    """An `input_fn` which returns `dataset`; every call appends the params it got to `log`."""

    def input_fn(params):
        if log is not None:
            log.append(plain(params))
        return dataset(examples, params["batch_size"])

    return input_fn


def build(features, labels, mode):
    """Builds the toy's graph; returns its tensors and, in TRAIN, its train_op, by name."""
    weight = tf.get_variable("w", initializer=INITIAL_WEIGHT)
    predictions = weight * features["x"]
    targets = 3.0 * features["x"] if labels is None else labels
    loss = tf.reduce_mean(tf.square(predictions - targets), name="toy_loss")
    train_op = None
    if mode == "train":
        optimizer = tf.train.GradientDescentOptimizer(LEARNING_RATE)
        train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return SimpleNamespace(
        mode=mode,
        weight=weight,
        predictions=predictions,
        labels=targets,
        loss=loss,
        train_op=train_op,
    )


def make_model_fn(api, log=None, fields=None):
    """Returns a logging `model_fn` for the toy; `fields(graph)` gives fields of the spec."""

    def model_fn(features, labels, mode, params):
        if log is not None:
            log.append({"mode": mode, "params": plain(params)})
        graph = build(features, labels, mode)
        spec = {"mode": mode, "loss": graph.loss, "train_op": graph.train_op}
        spec.update(fields(graph) if fields else {})
        return api.TPUEstimatorSpec(**spec)

    return model_fn


def make_estimator(api, folder, model_fn=None, config=(), tpu_config=(), **keywords):
    """Makes a TPUEstimator in local mode; `config` and `tpu_config` are keywords of the configs."""
    run_config = api.RunConfig(
        **{
            "model_dir": folder,
            "tpu_config": api.TPUConfig(**dict(tpu_config)),
            "session_config": QUICK,
            "checkpoint_save_graph_def": False,
            **dict(config),
        }
    )
    batches = {"train_batch_size": BATCH_SIZE, "eval_batch_size": BATCH_SIZE}
    return api.TPUEstimator(
        model_fn=model_fn or make_model_fn(api),
        config=run_config,
        **{"use_tpu": False, **batches, **keywords},
    )


# Observers.


def plain(value):
    """Converts a value to JSON; protos and other objects become the name of their type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return type(value).__name__


CALLS = ["begin", "after_create_session", "before_run", "after_run", "end"]


class Recorder(tf.train.SessionRunHook):
    """Counts its calls, notes the global step before and after each run, and fetches the loss."""

    def __init__(self, fetch_loss=True):
        self._fetch_loss = fetch_loss
        self.calls = dict.fromkeys(CALLS, 0)
        self.start = None
        self.steps = []
        self.losses = []
        self.end_step = None

    def begin(self):
        self.calls["begin"] += 1
        self._step = tf.train.get_global_step()

    def after_create_session(self, session, coord):
        self.calls["after_create_session"] += 1
        self.start = int(session.run(self._step))

    def before_run(self, run_context):
        self.calls["before_run"] += 1
        return tf.train.SessionRunArgs("toy_loss:0") if self._fetch_loss else None

    def after_run(self, run_context, run_values):
        self.calls["after_run"] += 1
        self.steps.append(int(run_context.session.run(self._step)))
        if self._fetch_loss:
            self.losses.append(float(run_values.results))

    def end(self, session):
        self.calls["end"] += 1
        self.end_step = int(session.run(self._step))

    def observed(self):
        return {
            "calls": self.calls,
            "start": self.start,
            "steps": self.steps,
            "losses": self.losses,
            "end_step": self.end_step,
        }


class Told(tf.train.SessionRunHook):
    """Tells a shared log of every call, under its own name: shows the order among hooks."""

    def __init__(self, name, log):
        for call in CALLS:
            setattr(self, call, lambda *_, call=call: log.append(f"{name}.{call}"))


def checkpoint_steps(folder):
    """Returns the global steps of the checkpoints in a folder, in order."""
    if not os.path.isdir(folder):
        return []
    matches = (re.fullmatch(r"model\.ckpt-(\d+)\.index", name) for name in os.listdir(folder))
    return sorted(int(match.group(1)) for match in matches if match)


def event_tags(folder):
    """Reads the event files of a folder; returns tag -> its steps, in order."""
    tags = {}
    for name in sorted(os.listdir(folder)):
        if "tfevents" not in name:
            continue
        for event in tf.train.summary_iterator(os.path.join(folder, name)):
            for value in event.summary.value:
                tags.setdefault(value.tag, []).append(event.step)
    return {tag: sorted(steps) for tag, steps in tags.items()}


def weight(estimator):
    """Returns the weight in the newest checkpoint."""
    return float(estimator.get_variable_value("w"))


def global_step(estimator):
    """Returns the global step in the newest checkpoint."""
    return int(estimator.get_variable_value("global_step"))


def numbers(results):
    """Converts the results of `evaluate` to JSON: Python floats, and an int for the step."""
    return {
        key: int(value) if key == "global_step" else float(value) for key, value in results.items()
    }


@contextlib.contextmanager
def warnings_of_tensorflow():
    """Gives a list that collects what TensorFlow's logger is warned of."""
    texts = []
    logger, handler = logging.getLogger("tensorflow"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def outcome(call, says=()):
    """Returns the nearest public type that a call raises, and which words of `says` it says."""
    try:
        call()
    except Exception as error:
        nearest = next(
            kind
            for kind in type(error).__mro__
            if kind.__module__ == "builtins" or kind.__module__.startswith("tensorflow.")
        )
        return {
            "raises": nearest.__name__,
            "says": [word for word in says if word.lower() in str(error).lower()],
        }
    return {"raises": None}
