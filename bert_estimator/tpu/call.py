"""Checks what users give, and calls model_fn and input_fn with the arguments that they name."""

import copy
import functools
import inspect
import numbers
import re
from collections.abc import Callable
from typing import NoReturn

import tensorflow.compat.v1 as tf
from tensorflow.python.tpu.device_assignment import DeviceAssignment

from bert_estimator.tpu.replicas import meshes

MODEL_FN_ARGS = {"features", "labels", "mode", "params", "config"}


class TPUContext:
    """Tells an `input_fn` or a `model_fn` where it runs; it is `params["context"]`.

    Attributes:
      num_replicas: number of replicas that share a global batch.
      num_hosts: number of hosts that feed the replicas.
      current_host: this host's number. Only an input_fn may ask for it, since all hosts run the
        same program.
      num_of_replicas_per_host: number of replicas that each host feeds.
      global_step: the global step at which this call of train, evaluate or predict starts. An
        input_fn whose order is a function of the step can resume there. It is None in a model_fn,
        which has the global step as a variable.
      device_assignment: which core runs which replica, by its coordinates; None in an input_fn.
    """

    def __init__(
        self,
        num_replicas: int = 1,
        num_hosts: int = 1,
        current_host: int = 0,
        global_step: int | None = 0,
        device_assignment: DeviceAssignment | None = None,
    ):
        self.num_replicas = num_replicas
        self.num_hosts = num_hosts
        self._current_host = current_host
        self.num_of_replicas_per_host = num_replicas // num_hosts
        self.global_step = global_step
        self.device_assignment = device_assignment

    @property
    def current_host(self) -> int:
        self._check_in_input_fn("current_host")
        return self._current_host

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        """Returns (device, number of this invocation, number of invocations, replicas fed by it).

        Raises:
          RuntimeError: this is a model_fn.
        """
        self._check_in_input_fn("current_input_fn_deployment")
        device = f"/replica:0/task:{self.current_host}/device:CPU:0"
        return device, self.current_host, self.num_hosts, self.num_of_replicas_per_host

    def _check_in_input_fn(self, name):
        if self.global_step is None:
            raise RuntimeError(f"{name} is only known in an input_fn")

    def device_for_replica(self, replica_id: int) -> NoReturn:
        """Raises RuntimeError: a core is not a TensorFlow device, to place things on."""
        raise RuntimeError(
            "device_for_replica: cores are not TensorFlow devices, and the model_fn is built for "
            "one replica: leave out the tf.device"
        )

    def tpu_host_placement_function(self, host_id: int) -> str:
        """Returns the device of a host, on which programs of mesh-tensorflow place variables."""
        # Each host has a session of its own, so it is the CPU of the session.
        return meshes.HOST_DEVICE


def check_model_fn(model_fn, params) -> None:
    """Raises ValueError if the signature of a `model_fn` cannot work."""
    if model_fn is None:
        raise ValueError("model_fn must be given")
    names = argument_names(model_fn)
    if "features" not in names:
        raise ValueError(f"model_fn must take an argument named features; it takes {names}")
    if params is not None and "params" not in names:
        raise ValueError(
            f"model_fn takes {names}, without params, but params were given to the estimator"
        )
    unknown = set(names) - MODEL_FN_ARGS
    if unknown and not isinstance(model_fn, type):
        raise ValueError(
            f"model_fn takes {sorted(unknown)}; it may only take {sorted(MODEL_FN_ARGS)}"
        )


def with_entries(params, **entries):
    """Returns a deep copy of params (a dict or an HParams-like object) with entries set."""
    params = copy.deepcopy(params)
    for name, value in entries.items():
        if hasattr(params, "set_hparam"):
            if name in params.values():
                params.set_hparam(name, value)
            else:
                params.add_hparam(name, value)
        else:
            params[name] = value
    return params


