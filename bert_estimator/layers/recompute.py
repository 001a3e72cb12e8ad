"""Recomputing a layer for its gradient instead of keeping its activations.

This is the method of Chen et al., "Training deep nets with sublinear memory cost", 2016. Only the
input of each layer is kept. When the gradient of the layer's output arrives, the layer is built
again on that input (the replay), and the gradient goes through the replay.
"""

from collections.abc import Callable

import tensorflow.compat.v1 as tf

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
        # the forward pass, or run the replay before the gradient is known. TensorFlow's optimizer
        # does not look inside a compiled function.
        held = primitives.fused(primitives.barrier, x, y_gradient, *state)
        # Each output depends on every input, and so on the gradient and on the variables it came
        # from. The gradients of the replay must not flow back along that path.
        x, y_gradient, *state = [tf.stop_gradient(tensor) for tensor in held]
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
