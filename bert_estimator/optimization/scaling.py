"""Pieces of an optimizer that scale updates: weight decay, trust ratio, RMS, learning rate.

A piece is a callable `piece(update, parameter) -> update`; see `parameter.Piece`. These pieces do
not have slots. Two of them leave alone the variables that a list of regular expressions excludes.
"""

import math
import re
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from bert_estimator.optimization.parameter import Parameter, alike

# LayerNorm's gamma and beta, and every bias, by google-research/bert's names and by slim's.
LAYER_NORM_AND_BIAS = ("LayerNorm", "layer_norm", "bias")

# A learning rate: a number, a float scalar tensor such as a schedule returns (or a variable), or a
# function of a variable's name that returns a number or a tensor.
Rate = float | tf.Tensor | tf.Variable
LearningRate = Rate | Callable[[str], Rate]


class Exclusions:
    """Holds regular expressions; each is searched for anywhere in a variable's name.

    `name in exclusions` says whether a pattern is found. Names are given without the ":0" of the
    tensor, so that "kernel$" matches at the end of the name.
    """

    def __init__(self, patterns: Sequence[str], argument: str):
        """Compiles the patterns.

        Args:
          patterns: list or tuple of regular expressions; an empty list excludes nothing.
          argument: name of the caller's argument that holds the patterns, for errors.

        Raises:
          ValueError: `patterns` is a single string, or a pattern is not a regular expression.
        """
        if isinstance(patterns, str):
            raise ValueError(
                f"{argument}={patterns!r}: must be a list of regular expressions; write "
                f"[{patterns!r}]."
            )
        self._patterns = []
        for pattern in patterns:
            try:
                self._patterns.append(re.compile(pattern))
            except re.error as error:
                raise ValueError(
                    f"{argument}: {pattern!r} is not a regular expression ({error})."
                ) from error

    def __contains__(self, name: str) -> bool:
        return any(pattern.search(name) for pattern in self._patterns)


class AddDecayedWeights:
    """Adds weight_decay_rate * w to the update of every variable w that is not excluded.

    This is the decoupled weight decay of Loshchilov and Hutter (2019). The piece comes after Adam's
    moments, so that they do not see the decay: weight_decay_rate * w added to the gradient would be
    an L2 loss, which Adam rescales weight by weight. It comes before the trust ratio and the
    learning rate, so that both scale the decay too. In LARS it comes before the momentum as well.
    """

    takes_parts = True

    def __init__(self, weight_decay_rate: float, exclude_from_weight_decay: Sequence[str]):
        """Sets the rate and the exclusions.

        Args:
          weight_decay_rate: number >= 0; BERT has 0.01.
          exclude_from_weight_decay: list of regular expressions, see `Exclusions`.

        Raises:
          ValueError: the rate is negative or not finite, or a pattern is not a regular expression.
        """
        if not (math.isfinite(weight_decay_rate) and weight_decay_rate >= 0.0):
            raise ValueError(
                f"weight_decay_rate={weight_decay_rate}: must be a finite number >= 0."
            )
        self._weight_decay_rate = weight_decay_rate
        self._exclude = Exclusions(exclude_from_weight_decay, "exclude_from_weight_decay")

    def kind(self, name: str) -> bool:
        """Returns whether the variable of this name is excluded."""
        return name in self._exclude

    def __call__(self, update: tf.Tensor, parameter: Parameter) -> tf.Tensor:
        """Returns the float32 update with the decay added; both have the variable's shape."""
        if parameter.name in self._exclude:
            return update
        return update + parameter.constant(self._weight_decay_rate) * parameter.value


