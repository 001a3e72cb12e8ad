"""Operations defined in Python, which TF1 lacks: with a gradient of their own, or fused."""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

_PORTABLE = contextvars.ContextVar("portable", default=False)


@contextlib.contextmanager
def portable() -> Iterator[None]:
    """Builds graphs of TensorFlow's own operations alone, for exports."""
    # Such a graph is slower. But it runs without this project, and nothing is compiled when a new
    # shape is first seen.
    token = _PORTABLE.set(True)
    try:
        yield
    finally:
        _PORTABLE.reset(token)


def is_portable() -> bool:
    """Returns whether graphs are built of TensorFlow's own operations alone; see `portable`."""
    return _PORTABLE.get()


def with_gradient(name: str, value: tf.Tensor, *inputs: tf.Tensor) -> tf.Tensor:
    """Returns a tensor equal to `value` with the gradient function that is registered under a name.

    The function gets an operation whose inputs are (value, *inputs), the tensors that `value` is
    computed from, and returns a gradient for each of them; for `value` it returns None.
    """
    if is_portable():
        return value
    # The gradient function is registered once. `tf.custom_gradient` would register a closure in
    # each call, which would keep the graph in memory as long as the process lives.
    with tf.get_default_graph().gradient_override_map({"IdentityN": name}):
        return tf.identity_n([value, *inputs])[0]


def barrier(*tensors: tf.Tensor) -> list[tf.Tensor]:
    """Returns equal tensors, none of which is there before all of the given ones are; only in
    programs for XLA and in what is `fused`. They have no gradient."""
    # XLA does not move operations over a barrier, nor does it give both sides one layout.
    return gen_xla_ops.xla_optimization_barrier(tensors)


def fused(function: Callable[..., Any], *tensors: tf.Tensor) -> Any:
    """Calls a function as one XLA computation; within `portable()`, directly.

    Args:
      function: returns a tensor or a list of tensors. Give the same object in each call: a lambda
        that is made anew for each call would be compiled anew for each call.
      *tensors: tensors of a known rank. Each shape is compiled by itself.
    """
    if is_portable():
        return function(*tensors)
    specs = tuple((tuple(tensor.shape.as_list()), tensor.dtype) for tensor in tensors)
    return _compiled(function, specs)(*tensors)


def length_of(tensor: tf.Tensor) -> int | tf.Tensor:
    """Returns the sequence length of a tensor [B, F, ...]; a scalar tensor if it is not static."""
    static = tensor.shape.as_list()[1]
    return tf.shape(tensor)[1] if static is None else static


def num_elements(shape: tf.TensorShape, usual: int) -> int:
    """Returns how many elements a tensor has, if the first dimension is `usual` where it is
    unknown; 0 if another dimension is unknown."""
    first, *others = shape.as_list()
    return 0 if None in others else math.prod([usual if first is None else first, *others])


def fused_both_ways(function: Callable[..., tf.Tensor], *tensors: tf.Tensor) -> tf.Tensor:
    """Does what `fused` does, with one XLA computation for the gradient, too."""
    if is_portable():
        return function(*tensors)
    # The gradient computes what it needs of the forward computation again. If the whole step is
    # compiled by XLA, the compiler finds both and computes it once.
    value = with_gradient("BertEstimatorFused", fused(function, *tensors), *tensors)
    # The operation holds the function, so that both are freed with the graph.
    value.op.fused_function = function
    return value


@tf.RegisterGradient("BertEstimatorFused")
def _fused_gradient(op, gradient, *_):
    return None, *fused(_gradient_of(op.fused_function), gradient, *op.inputs[1:])


@functools.cache
def _gradient_of(function):
    return lambda gradient, *tensors: tf.gradients(function(*tensors), tensors, gradient)


@functools.cache
def _compiled(function, specs):
    # The function is traced once, in a graph of its own. Otherwise `tf.function` would keep every
    # graph that it is called from, and compile for each of them.
    with tf.Graph().as_default():
        traced = tf.function(function, jit_compile=True, autograph=False)
        return traced.get_concrete_function(*[tf.TensorSpec(*spec) for spec in specs])
