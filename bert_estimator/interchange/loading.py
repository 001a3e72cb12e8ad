"""Weights that are fed to the variables of a session in place of their initial values."""

from collections.abc import Callable, Iterable

import numpy as np
import tensorflow.compat.v1 as tf


def load(
    read: Callable[[str], np.ndarray], variables: Iterable[tf.Variable], session: tf.Session
) -> list[str]:
    """Initializes variables with weights.

    Args:
      read: function of a variable's name that returns its weights, an array of its shape.
      variables: the variables.
      session: the session that they are initialized in.

    Returns:
      The names of the variables whose weights are not all finite.

    Raises:
      ValueError: `read` raises it.
    """
    bad = []
    for variable in variables:
        value = read(variable.op.name)
        if not np.all(np.isfinite(value)):
            bad.append(variable.op.name)
        # The value goes where the initial one would.
        initializer = variable.initializer
        session.run(initializer, {initializer.inputs[1]: value})
    return bad