class ScaleByTrustRatio:
    """Scales the update u of a variable w by ||w|| / ||u||: it becomes as long as w.

    The learning rate, which comes after it, is then the share of w that a step changes. This is the
    layer-wise adaptation of LAMB and LARS (You et al., 2020, algorithms 1 and 2). The norms are
    float32 L2 norms over the whole tensor: for a matrix, the Frobenius norm. The paper allows
    bounds on ||w|| (its function phi), but its runs do not name any, so this piece has no bounds.

    The ratio is 1 if either norm is zero: a tensor that starts at zero must be able to leave zero.
    If a norm is not finite, the variable becomes not finite, and checks for NaN find it. (The norms
    of finite weights above 1e19 may overflow, too.)

    The piece leaves the ratio in `parameter.trust_ratio`, unless the variable is excluded.
    """

    takes_parts = True

    def __init__(self, exclude_from_layer_adaptation: Sequence[str]):
        """Sets the exclusions.

        Args:
          exclude_from_layer_adaptation: list of regular expressions, see `Exclusions`.

        Raises:
          ValueError: a pattern is not a regular expression.
        """
        self._exclude = Exclusions(exclude_from_layer_adaptation, "exclude_from_layer_adaptation")

    def kind(self, name: str) -> bool:
        """Returns whether the variable of this name is excluded."""
        return name in self._exclude

    def __call__(self, update: tf.Tensor, parameter: Parameter) -> tf.Tensor:
        """Returns the scaled float32 update; both have the variable's shape."""
        if parameter.name in self._exclude:
            return update
        zero, one = parameter.constant(0.0), parameter.constant(1.0)
        weight_norm = _norm(parameter.value, parameter)
        update_norm = _norm(update, parameter)
        either_is_zero = tf.logical_or(tf.equal(weight_norm, zero), tf.equal(update_norm, zero))
        ratio = tf.where(either_is_zero, one, tf.math.divide_no_nan(weight_norm, update_norm))
        # A finite norm divided by infinity is zero, which would hide that the update overflowed.
        ratio = tf.where(tf.math.is_inf(update_norm), update_norm, ratio)
        parameter.trust_ratio = ratio
        return ratio * update


class ClipByRms:
    """Limits the root mean square of an update u: u / max(1, RMS(u) / clipping_threshold).

    Shazeer and Stern, 2018, section 6: updates are far too large when the second moment lags behind
    the gradients.
    """

    takes_parts = True
    kind = staticmethod(alike)

    def __init__(self, clipping_threshold: float):
        """Sets the limit.

        Args:
          clipping_threshold: number > 0, the largest root mean square of an update; the paper's d
            is 1.

        Raises:
          ValueError: the threshold is out of range.
        """
        _check_positive("clipping_threshold", clipping_threshold)
        self._clipping_threshold = clipping_threshold

    def __call__(self, update: tf.Tensor, parameter: Parameter) -> tf.Tensor:
        """Returns the limited float32 update; both have the variable's shape."""
        return update / tf.maximum(1.0, _rms(update, parameter) / self._clipping_threshold)


class ScaleByParameterRms:
    """Makes the learning rate relative to the variable w: u * max(epsilon_2, RMS(w)).

    Shazeer and Stern, 2018, section 8. The bound lets a variable that is zero leave zero.
    """

    takes_parts = True
    kind = staticmethod(alike)

    def __init__(self, epsilon_2: float):
        """Sets the bound.

        Args:
          epsilon_2: number > 0, the least size that a variable counts as; the paper has 1e-3.

        Raises:
          ValueError: the bound is out of range.
        """
        _check_positive("epsilon_2", epsilon_2)
        self._epsilon_2 = epsilon_2

    def __call__(self, update: tf.Tensor, parameter: Parameter) -> tf.Tensor:
        """Returns the scaled float32 update; both have the variable's shape."""
        return update * tf.maximum(self._epsilon_2, _rms(parameter.value, parameter))


class ScaleByLearningRate:
    """Multiplies updates by the learning rate.

    The learning rate is a piece like the others because its place matters: a momentum that comes
    after it remembers past learning rates, and a momentum that comes before it does not.
    """

    takes_parts = True

    def __init__(self, learning_rate: LearningRate):
        """Sets the learning rate.

        Args:
          learning_rate: a number; a float scalar tensor, such as a schedule returns for a step; or
            a function of a variable's name, such as "bert/pooler/dense/kernel", that returns a
            number or a tensor.
        """
        self._learning_rate = learning_rate

    def kind(self, name: str) -> str | None:
        """Returns None if the rate is a function: it is called once for each variable."""
        return None if callable(self._learning_rate) else "alike"

    def __call__(self, update: tf.Tensor, parameter: Parameter) -> tf.Tensor:
        """Returns the scaled float32 update; both have the variable's shape."""
        rate = self._learning_rate
        if callable(rate):
            rate = rate(parameter.name)
        return tf.cast(rate, tf.float32) * update


def _norm(x, parameter):
    half = parameter.total(tf.nn.l2_loss(x))  # see `clipping`
    return tf.sqrt(parameter.constant(2.0) * half)


def _rms(x, parameter):
    return _norm(x, parameter) / math.sqrt(parameter.num_elements)


def _check_positive(name, value):
    if not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"{name}={value}: must be a finite number > 0.")
