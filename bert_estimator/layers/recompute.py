"""Recomputing a layer for its gradient instead of keeping its activations.

This is the method of Chen et al., "Training deep nets with sublinear memory cost", 2016. Only the
input of each layer is kept. When the gradient of the layer's output arrives, the layer is built
again on that input (the replay), and the gradient goes through the replay.
"""

import functools
from collections.abc import Callable

import tensorflow.compat.v1 as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from bert_estimator.layers import primitives
from bert_estimator.layers.dropout import Dropout


def recompute(
    layer: Callable[[tf.Tensor, Dropout | None], tf.Tensor], x: tf.Tensor, dropout: Dropout | None
) -> tf.Tensor:
    """Calls layer(x, dropout), and calls it again when the gradient is computed.

    Args:
      layer: function (x, dropout) -> tensor of x's shape and dtype. Its variables are in the
        current variable scope. Other tensors that it uses are kept, not computed again.
    """
    scope = tf.get_variable_scope()
    # The collection of the root scope has all variables of the model, and not the layer's alone.
    if not scope.name:
        raise ValueError(
            "recompute needs a variable scope with a name, in which the layer's variables are: "
            "call it in a `with tf.variable_scope(name):`"
        )
    # The replay draws the same masks, since these are a function of numbers rather than of a state.
    fork = dropout and dropout.fork()
    y = layer(x, dropout)
    variables = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope.name + "/")

    def gradients(x, y_gradient):
        state = fork.state if fork else []
        # Because of the barrier neither XLA nor TensorFlow's optimizer can merge the replay with
        # the forward pass, or run the replay before the gradient is known.
        x, y_gradient, *state = _barrier(x, y_gradient, *state)
        with tf.variable_scope(scope, reuse=True, auxiliary_name_scope=False):
            y = layer(x, fork and fork.fork(state))
        return tf.gradients(y, [x, *variables], y_gradient)

    # The variables' values are inputs of the operation, so that it can return their gradients.
    values = [variable.read_value() for variable in variables]
    y = primitives.with_gradient("BertEstimatorRecompute", y, x, *values)
    # The operation holds the closure. A registry would keep the closure, and with it the graph, as
    # long as the process lives.
    y.op.recompute_gradients = gradients
    return y


@tf.RegisterGradient("BertEstimatorRecompute")
def _recompute_gradient(op, y_gradient, *_):
    return None, *op.recompute_gradients(op.inputs[1], y_gradient)


def _barrier(*tensors):
    """Returns equal tensors, none of which is available before all of the given ones are."""
    held = _compiled_barrier(tuple(tensor.dtype for tensor in tensors))(*tensors)
    for tensor, result in zip(tensors, held, strict=True):
        result.set_shape(tensor.shape)
    # Each output depends on every input, and so on the gradient and on the variables it came from.
    # The gradients of the replay must not flow back along that path.
    return [tf.stop_gradient(result) for result in held]


@functools.cache
def _compiled_barrier(dtypes):
    # Only XLA has this operation, and TensorFlow's optimizer does not look inside a compiled
    # function. It is traced once, as in `primitives`.
    with tf.Graph().as_default():
        traced = tf.function(
            lambda *tensors: gen_xla_ops.xla_optimization_barrier(tensors),
            jit_compile=True,
            autograph=False,
        )
        return traced.get_concrete_function(*[tf.TensorSpec(None, dtype) for dtype in dtypes])
