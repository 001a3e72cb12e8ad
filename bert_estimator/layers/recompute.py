"""Recomputing a layer for its gradient instead of keeping its activations.

Chen et al., "Training deep nets with sublinear memory cost", 2016: of each layer only the input is
kept; when the gradient of its output arrives, the layer is built again on that input, and the
gradient goes through this replay.
"""

import functools

import tensorflow.compat.v1 as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from bert_estimator.layers import primitives


def recompute(layer, x, dropout):
    """layer(x, dropout), computed again when its gradient is.

    The replay uses the same variables, and draws the same dropout masks: they are a function of
    numbers, not of a state. All that it starts from passes an optimization barrier together with
    the gradient. Neither XLA nor TensorFlow's own optimizer can then take replay and forward pass
    for the same thing and merge them, nor run the replay before the gradient is there.

    Args:
        layer: function (x, dropout) -> tensor of x's shape and dtype. Its variables are those of
            the current variable scope; what else it depends on is kept.
        x: float tensor of any shape.
        dropout: `dropout.Dropout`, or None for a layer without.

    Returns:
        What `layer` returns.
    """
    scope = tf.get_variable_scope()
    fork = dropout and dropout.fork()
    y = layer(x, dropout)
    variables = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope.name + "/")

    def gradients(x, y_gradient):
        state = fork.state if fork else []
        x, y_gradient, *state = _barrier(x, y_gradient, *state)
        with tf.variable_scope(scope, reuse=True, auxiliary_name_scope=False):
            y = layer(x, fork and fork.fork(state))
        return tf.gradients(y, [x, *variables], y_gradient)

    # The variables' values are inputs, so that their gradients have a way to go.
    values = [variable.read_value() for variable in variables]
    y = primitives.with_gradient("BertEstimatorRecompute", y, x, *values)
    # The graph's own operation holds the closure: a registry would keep it, and the graph, for the
    # life of the process.
    y.op.recompute_gradients = gradients
    return y


@tf.RegisterGradient("BertEstimatorRecompute")
def _recompute_gradient(op, y_gradient, *_):
    return None, *op.recompute_gradients(op.inputs[1], y_gradient)


def _barrier(*tensors):
    """The tensors, each of them there only when all are."""
    held = _compiled_barrier(tuple(tensor.dtype for tensor in tensors))(*tensors)
    for tensor, result in zip(tensors, held, strict=True):
        result.set_shape(tensor.shape)
    # The gradient of the output depends on everything, the replay's variables included.
    return [tf.stop_gradient(result) for result in held]


@functools.cache
def _compiled_barrier(dtypes):
    # Compiled, because there is no kernel of it elsewhere; what is compiled stays closed to
    # TensorFlow's optimizer. Traced once, as in `primitives`.
    with tf.Graph().as_default():
        traced = tf.function(
            lambda *tensors: gen_xla_ops.xla_optimization_barrier(tensors),
            jit_compile=True,
            autograph=False,
        )
        return traced.get_concrete_function(*[tf.TensorSpec(None, dtype) for dtype in dtypes])
