"""Pieces of an optimizer that scale updates: weight decay, trust ratio, RMS, learning rate.

A piece is a pure function of an update; see `piece.Piece`. These pieces do not have slots.
Two of them leave alone the variables that a list of regular expressions excludes: each is searched
for anywhere in a variable's name. Names are given without the ":0" of the tensor, so that "kernel$"
matches at the end of the name. An empty list excludes nothing.
"""

import dataclasses
import math
import re
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from bert_estimator.optimization.piece import Piece, Slots, Step

# LayerNorm's gamma and beta, and every bias, by google-research/bert's names and by slim's.
LAYER_NORM_AND_BIAS = ("LayerNorm", "layer_norm", "bias")


@dataclasses.dataclass(frozen=True)
class AddDecayedWeights(Piece):
    """Adds weight_decay_rate * w to the update of every variable w that is not excluded.

    This is the decoupled weight decay of Loshchilov and Hutter (2019). The piece comes after Adam's
    moments, so that they do not see the decay: weight_decay_rate * w added to the gradient would be
    an L2 loss, which Adam rescales weight by weight. It comes before the trust ratio and the
    learning rate, so that both scale the decay too. In LARS it comes before the momentum as well.

    Attributes:
      weight_decay_rate: number >= 0; BERT has 0.01.
      exclude_from_weight_decay: list or tuple of regular expressions; it becomes a tuple.

    Raises:
      ValueError: the rate is negative or not finite, or a pattern is not a regular expression.
    """

    weight_decay_rate: float
    exclude_from_weight_decay: Sequence[str]

    elementwise = takes_parts = True

    def __post_init__(self):
        if not (math.isfinite(self.weight_decay_rate) and self.weight_decay_rate >= 0.0):
            raise ValueError(
                f"weight_decay_rate={self.weight_decay_rate}: must be a finite number >= 0."
            )
        _check_patterns(self, "exclude_from_weight_decay")

    def of(self, name: str) -> Piece | None:
        return None if _is_excluded(name, self.exclude_from_weight_decay) else self

    def __call__(
        self, update: tf.Tensor, value: tf.Tensor, slots: Slots, step: Step
    ) -> tuple[tf.Tensor, Slots]:
        return update + self.weight_decay_rate * value, {}


@dataclasses.dataclass(frozen=True)
class ScaleByTrustRatio(Piece):
    """Scales the update u of a variable w by ||w|| / ||u||: it becomes as long as w.

    The learning rate, which comes after it, is then the share of w that a step changes. This is the
    layer-wise adaptation of LAMB and LARS (You et al., 2020, algorithms 1 and 2). The norms are
    float32 L2 norms over the whole tensor: for a matrix, the Frobenius norm. The paper allows
    bounds on ||w|| (its function phi), but its runs do not name any, so this piece has no bounds.

    The ratio is 1 if either norm is zero: a tensor that starts at zero must be able to leave zero.
    If a norm is not finite, the variable becomes not finite, and checks for NaN find it. (The norms
    of finite weights above 1e19 may overflow, too.) The ratio is reported as `trust_ratio`.

    Attributes:
      exclude_from_layer_adaptation: list or tuple of regular expressions; it becomes a tuple.

    Raises:
      ValueError: a pattern is not a regular expression.
    """

    exclude_from_layer_adaptation: Sequence[str]

    takes_parts = True

    def __post_init__(self):
        _check_patterns(self, "exclude_from_layer_adaptation")

    def of(self, name: str) -> Piece | None:
        return None if _is_excluded(name, self.exclude_from_layer_adaptation) else self

    def __call__(
        self, update: tf.Tensor, value: tf.Tensor, slots: Slots, step: Step
    ) -> tuple[tf.Tensor, Slots]:
        weight_norm, update_norm = _norm(value, step), _norm(update, step)
        either_is_zero = tf.logical_or(tf.equal(weight_norm, 0.0), tf.equal(update_norm, 0.0))
        ratio = tf.where(either_is_zero, 1.0, tf.math.divide_no_nan(weight_norm, update_norm))
        # A finite norm divided by infinity is zero, which would hide that the update overflowed.
        ratio = tf.where(tf.math.is_inf(update_norm), update_norm, ratio)
        step.reports["trust_ratio"] = ratio
        return ratio * update, {}


@dataclasses.dataclass(frozen=True)
class ClipByRms(Piece):
    """Limits the root mean square of an update u: u / max(1, RMS(u) / clipping_threshold).

    Shazeer and Stern, 2018, section 6: updates are far too large when the second moment lags behind
    the gradients.

    Attributes:
      clipping_threshold: number > 0, the largest root mean square of an update; the paper's d is 1.

    Raises:
      ValueError: the threshold is out of range.
    """

    clipping_threshold: float

    takes_parts = True

    def __post_init__(self):
        _check_positive("clipping_threshold", self.clipping_threshold)

    def __call__(
        self, update: tf.Tensor, value: tf.Tensor, slots: Slots, step: Step
    ) -> tuple[tf.Tensor, Slots]:
        return update / tf.maximum(1.0, _rms(update, step) / self.clipping_threshold), {}


@dataclasses.dataclass(frozen=True)
class ScaleByParameterRms(Piece):
    """Makes the learning rate relative to the variable w: u * max(epsilon_2, RMS(w)).

    Shazeer and Stern, 2018, section 8. The bound lets a variable that is zero leave zero.

    Attributes:
      epsilon_2: number > 0, the least size that a variable counts as; the paper has 1e-3.

    Raises:
      ValueError: the bound is out of range.
    """

    epsilon_2: float

    takes_parts = True

    def __post_init__(self):
        _check_positive("epsilon_2", self.epsilon_2)

    def __call__(
        self, update: tf.Tensor, value: tf.Tensor, slots: Slots, step: Step
    ) -> tuple[tf.Tensor, Slots]:
        return update * tf.maximum(self.epsilon_2, _rms(value, step)), {}


@dataclasses.dataclass(frozen=True)
class ScaleByLearningRate(Piece):
    """Multiplies updates by the learning rate.

    The learning rate is a piece like the others because its place matters: a momentum that comes
    after it remembers past learning rates, and a momentum that comes before it does not.
    """

    elementwise = takes_parts = True

    def __call__(
        self, update: tf.Tensor, value: tf.Tensor, slots: Slots, step: Step
    ) -> tuple[tf.Tensor, Slots]:
        return step.learning_rate * update, {}


def _norm(x, step):
    half = step.total(tf.nn.l2_loss(x))  # see `clipping`
    return tf.sqrt(2.0 * half)


def _rms(x, step):
    return _norm(x, step) / math.sqrt(step.size)


def _check_patterns(piece, argument):
    """Checks the regular expressions in an attribute of a piece, and makes it a tuple."""
    patterns = getattr(piece, argument)
    if isinstance(patterns, str):
        raise ValueError(
            f"{argument}={patterns!r}: must be a list of regular expressions; write [{patterns!r}]."
        )
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"{argument}: {pattern!r} is not a regular expression ({error})."
            ) from error
    object.__setattr__(piece, argument, tuple(patterns))


def _is_excluded(name, patterns):
    return any(re.search(pattern, name) for pattern in patterns)


def _check_positive(name, value):
    if not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"{name}={value}: must be a finite number > 0.")