def call_model_fn(model_fn, features, labels, mode: str, params, config, needs_params: bool = True):
    """Calls a `model_fn` with the arguments that it names; TPUEstimator's functions must take
    params."""
    names = _names_taken("model_fn", model_fn, needs_params)
    # A model_fn may change the config that it gets, so it gets a copy.
    available = {"mode": mode, "params": params, "config": copy.deepcopy(config)}
    kwargs = {name: value for name, value in available.items() if name in names}
    if "labels" in names:
        kwargs["labels"] = labels
    elif labels is not None:
        raise ValueError("model_fn does not take labels, but input_fn returns them")
    return model_fn(features=features, **kwargs)


def call_input_fn(input_fn, mode: str, params, config, needs_params: bool = True):
    """Calls an `input_fn` with the arguments that it names; TPUEstimator's functions must take
    params."""
    names = _names_taken("input_fn", input_fn, needs_params)
    available = {"params": params, "mode": mode, "config": config, "input_context": None}
    of_mode = {"train": "train_distribute", "eval": "eval_distribute"}.get(mode)
    # As upstream, there is no context without a strategy.
    if "input_context" in names and of_mode and getattr(config, of_mode) is not None:
        available["input_context"] = tf.distribute.InputContext()
    return input_fn(**{name: value for name, value in available.items() if name in names})


def _names_taken(kind, function, needs_params):
    names = argument_names(function)
    if needs_params and "params" not in names:
        raise ValueError(
            f"{kind} takes {names}; with TPUEstimator it must take params, which has "
            'params["batch_size"]'
        )
    return names


def is_dataset(value) -> bool:
    return isinstance(value, tf.data.Dataset | tf.compat.v2.data.Dataset)


def split_features_and_labels(element) -> tuple:
    """Returns (features, labels) of what an input_fn returned: a pair, or only features."""
    if isinstance(element, tuple | list):
        if len(element) != 2:
            raise ValueError(
                f"input_fn must return features, or (features, labels), not a {len(element)}-tuple"
            )
        return element[0], element[1]
    return element, None


def argument_names(function: Callable) -> list[str]:
    """Returns the names of the arguments with which a caller may call a function."""
    # As upstream, this leaves out what a `functools.partial` binds, what the function can do
    # without and only takes by keyword, `*args` and `**kwargs`.
    bound = function.keywords if isinstance(function, functools.partial) else {}
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and p.name not in bound
        and not (p.kind is p.KEYWORD_ONLY and p.default is not p.empty)
    ]


def checked(kind: type) -> type:
    """Has a `NamedTuple` class check its values, in the constructor and in `_replace` alike, by its
    method `_checked_values(self, replaced)`, which raises an error for values that cannot work, and
    returns a dict of the fields that become something else; `replaced` is the tuple that `_replace`
    was called on, or None."""
    new, replace = kind.__new__, kind._replace

    @functools.wraps(new)
    def checked_new(cls, *args, **kwargs):
        given = new(cls, *args, **kwargs)
        return replace(given, **given._checked_values(None))

    @functools.wraps(replace)
    def checked_replace(self, **kwargs):
        unknown = sorted(set(kwargs) - set(kind._fields))
        if unknown:  # Python's own error is a ValueError, and from 3.13 on a TypeError
            raise ValueError(f"Got unexpected field names: {unknown!r}")
        given = replace(self, **kwargs)
        return replace(given, **given._checked_values(self))

    kind.__new__ = staticmethod(checked_new)
    kind._replace = checked_replace
    return kind


def positive_int(value, name: str) -> int:
    """Returns a positive integer as an int; NumPy's integers are integers, and bools are not."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be int, and positive, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be positive, not {value!r}")
    return int(value)


def all_of(kind: type, given, name: str) -> tuple:
    """Returns an iterable of objects of a class, or None, as a tuple; `name` says in an error what
    they are, such as "EvalSpec.hooks"."""
    plural = re.split(r"\W|_", name)[-1]
    try:
        given = tuple(given or ())
    except TypeError:
        raise TypeError(f"{name} must be a list of {plural}, not {given!r}") from None
    for each in given:
        if not isinstance(each, kind):
            raise TypeError(
                f"All {plural} must be {kind.__name__} instances, but {name} has {each!r}"
            )
    return given


hooks = functools.partial(all_of, tf.train.SessionRunHook)
listeners = functools.partial(all_of, tf.train.CheckpointSaverListener)
