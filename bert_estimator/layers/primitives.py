"""What TF1 lacks to define an operation in Python: a gradient of its own, and one fused kernel."""

import functools

import tensorflow.compat.v1 as tf


def with_gradient(name, value, *inputs):
    """`value`, computed from `inputs`, with the gradient function registered under `name`.

    That function gets an operation whose inputs are (value, *inputs), and returns None for the
    value. It is registered once; `tf.custom_gradient` registers a closure for each call, which
    holds the graph for the life of the process.
    """
    with tf.get_default_graph().gradient_override_map({"IdentityN": name}):
        return tf.identity_n([value, *inputs])[0]


def fused(function, *tensors):
    """Calls an elementwise function as one XLA computation.

    Args:
        function: a module's function (not a lambda made anew for each call) of as many tensors.
        *tensors: tensors of one shape and dtype.

    Returns:
        A tensor of that shape.
    """
    result = _compiled(function, tensors[0].dtype, len(tensors))(*tensors)
    result.set_shape(tensors[0].shape)
    return result


@functools.cache
def _compiled(function, dtype, arity):
    # Traced once, in a graph of its own: `tf.function` would keep every graph it is called from,
    # and compile for each one.
    with tf.Graph().as_default():
        traced = tf.function(function, jit_compile=True, autograph=False)
        return traced.get_concrete_function(*[tf.TensorSpec(None, dtype)] * arity)
