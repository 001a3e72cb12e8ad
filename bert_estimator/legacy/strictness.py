"""What TensorFlow 1, protobuf, NumPy and Python accepted, did and logged, and today's do not."""

import collections
import collections.abc
import contextvars
import functools
import logging
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.example import feature_pb2
from tensorflow.python.client import session
from tensorflow.python.framework import tensor_shape
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.training import optimizer

from bert_estimator.graph import patches
from bert_estimator.legacy import old_python

# NumPy removed these names; the value is what the name was, or the name of the same thing today.
_NUMPY_NAMES = {
    "bool": bool,  # before NumPy 2
    "long": int,
    "float": float,
    "int": int,
    "complex": complex,
    "object": object,
    "str": str,
    "unicode": str,
    "asscalar": lambda a: a.item(),
    "float_": "float64",
    "complex_": "complex128",
    "unicode_": "str_",
    "string_": "bytes_",
    "bool8": "bool_",
    "int0": "intp",
    "uint0": "uintp",
    "object0": "object_",
    **dict.fromkeys(("NaN", "NAN"), "nan"),
    **dict.fromkeys(("Inf", "Infinity", "PINF", "infty"), "inf"),
    "NINF": float("-inf"),
    "product": "prod",
    "cumproduct": "cumprod",
    "alltrue": "all",
    "sometrue": "any",
    "round_": "round",
    "row_stack": "vstack",
    "trapz": "trapezoid",
    "in1d": lambda ar1, ar2, *args, **kwargs: np.isin(np.ravel(ar1), ar2, *args, **kwargs),
    "asfarray": lambda a, dtype=np.float64: np.asarray(a, dtype),
    "mat": "asmatrix",
    "msort": lambda a: np.sort(a, axis=0),
}

# A function of NumPy -> an argument's name, and its name today; False is None today.
_ARGUMENTS = {
    **({"array": ("copy", "copy")} if np.__version__ >= "2" else {}),  # 1.26 takes False as then
    **dict.fromkeys(
        ("percentile", "quantile", "nanpercentile", "nanquantile"), ("interpolation", "method")
    ),
    **dict.fromkeys(("histogram2d", "histogramdd"), ("normed", "density")),
}


def relax() -> None:
    """Makes protobuf, NumPy, `collections`, variables and sessions accept and do again what they
    did then, in the whole process."""
    _take_old_numbers()
    _take_floats_as_dimensions()
    _write_scalars_as_numbers()
    for name, value in _NUMPY_NAMES.items():
        # NumPy gives some of the names in a __getattr__ that warns.
        if name not in vars(np):
            setattr(np, name, getattr(np, value) if isinstance(value, str) else value)
    if not hasattr(np.fromstring, "__wrapped__"):
        np.fromstring = _reading_bytes(np.fromstring)
        np.sum = _of_generators(np.sum)
        np.histogram = _normed(np.histogram)
        for name, (old, new) in _ARGUMENTS.items():
            setattr(np, name, taking(getattr(np, name), old, new))
    # Python 3.10 removed these names.
    for name in collections.abc.__all__:
        if not hasattr(collections, name):
            setattr(collections, name, getattr(collections.abc, name))
    old_python.put_back()
    _take_names_of_cores()
    put_back_variables()
    # `tf.get_variable` made tensors of its regularization losses, not functions of them.
    patches.losses_at_once_everywhere()


def _reading_bytes(fromstring):
    """Returns np.fromstring that also reads an array from bytes, if it is not given a separator."""

    @functools.wraps(fromstring)
    def function(string, dtype=float, count=-1, sep="", **kwargs):
        if sep == "":
            data = string.encode("latin1") if isinstance(string, str) else string
            return np.frombuffer(data, dtype, count).copy()
        return fromstring(string, dtype, count, sep=sep, **kwargs)

    return function


