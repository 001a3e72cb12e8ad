"""Pieces of an optimizer that go by root mean squares (Shazeer and Stern, 2018)."""

import math

import tensorflow.compat.v1 as tf


class ClipByRms:
    """Scales an update u down to a root mean square of `threshold`: u / max(1, RMS(u) / threshold).

    Section 6 of the paper: of a second moment that lags behind the gradients come updates which are
    far too large.
    """

    def __init__(self, threshold):
        """Sets the threshold, a Python float > 0; the paper's d is 1.

        Raises:
            ValueError: it is out of range.
        """
        _check_positive("threshold", threshold)
        self._threshold = threshold

    def __call__(self, update, parameter):
        """float32 update of the variable's shape -> float32 update of the same shape."""
        del parameter
        return update / tf.maximum(1.0, _rms(update) / self._threshold)


class ScaleByParameterRms:
    """Makes the learning rate relative to the variable w: u * max(epsilon, RMS(w)).

    Section 8 of the paper. The bound lets a variable which is zero leave it.
    """

    def __init__(self, epsilon):
        """Sets the bound, a Python float > 0; the paper's epsilon_2 is 1e-3.

        Raises:
            ValueError: it is out of range.
        """
        _check_positive("epsilon", epsilon)
        self._epsilon = epsilon

    def __call__(self, update, parameter):
        """float32 update of the variable's shape -> float32 update of the same shape."""
        return update * tf.maximum(self._epsilon, _rms(parameter.value))


def _rms(x):
    return tf.sqrt(tf.reduce_mean(tf.square(x)))


def _check_positive(name, value):
    if not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"{name}={value}: must be a finite number > 0.")
