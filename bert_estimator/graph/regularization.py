"""Makes the regularization losses of `tf.get_variable` plain tensors, as TensorFlow 1 did.

TensorFlow 2 calls a regularizer once for nothing, and puts an object into the collection that is
not a `tf.Tensor` and adds the operations again whenever it is used.
"""

import functools

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import variable_scope


def at_once() -> None:
    """Has the current graph's variables get plain losses."""
    store = variable_scope._get_default_variable_store()
    if type(store) is variable_scope._VariableStore:
        store.__class__ = _Store


def at_once_everywhere() -> None:
    """Has the variables of all graphs of this process get plain losses."""
    store = variable_scope._VariableStore
    if not hasattr(store._get_single_variable, "__wrapped__"):
        store._get_single_variable = _with_plain_loss(store._get_single_variable)


def _with_plain_loss(method):
    """Returns the method of a store of variables through which each variable passes."""

    @functools.wraps(method)
    def get(self, name, *args, regularizer=None, **kwargs):
        # A variable that is got again must not be regularized again.
        known = name in self._vars
        variable = method(self, name, *args, **kwargs)
        if regularizer and not known:
            # The loss is the graph's, even if the caller is within a condition or a loop.
            with tf.control_dependencies(None), tf.name_scope(f"{name}/Regularizer/"):
                loss = regularizer(variable)
            if loss is not None:
                tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, loss)
        return variable

    return get


class _Store(variable_scope._VariableStore):
    """Is a graph's store of variables, whose class is changed to this one."""

    __slots__ = ()
    _get_single_variable = _with_plain_loss(variable_scope._VariableStore._get_single_variable)
