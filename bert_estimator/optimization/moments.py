"""Pieces of an optimizer that remember gradients: Adam's moments, Adafactor's, and momentum.

A piece is a pure function of an update; see `piece.Piece`.
"""

import dataclasses
import math

import tensorflow.compat.v1 as tf

from bert_estimator.optimization.piece import Piece, Slot, Slots, Step


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
        _check_decay_rate("beta_1", self.beta_1)
        _check_decay_rate("beta_2", self.beta_2)
        if not (math.isfinite(self.epsilon) and self.epsilon > 0.0):
            raise ValueError(f"epsilon={self.epsilon}: must be a finite number > 0; BERT has 1e-6.")

    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        first = tf.bfloat16 if self.bfloat16_first_moments else tf.float32
        return {"adam_m": Slot(shape, first), "adam_v": Slot(shape)}

    def __call__(
        self, update: tf.Tensor, value: tf.Tensor, slots: Slots, step: Step
    ) -> tuple[tf.Tensor, Slots]:
        m = self.beta_1 * slots["adam_m"] + (1.0 - self.beta_1) * update
        v = self.beta_2 * slots["adam_v"] + (1.0 - self.beta_2) * tf.square(update)
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
        if not (math.isfinite(self.epsilon_1) and self.epsilon_1 > 0.0):
            raise ValueError(
                f"epsilon_1={self.epsilon_1}: must be a finite number > 0; Adafactor has 1e-30."
            )

    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        if len(shape) < 2:
            return {"adafactor_v": Slot(shape)}
        return {
            "adafactor_row": Slot(shape[:-1]),
            "adafactor_column": Slot((*shape[:-2], shape[-1])),
        }

    def __call__(
        self, update: tf.Tensor, value: tf.Tensor, slots: Slots, step: Step
    ) -> tuple[tf.Tensor, Slots]:
        square = tf.square(update) + self.epsilon_1
        share = step.number**-self.decay_exponent
        new = {}

        def moment(name, value):
            new[name] = (1.0 - share) * slots[name] + share * value
            return new[name]

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
        _check_decay_rate("beta", self.beta)

    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        return {"momentum": Slot(shape)}

    def __call__(
        self, update: tf.Tensor, value: tf.Tensor, slots: Slots, step: Step
    ) -> tuple[tf.Tensor, Slots]:
        m = self.beta * slots["momentum"] + (1.0 - self.beta) * update
        return m, {"momentum": m}


def _check_decay_rate(name, beta):
    if not 0.0 <= beta < 1.0:
        raise ValueError(f"{name}={beta}: must be at least 0 and below 1.")


def _one_minus_power(beta, t):
    """Returns 1 - beta^t in float32, without cancellation: 1 - 0.999 has only 4 good digits."""
    if beta == 0.0:
        return tf.ones_like(t)
    return -tf.math.expm1(t * math.log(beta))