def _of_generators(of_array):
    """Returns np.sum that also adds up what a generator yields, as Python's own `sum` does."""

    @functools.wraps(of_array)
    def function(a, *args, **kwargs):
        if isinstance(a, types.GeneratorType):
            return sum(a)
        return of_array(a, *args, **kwargs)

    return function


def taking(today: Callable, old: str, new: str) -> Callable:
    """Returns a function that also takes an argument by its old name."""

    @functools.wraps(today)
    def function(*args, **kwargs):
        if old in kwargs:
            value = kwargs.pop(old)
            kwargs[new] = None if value is False else value
        return today(*args, **kwargs)

    return function


def _normed(histogram):
    """Returns np.histogram that takes `normed`, which is not `density` if bins differ in width."""

    @functools.wraps(histogram)
    def function(a, bins=10, range=None, normed=None, weights=None, density=None):
        values, edges = histogram(a, bins, range, density, weights)
        if normed and density is None:
            values = values / (values * np.diff(edges)).sum()
        return values, edges

    return function


def _as_number(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    return int(value) if isinstance(value, bool | np.bool_) else value


def _as_numbers(values: Any) -> Any:
    """Returns the values as a list or array of numbers, or what was given if it is neither."""
    if isinstance(values, np.ndarray):
        if values.ndim > 1 and values.size == len(values):
            values = values.ravel()
        return values.astype(np.int64) if values.dtype == bool else values
    if isinstance(values, bytes | str) or not isinstance(values, collections.abc.Iterable):
        return values
    values = list(values)
    if {*map(type, values)} <= {int, float}:  # This is fast, and lists may be long.
        return values
    return [_as_number(value) for value in values]


def _take_old_numbers():
    messages = (feature_pb2.Int64List, feature_pb2.FloatList)
    if hasattr(messages[0].__init__, "__wrapped__"):
        return

    # protobuf 3.11 took Python's and NumPy's booleans as integers, as in
    # `tf.train.Int64List(value=[True])`, and arrays of one element, such as `[np.zeros([])]`.
    def initialize(value=()):
        return (), {"value": _as_numbers(value)}

    def set_item(key, value):
        return (key, _as_numbers(value) if isinstance(key, slice) else _as_number(value)), {}

    for message in messages:
        _wrap(message, "__init__", initialize)
    for container in {type(message().value) for message in messages}:  # They may have one class.
        _wrap(container, "append", lambda value: ((_as_number(value),), {}))
        _wrap(container, "extend", lambda values: ((_as_numbers(values),), {}))
        _wrap(container, "insert", lambda key, value: ((key, _as_number(value)), {}))
        _wrap(container, "__setitem__", set_item)


def _take_floats_as_dimensions():
    of_integer = tensor_shape.Dimension.__init__
    if hasattr(of_integer, "__wrapped__"):
        return

    # A division gives a float, even if it is an integer.
    @functools.wraps(of_integer)
    def initialize(self, value):
        if isinstance(value, float | np.floating) and float(value).is_integer():
            value = int(value)
        of_integer(self, value)

    tensor_shape.Dimension.__init__ = initialize


def _write_scalars_as_numbers():
    if repr(np.float32(0.5)) == "0.5":  # NumPy 1
        return
    # `repr(np.float32(0.5))` was "0.5" before NumPy 2, as Python writes numbers.
    options = sys.modules.get("numpy._core.printoptions")
    if options is not None:  # From NumPy 2.1 on, each thread begins with the default options.
        np.set_printoptions = _of_all_threads(np.set_printoptions, options)
    np.set_printoptions(legacy="1.25")


def _of_all_threads(set_printoptions, options):
    """Returns np.set_printoptions that sets the options of threads that begin later, too."""

    @functools.wraps(set_printoptions)
    def function(*args, **kwargs):
        set_printoptions(*args, **kwargs)
        contextvars.Context().run(options.format_options.get).update(options.format_options.get())

    return function


def _wrap(cls, name, converted):
    """Has a method of a class convert its arguments first."""
    method = getattr(cls, name)

    @functools.wraps(method)
    def wrapper(self, *args, **kwargs):
        args, kwargs = converted(*args, **kwargs)
        return method(self, *args, **kwargs)

    setattr(cls, name, wrapper)


def _take_names_of_cores():
    reset = session.Session.reset
    if hasattr(reset, "__wrapped__"):
        return

    # Scripts give a session the master of a TPU, which names cores here.
    def on_this_machine(target="", *args, **kwargs):
        if not _names_cores(target):
            return (target, *args), kwargs
        tf.logging.warning(
            "tf.Session(%r) runs on this machine's CPU or GPU: only TPUEstimator uses cores", target
        )
        return ("", *args), kwargs

    @functools.wraps(reset)
    def reset_others(target, containers=None, config=None):
        if not _names_cores(target):  # On cores no session keeps anything.
            reset(target, containers, config)

    _wrap(session.BaseSession, "__init__", on_this_machine)
    session.Session.reset = staticmethod(reset_others)


def _names_cores(target):
    pattern = "local|gpu|rehearse:[1-9][0-9]*"  # see `tpu.program.devices`
    return isinstance(target, str | bytes) and bool(re.fullmatch(pattern, tf.compat.as_str(target)))


def put_back_variables() -> None:
    """Gives resource variables the method that reference variables have, and makes optimizers find
    their own variables inside of functions."""
    tf.Variable.register(resource_variable_ops.BaseResourceVariable)
    resource_variable_ops.BaseResourceVariable.initialized_value = _initialized_value
    # A step on cores consists of functions, which TensorFlow 1 did not have. An optimizer's own
    # variables, such as Adam's powers, are in the graphs around them.
    method = optimizer.Optimizer._get_non_slot_variable
    if not hasattr(method, "__wrapped__"):
        optimizer.Optimizer._get_non_slot_variable = _looking_around(method)


def _initialized_value(variable: tf.Variable) -> tf.Tensor:
    """Returns the value of a variable, or its initial value until it is initialized."""
    with tf.init_scope():
        return tf.cond(
            tf.is_variable_initialized(variable),
            variable.read_value,
            lambda: variable.initial_value,
        )


def _looking_around(method):
    """Returns `Optimizer._get_non_slot_variable` that looks in the graphs around a function."""

    @functools.wraps(method)
    def get(self: Any, name: str, graph: Any = None):
        variable = method(self, name, graph)
        while variable is None and getattr(graph, "outer_graph", None) is not None:
            graph = graph.outer_graph
            variable = method(self, name, graph)
        return variable

    return get


def log_old_lines(logger: logging.Logger) -> None:
    """Has TensorFlow's logger log trainings and evaluations in TensorFlow 1's lines too, which
    people's tools read; the project's own line of a step, which has more in it, comes after
    them."""

    def also_log(record):
        for line in [*_of_training(record), *_of_evaluation(record)]:
            logger.info("%s", line)
        return True

    logger.addFilter(also_log)


def _of_training(record):
    """Returns the lines of a step, if that is what a `LogRecord` is about."""
    step = getattr(record, "training", None)
    if step is None:
        return []
    lines = [f"loss = {np.float32(step['loss'])!s}, step = {step['step']} ({record.secs:.3f} sec)"]
    rates = {"global_step/sec": "steps_per_sec", "examples/sec": "examples_per_sec"}
    return lines + [f"{tag}: {step[key]:g}" for tag, key in rates.items() if key in step]


def _of_evaluation(record):
    """Returns the lines of the results of an evaluation, if a `LogRecord` is about one."""
    results = getattr(record, "evaluation", None)
    if results is None:
        return []
    number = results["global_step"]
    text = ", ".join(f"{name} = {value!s}" for name, value in sorted(results.items()))
    lines = [f"Saving dict for global step {number}: {text}"]
    if record.checkpoint_path:
        lines.append(
            f"Saving 'checkpoint_path' summary for global step {number}: {record.checkpoint_path}"
        )
    return lines
