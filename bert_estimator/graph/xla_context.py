"""Whether the current graph becomes a program for XLA."""

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_util


def in_xla_program() -> bool:
    """Returns whether the current graph becomes a program for XLA as a whole, as a TPU's step does.

    Such a graph is built within an `XLAControlFlowContext`.
    """
    return control_flow_util.GraphOrParentsInXlaContext(tf.get_default_graph())
