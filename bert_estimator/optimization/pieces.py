"""The pieces that optimizers are made of; each is a pure function of an update, see `piece.Piece`.

The first of them remember gradients: Adam's moments, Adafactor's, and momentum. The others scale
updates and do not have slots: weight decay, trust ratio, RMS, learning rate. Two of these skip
variables whose names match a pattern: anywhere in the name, which is given without the ":0" of the
tensor, so that "kernel$" matches at its end. An empty list excludes nothing.
"""

import dataclasses
import math
import re
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from bert_estimator.optimization.checks import (
    check_decay_rate,
    check_not_negative,
    check_positive,
)
from bert_estimator.optimization.piece import Piece, Slot

# LayerNorm's gamma and beta, and every bias, by google-research/bert's names and by slim's.
LAYER_NORM_AND_BIAS = ("LayerNorm", "layer_norm", "bias")


@dataclasses.dataclass(frozen=True)
class ScaleByAdam(Piece):
    """Turns gradients into Adam's ratio r (Kingma and Ba, 2015, algorithm 1).

    With g the gradient and t the number of the update, counted from 1:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g^2
        r = m / (sqrt(v) + epsilon)                                         without bias correction
        r = m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon)       with bias correction

    Epsilon is outside the root. Without bias correction, as in google-research/bert, the first
    ratios of a constant gradient are too large: 3.2 at t = 1, 6.6 near t = 12, then falling to 1.
    The warm-up of the learning rate makes up for that.

    The moments are the slots `<variable>/adam_m` and `<variable>/adam_v`, of the variable's shape.
    Both are float32, or the first moment is bfloat16, which saves 2 bytes a weight. The second
    moment cannot be bfloat16: a step changes it by about a thousandth, which is below bfloat16's
    resolution.

    Attributes:
      beta_1: decay rate of the first moment, 0 <= beta_1 < 1.
      beta_2: decay rate of the second moment, 0 <= beta_2 < 1.
      epsilon: number > 0, added to the root of the second moment.
      bias_correction: whether to divide the moments by 1 - beta^t. It needs the global_step in
        `apply_gradients`.
      bfloat16_first_moments: whether to store the first moments as bfloat16.

    Raises:
      ValueError: a constant is out of range.
    """

    beta_1: float
    beta_2: float
    epsilon: float
    bias_correction: bool
    bfloat16_first_moments: bool = False

    elementwise = takes_parts = True

    def __post_init__(self):
        check_decay_rate("beta_1", self.beta_1)
        check_decay_rate("beta_2", self.beta_2)
        check_positive("epsilon", self.epsilon, "; BERT has 1e-6")

    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        first = tf.bfloat16 if self.bfloat16_first_moments else tf.float32
        return {"adam_m": Slot(shape, first), "adam_v": Slot(shape)}

    def __call__(self, update, value, slots, step):
        m = self.beta_1 * slots["adam_m"] + (1.0 - self.beta_1) * update
        v = self.beta_2 * slots["adam_v"] + (1.0 - self.beta_2) * tf.square(update)
        # The slots keep the moments without their correction.
        moments = {"adam_m": m, "adam_v": v}
        if self.bias_correction:
            m = m / _one_minus_power(self.beta_1, step.number)
            v = v / _one_minus_power(self.beta_2, step.number)
        return m / (tf.sqrt(v) + self.epsilon), moments


@dataclasses.dataclass(frozen=True)
class ScaleByFactoredMoments(Piece):
    """Divides gradients by the root of their second moment, kept as row means and column means.

    Shazeer and Stern, 2018, "Adafactor", algorithm 4. With g the gradient of a matrix and t the
    number of the update, counted from 1:

        share = t^-decay_exponent                                     the paper's 1 - beta_2(t)
        r = (1 - share) * r + share * mean over columns of (g^2 + epsilon_1)        one per row
        c = (1 - share) * c + share * mean over rows of (g^2 + epsilon_1)           one per column
        u = g / sqrt(r * c / mean(r))

    The paper has sums instead of means, which gives the same u. A vector or a scalar keeps its
    whole second moment (algorithm 5). In a tensor of more than two dimensions, the last two are
    rows and columns.

    The slots are float32: `<variable>/adafactor_row` and `<variable>/adafactor_column`, or
    `<variable>/adafactor_v`. The piece needs the global_step in `apply_gradients`.

    Attributes:
      decay_exponent: 0 < decay_exponent <= 1; the paper has 0.8. The newest squared gradient has
        the weight t^-decay_exponent in the second moment.
      epsilon_1: number > 0, added to the squared gradients; the paper has 1e-30.

    Raises:
      ValueError: a constant is out of range.
    """

    decay_exponent: float
    epsilon_1: float

    def __post_init__(self):
        if not 0.0 < self.decay_exponent <= 1.0:
            raise ValueError(
                f"decay_exponent={self.decay_exponent}: must be above 0 and at most 1."
            )
        check_positive("epsilon_1", self.epsilon_1, "; Adafactor has 1e-30")

    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        if len(shape) < 2:
            return {"adafactor_v": Slot(shape)}
        return {
            "adafactor_row": Slot(shape[:-1]),
            "adafactor_column": Slot((*shape[:-2], shape[-1])),
        }

    def __call__(self, update, value, slots, step):
        square = tf.square(update) + self.epsilon_1
        # In the first update the share is 1, so the slots' zeros have no weight.
        share = step.number**-self.decay_exponent
        new = {}

        def moment(name, value):
            new[name] = (1.0 - share) * slots[name] + share * value
            return new[name]

        # Algorithm 5: a vector's whole second moment is small enough.
        if square.shape.rank < 2:
            return update * tf.math.rsqrt(moment("adafactor_v", square)), new
        row = moment("adafactor_row", tf.reduce_mean(square, axis=-1))
        column = moment("adafactor_column", tf.reduce_mean(square, axis=-2))
        # Each factor is applied alone: the product of two tiny moments would be 0 in float32.
        row = row / tf.reduce_mean(row, axis=-1, keepdims=True)
        update = update * tf.expand_dims(tf.math.rsqrt(row), -1)
        return update * tf.expand_dims(tf.math.rsqrt(column), -2), new


