"""Decoupled weight decay as a piece of an optimizer (Loshchilov and Hutter, 2019)."""

import math

from bert_estimator.optimization.exclusions import Exclusions


class AddDecayedWeights:
    """Adds rate * w to the update of every variable w that is not excluded.

    It stands after Adam's moments, so that the decay is no part of them: adding rate * w to the
    gradient would be an L2 loss, which Adam rescales weight by weight. It stands before the trust
    ratio and the learning rate, so that both scale it too; in LARS the momentum comes after these.
    """

    def __init__(self, rate, exclude):
        """Sets the rate and whom it leaves alone.

        Args:
            rate: Python float >= 0; BERT has 0.01.
            exclude: list of regular expressions over variable names.

        Raises:
            ValueError: the rate is negative or not finite, or `exclude` is no list of patterns.
        """
        if not (math.isfinite(rate) and rate >= 0.0):
            raise ValueError(f"weight_decay_rate={rate}: must be a finite number >= 0.")
        self._rate = rate
        self._exclude = Exclusions(exclude, "exclude_from_weight_decay")

    def __call__(self, update, parameter):
        """float32 update of the variable's shape -> float32 update of the same shape."""
        if parameter.name in self._exclude:
            return update
        return update + self._rate * parameter.value
