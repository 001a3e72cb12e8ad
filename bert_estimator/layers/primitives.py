"""Operations defined in Python: with a gradient of their own, or as one fused kernel.

TF1 has neither.
"""

import functools
from collections.abc import Callable

import tensorflow.compat.v1 as tf


def with_gradient(name: str, value: tf.Tensor, *inputs: tf.Tensor) -> tf.Tensor:
    """Gives a tensor the gradient function that is registered under a name.

    The gradient function is registered once. `tf.custom_gradient` would register a closure in each
    call, which would keep the graph in memory as long as the process lives.

    Args:
      name: as in `tf.RegisterGradient(name)`. The function gets an operation whose inputs are
        (value, *inputs), and returns a gradient for each of them; for `value` it returns None.
      value: the tensor.
      *inputs: the tensors that `value` is computed from.

    Returns:
      A tensor equal to `value`.
    """
    with tf.get_default_graph().gradient_override_map({"IdentityN": name}):
        return tf.identity_n([value, *inputs])[0]


def fused(function: Callable[..., tf.Tensor], *tensors: tf.Tensor) -> tf.Tensor:
    """Calls an elementwise function as one XLA computation.

    Args:
      function: a function of as many tensors as are given. It must be defined in a module: a lambda
        that is made anew for each call would be compiled anew for each call.
      *tensors: tensors of one shape and dtype.

    Returns:
      A tensor of that shape.
    """
    result = _compiled(function, tensors[0].dtype, len(tensors))(*tensors)
    result.set_shape(tensors[0].shape)
    return result


@functools.cache
def _compiled(function, dtype, arity):
    # The function is traced once, in a graph of its own. Otherwise `tf.function` would keep every
    # graph that it is called from, and compile for each of them.
    with tf.Graph().as_default():
        traced = tf.function(function, jit_compile=True, autograph=False)
        return traced.get_concrete_function(*[tf.TensorSpec(None, dtype)] * arity)
