"""What an optimizer is made of: pieces, each a pure function of an update.

A piece keeps what it remembers of a variable in slots. All that it computes follows from its
arguments, so a chain may run it wherever it is quickest; see `chain.py`.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import tensorflow.compat.v1 as tf

Slots = dict[str, tf.Tensor]  # slot name -> float32 value


class Slot(NamedTuple):
    """Describes a variable that a piece keeps beside each variable: its static shape, and the dtype
    in which it is stored."""

    shape: tuple[int, ...]
    dtype: tf.DType = tf.float32


@dataclasses.dataclass(frozen=True)
class UpdateStep:
    """Says what a piece may know of an update of a variable, besides the variable.

    Attributes:
      learning_rate: float32 scalar tensor.
      number_or_none: float32 scalar tensor, 1 in the first update, 2 in the second; None if the
        caller has no global step. Pieces read `number`.
      size: how many elements the whole variable has.
      piece: the piece that gets the step, for its errors.
      total: function of a scalar, the sum over the elements that this core has, that returns the
        sum over all of the variable's elements, on whichever cores they are.
      half_square: function of a float32 tensor that returns half the sum of its squares, or a
        tensor for `total` whose sum that is.
    """

    learning_rate: tf.Tensor
    number_or_none: tf.Tensor | None = None
    size: int = 0
    piece: "Piece | None" = None
    total: Callable[[tf.Tensor], tf.Tensor] = lambda scalar: scalar
    # On a CPU it reads a tensor once, writes nothing, and takes a third of the time of a square and
    # a sum.
    half_square: Callable[[tf.Tensor], tf.Tensor] = tf.nn.l2_loss

    @property
    def number(self) -> tf.Tensor:
        """Returns the number of the update.

        Raises:
          ValueError: no global step was given.
        """
        if self.number_or_none is None:
            raise ValueError(
                f"{self.piece or 'This piece'} depends on the number of the update: give "
                "apply_gradients or minimize global_step=tf.train.get_global_step() (it is then "
                "incremented there, so do not increment it as well)."
            )
        return self.number_or_none


class Piece:
    """Turns an update into another one.

    A piece must be hashable, and equal to another piece only if both compute the same: a frozen
    dataclass of its constants is.

    Attributes:
      elementwise: whether each element of what the piece returns depends on the same element of
        what it gets alone, and on the `UpdateStep`, except for its `total`.
      takes_parts: whether a core may give the piece its part of a variable. An elementwise piece
        takes parts; another piece does if it sums by `UpdateStep.total` alone, and no such sum
        depends on another.
      reports: names of scalars that the piece returns beside its slots. The chain keeps
        "trust_ratio", for `ChainOptimizer.trust_ratios`.
    """

    elementwise = False
    takes_parts = False
    reports = ()

    def slots(self, shape: tuple[int, ...]) -> dict[str, Slot]:
        """Returns the slots of a variable of a shape, by name; they are zero before training.

        No other piece of the chain may have slots of these names.
        """
        return {}

    def of(self, name: str) -> "Piece | None":
        """Returns the piece for the variable of a name; None if the variable is left alone."""
        return self

    def __call__(
        self, update: tf.Tensor, value: tf.Tensor, slots: Slots, step: UpdateStep
    ) -> tuple[tf.Tensor, Slots]:
        """Returns the new update, and by name the new values of the piece's slots, and its reports.

        Args:
          update: float32, what the piece before this one returned; the first piece gets the
            gradient. The last update is subtracted from the variable.
          value: float32 of the same shape, the variable before the update.
          slots: the values before the update of the piece's slots.
          step: the step.
        """
        raise NotImplementedError
