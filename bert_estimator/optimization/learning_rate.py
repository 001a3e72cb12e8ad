"""The learning rate as a piece of an optimizer."""

import tensorflow.compat.v1 as tf


class ScaleByLearningRate:
    """Multiplies updates by the learning rate.

    A piece like the others, because its place matters: a momentum that comes after it remembers
    past learning rates, one that comes before it does not.
    """

    def __init__(self, learning_rate):
        """Takes the rate: a Python float, a float scalar tensor such as a schedule gives, or a
        function of a variable's name that returns one of these."""
        self._learning_rate = learning_rate

    def __call__(self, update, parameter):
        """float32 update of the variable's shape -> float32 update of the same shape."""
        rate = self._learning_rate
        if callable(rate):
            rate = rate(parameter.name)
        return tf.cast(rate, tf.float32) * update
