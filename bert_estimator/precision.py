"""The bfloat16 scope, and the casts at its borders.

This is the pattern of the TPUEstimator models. Variables are stored in float32 and read as
bfloat16. The network between the borders computes in bfloat16. Its outputs are cast to float32 at
once, so that losses, metrics, gradients of variables, clipping and optimizer state are float32.

    with precision.scope("bfloat16"):
        logits = network(features)
    logits = precision.to_float32(logits)

The gradient of the cast that reads a variable is the cast back, so `tf.gradients` with respect to a
variable is float32.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.command_line.choices import PRECISIONS

_STORES_AS_READ = contextvars.ContextVar("stores_as_read", default=False)


@contextlib.contextmanager
def stored_as_read() -> Iterator[None]:
    """Builds graphs whose variables are stored as they are read: a `scope` of bfloat16 does not
    store them in float32.

    Such a graph cannot be trained; it computes what it would compute if it rounded the float32
    values each time that it reads them, and its bfloat16 variables take half the memory.
    """
    token = _STORES_AS_READ.set(True)
    try:
        yield
    finally:
        _STORES_AS_READ.reset(token)


@contextlib.contextmanager
def scope(precision: str) -> Iterator[tf.VariableScope]:
    """Reopens the current variable scope, so that what is built inside has this precision.

    Under "bfloat16" the scope's dtype is bfloat16. A variable that is requested as bfloat16, or
    without a dtype, is stored and initialised as float32 and read as bfloat16. A variable that is
    requested with another dtype keeps that dtype. Under "float32" nothing changes. Variables have
    the same names in both, so one checkpoint serves both. `stored_as_read` changes this.

    Args:
      precision: one of PRECISIONS.

    Yields:
      The variable scope.

    Raises:
      ValueError: `precision` is not one of PRECISIONS.
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"precision={precision!r} is not known; choose one of {', '.join(PRECISIONS)}."
        )
    current = tf.get_variable_scope()
    if precision == "float32":
        yield current
        return
    # The current scope is reopened by its object: a scope named "" inside another scope would put
    # an empty part into the variables' names. Names of operations do not change either.
    with tf.variable_scope(
        current,
        dtype=tf.bfloat16,
        custom_getter=None if _STORES_AS_READ.get() else _store_as_float32,
        auxiliary_name_scope=False,
    ) as inner:
        yield inner


def _store_as_float32(getter, name, *args, **kwargs):
    """Stores a variable that is requested as bfloat16 in float32, and casts it when it is read."""
    dtype = kwargs.pop("dtype", None)
    if dtype is None or tf.as_dtype(dtype).base_dtype != tf.bfloat16:
        return getter(name, *args, dtype=dtype, **kwargs)
    variable = getter(name, *args, dtype=tf.float32, **kwargs)
    return tf.cast(variable, tf.bfloat16, name=name.rsplit("/", 1)[-1] + "_bfloat16")


def compute_dtype() -> tf.DType:
    """Returns the variable scope's dtype, in which a network that is built here computes."""
    return tf.as_dtype(tf.get_variable_scope().dtype).base_dtype


def to_float32(outputs: Any) -> Any:
    """Casts the bfloat16 tensors of a nest to float32, and keeps all other tensors.

    Args:
      outputs: a tensor, or a nest (dict, list, tuple) of tensors, of any shapes and dtypes.

    Returns:
      The same structure.
    """

    def cast(tensor):
        tensor = tf.convert_to_tensor(tensor)
        return tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor

    return tf.nest.map_structure(cast, outputs)
