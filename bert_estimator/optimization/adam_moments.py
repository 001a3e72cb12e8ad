"""Adam's moments as a piece of an optimizer (Kingma and Ba, 2015, algorithm 1)."""

import math

import tensorflow.compat.v1 as tf


class ScaleByAdam:
    """Turns gradients into Adam's ratio r. With g the gradient and t the number of the update:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g^2
        r = m / (sqrt(v) + epsilon)                                         without bias correction
        r = m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon)       with it

    Epsilon is outside the root. Without bias correction, as in google-research/bert, the first
    ratios of a constant gradient are too large (3.2 at t = 1, 6.6 near t = 12, then falling to 1):
    the schedule's warm-up is there for that.

    The moments are the slots `<variable>/adam_m` and `<variable>/adam_v`. Both are float32, or the
    first is bfloat16, which saves 2 bytes a weight. The second cannot be: what a step adds to it,
    a thousandth, is less than bfloat16 can tell.
    """

    def __init__(self, beta_1, beta_2, epsilon, bias_correction, bfloat16_first_moments=False):
        """Sets the constants.

        Args:
            beta_1: decay rate of the first moment, 0 <= beta_1 < 1.
            beta_2: decay rate of the second moment, 0 <= beta_2 < 1.
            epsilon: > 0.
            bias_correction: Python bool; True needs the number of the update.
            bfloat16_first_moments: Python bool; store the first moments as bfloat16.

        Raises:
            ValueError: a constant is out of range.
        """
        for name, beta in (("beta_1", beta_1), ("beta_2", beta_2)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name}={beta}: must be at least 0 and below 1.")
        if not (math.isfinite(epsilon) and epsilon > 0.0):
            raise ValueError(f"epsilon={epsilon}: must be a finite number > 0; BERT has 1e-6.")
        self._beta_1 = beta_1
        self._beta_2 = beta_2
        self._epsilon = epsilon
        self._bias_correction = bias_correction
        self._first_dtype = tf.bfloat16 if bfloat16_first_moments else tf.float32

    def __call__(self, update, parameter):
        """float32 gradient of the variable's shape -> float32 ratio of the same shape."""
        beta_1, beta_2 = self._beta_1, self._beta_2
        m = beta_1 * parameter.slot("adam_m", dtype=self._first_dtype) + (1.0 - beta_1) * update
        v = beta_2 * parameter.slot("adam_v") + (1.0 - beta_2) * tf.square(update)
        parameter.set_slot("adam_m", m)
        parameter.set_slot("adam_v", v)
        if self._bias_correction:
            m = m / _one_minus_power(beta_1, parameter.update_number)
            v = v / _one_minus_power(beta_2, parameter.update_number)
        return m / (tf.sqrt(v) + self._epsilon)


def _one_minus_power(beta, t):
    """1 - beta^t, float32, without the cancellation: 1 - 0.999 has 4 good digits in float32."""
    if beta == 0.0:
        return tf.ones_like(t)
    return -tf.math.expm1(t * math.log(beta))
