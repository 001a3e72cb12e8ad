"""What TensorFlow 1's variables and optimizers did, and today's do not."""

import functools
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.training import optimizer


def put_back() -> None:
    """Makes variables and optimizers do again what they did.

    1. Resource variables have `initialized_value`, as reference variables still have.
    2. Inside of the functions of which a step on cores consists, optimizers find their own
       variables, such as Adam's powers, in the graphs around the function. TensorFlow 1 did not
       have such functions.

    The whole process sees this.
    """
    resource_variable_ops.BaseResourceVariable.initialized_value = _initialized_value
    found = optimizer.Optimizer._get_non_slot_variable
    if not hasattr(found, "__wrapped__"):
        optimizer.Optimizer._get_non_slot_variable = _looking_around(found)


def _initialized_value(variable: tf.Variable) -> tf.Tensor:
    """Returns the value of a variable, or its initial value until it is initialized."""
    with tf.init_scope():
        return tf.cond(
            tf.is_variable_initialized(variable),
            variable.read_value,
            lambda: variable.initial_value,
        )


def _looking_around(method):
    """Returns `Optimizer._get_non_slot_variable` that looks in the graphs around a function."""

    @functools.wraps(method)
    def get(self: Any, name: str, graph: Any = None):
        variable = method(self, name, graph)
        while variable is None and getattr(graph, "outer_graph", None) is not None:
            graph = graph.outer_graph
            variable = method(self, name, graph)
        return variable

    return get