@dataclasses.dataclass(frozen=True)
class Momentum(Piece):
    """Replaces updates by their exponential average: m = beta * m + (1 - beta) * u.

    You et al., 2020, algorithm 1. The average is the float32 slot `<variable>/momentum`.

    Attributes:
      beta: decay rate, 0 <= beta < 1.

    Raises:
      ValueError: `beta` is out of range.
    """

    beta: float

    elementwise = takes_parts = True

    def __post_init__(self):
        check_decay_rate("beta", self.beta)

    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        return {"momentum": Slot(shape)}

    def __call__(self, update, value, slots, step):
        m = self.beta * slots["momentum"] + (1.0 - self.beta) * update
        return m, {"momentum": m}


def _one_minus_power(beta, t):
    """Returns 1 - beta^t in float32."""
    if beta == 0.0:
        return tf.ones_like(t)
    # Without cancellation: 1 - 0.999 has only 4 good digits.
    return -tf.math.expm1(t * math.log(beta))


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
        check_not_negative("weight_decay_rate", self.weight_decay_rate)
        _check_patterns(self, "exclude_from_weight_decay")

    def of(self, name: str) -> Piece | None:
        return None if _is_excluded(name, self.exclude_from_weight_decay) else self

    def __call__(self, update, value, slots, step):
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
    reports = ("trust_ratio",)

    def __post_init__(self):
        _check_patterns(self, "exclude_from_layer_adaptation")

    def of(self, name: str) -> Piece | None:
        return None if _is_excluded(name, self.exclude_from_layer_adaptation) else self

    def __call__(self, update, value, slots, step):
        weight_norm, update_norm = _norm(value, step), _norm(update, step)
        either_is_zero = tf.logical_or(tf.equal(weight_norm, 0.0), tf.equal(update_norm, 0.0))
        ratio = tf.where(either_is_zero, 1.0, tf.math.divide_no_nan(weight_norm, update_norm))
        # A finite norm divided by infinity is zero, which would hide that the update overflowed.
        ratio = tf.where(tf.math.is_inf(update_norm), update_norm, ratio)
        return ratio * update, {"trust_ratio": ratio}


@dataclasses.dataclass(frozen=True)
class ClipByRms(Piece):
    """Limits the root mean square of an update u: u / max(1, RMS(u) / clipping_threshold).

    Shazeer and Stern, 2018, section 6: updates are far too large when the second moment lags behind
    the gradients.

    The piece comes after the moments whose updates it limits. Before a trust ratio it has an effect
    only through the weight decay between them: the ratio makes any update as long as its variable.

    Attributes:
      clipping_threshold: number > 0, the largest root mean square of an update; the paper's d is 1.

    Raises:
      ValueError: the threshold is out of range.
    """

    clipping_threshold: float

    takes_parts = True

    def __post_init__(self):
        check_positive("clipping_threshold", self.clipping_threshold)

    def __call__(self, update, value, slots, step):
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
        check_positive("epsilon_2", self.epsilon_2)

    def __call__(self, update, value, slots, step):
        return update * tf.maximum(self.epsilon_2, _rms(value, step)), {}


@dataclasses.dataclass(frozen=True)
class ScaleByLearningRate(Piece):
    """Multiplies updates by the learning rate.

    The learning rate is a piece like the others because its place matters: a momentum that comes
    after it remembers past learning rates, and a momentum that comes before it does not.
    """

    elementwise = takes_parts = True

    def __call__(self, update, value, slots, step):
        return step.learning_rate * update, {}


def _norm(x, step):
    return tf.sqrt(2.0 * step.total(step.half_square(x)))


def _rms(x, step):
    return _norm(x, step) / math.sqrt(step.size)


def _check_patterns(piece, argument):
    """Checks the regular expressions in an attribute of a piece, and makes it a tuple."""
    patterns = getattr(piece, argument)
    # A text is a sequence of texts, too: each letter would exclude variables.
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
    # The piece is frozen, and must be hashable, which a list is not.
    object.__setattr__(piece, argument, tuple(patterns))


def _is_excluded(name, patterns):
    return any(re.search(pattern, name) for pattern in patterns)
