"""Layer-wise adaptation as a piece of an optimizer (You et al., 2020, algorithm 2)."""

import tensorflow.compat.v1 as tf

from bert_estimator.optimization.exclusions import Exclusions


class ScaleByTrustRatio:
    """Scales the update u of a variable w by ||w|| / ||u||, so that it moves w by a fixed share.

    The norms are L2 over the whole tensor (of a matrix: Frobenius), in float32. The paper's phi is
    the identity: the published runs name no bounds for it. The ratio is 1 if either norm is zero:
    a tensor that starts at zero must be able to leave it. A norm that is not finite makes the
    variable not finite, where checks will find it.

    The ratio is left in `parameter.trust_ratio`, unless the variable is excluded.
    """

    def __init__(self, exclude):
        """Sets whom it leaves alone.

        Args:
            exclude: list of regular expressions over variable names.

        Raises:
            ValueError: `exclude` is no list of patterns.
        """
        self._exclude = Exclusions(exclude, "exclude_from_layer_adaptation")

    def __call__(self, update, parameter):
        """float32 update of the variable's shape -> float32 update of the same shape."""
        if parameter.name in self._exclude:
            return update
        weight_norm = _norm(parameter.value)
        update_norm = _norm(update)
        either_is_zero = tf.logical_or(tf.equal(weight_norm, 0.0), tf.equal(update_norm, 0.0))
        ratio = tf.where(
            either_is_zero, tf.ones([]), tf.math.divide_no_nan(weight_norm, update_norm)
        )
        parameter.trust_ratio = ratio
        return ratio * update


def _norm(x):
    return tf.sqrt(tf.reduce_sum(tf.square(x)))
