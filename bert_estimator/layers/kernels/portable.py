"""The network's operations made of TensorFlow's own operations and gradients; see `session.py`.

A program that does not have this project can differentiate them, and nothing is compiled when a new
shape is first seen.
"""

import functools

import tensorflow.compat.v1 as tf

from bert_estimator.layers.kernels import formulas, program, session

# Functions of the other targets serve here if they are made of these operations alone, as `means`
# and `layer_norm` are in a portable graph.
bias_add, gelu_erf, layer_norm = tf.nn.bias_add, formulas.gelu_erf, formulas.layer_norm
cross_entropy, draw_mask = program.cross_entropy, program.draw_mask
gather = look_up_types = tf.gather
mask_and_scale, used_rows = program.mask_and_scale, program.used_rows

# A request may have fewer scores than there are weights of the query.
SCALES_QUERY = False

heads = functools.partial(formulas.heads, tf.nn.bias_add)
products, masked_logits, softmax = session.products, formulas.masked_logits, session.softmax
first_token, means = session.first_token, session.means


def gelu(x: tf.Tensor) -> tf.Tensor:
    """Returns GELU in its tanh form."""
    # Each of these operations reads and writes a whole tensor, and there are fewer than in the
    # formula. But where the sigmoid is almost 1, its gradient is less exact.
    v = tf.cast(x, tf.float32)
    inner = v * (formulas.LINEAR + formulas.CUBIC * v * v)
    return tf.cast(v * tf.sigmoid(inner), x.dtype)
