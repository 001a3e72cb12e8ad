"""Adafactor's second moments as a piece of an optimizer (Shazeer and Stern, 2018)."""

import math

import tensorflow.compat.v1 as tf


class ScaleByFactoredMoments:
    """Divides gradients by the root of their second moment, of which it keeps row and column means.

    Algorithm 4 of the paper, with g the gradient of a matrix and t the number of the update:

        share = t^-decay_exponent                                     the paper's 1 - beta_2(t)
        r = (1 - share) * r + share * mean over columns of (g^2 + epsilon)          one per row
        c = (1 - share) * c + share * mean over rows of (g^2 + epsilon)             one per column
        u = g / sqrt(r * c / mean(r))

    The paper has sums for means, which is the same u. A vector keeps its whole second moment v
    (algorithm 5); of a tensor of more dimensions the last two are rows and columns.

    The slots are float32: `<variable>/adafactor_row` and `<variable>/adafactor_column`, or
    `<variable>/adafactor_v`.
    """

    def __init__(self, decay_exponent, epsilon):
        """Sets the constants.

        Args:
            decay_exponent: 0 < decay_exponent <= 1; the paper has 0.8.
            epsilon: > 0, added to the squares; the paper's epsilon_1, 1e-30.

        Raises:
            ValueError: a constant is out of range.
        """
        if not 0.0 < decay_exponent <= 1.0:
            raise ValueError(f"decay_exponent={decay_exponent}: must be above 0 and at most 1.")
        if not (math.isfinite(epsilon) and epsilon > 0.0):
            raise ValueError(
                f"epsilon={epsilon}: must be a finite number > 0; Adafactor has 1e-30."
            )
        self._decay_exponent = decay_exponent
        self._epsilon = epsilon

    def __call__(self, update, parameter):
        """float32 gradient of the variable's shape -> float32 update of the same shape."""
        square = tf.square(update) + self._epsilon
        share = parameter.update_number**-self._decay_exponent

        def moment(name, value):
            moment = (1.0 - share) * parameter.slot(name, value.shape) + share * value
            parameter.set_slot(name, moment)
            return moment

        if square.shape.rank < 2:
            return update * tf.math.rsqrt(moment("adafactor_v", square))
        row = moment("adafactor_row", tf.reduce_mean(square, axis=-1))
        column = moment("adafactor_column", tf.reduce_mean(square, axis=-2))
        # Each factor by itself: the product of two tiny moments would be 0 in float32.
        row = row / tf.reduce_mean(row, axis=-1, keepdims=True)
        update = update * tf.expand_dims(tf.math.rsqrt(row), -1)
        return update * tf.expand_dims(tf.math.rsqrt(column), -2)
