"""Parts of gradients, for cores that share an update.

Cores that train together hold the same weights. If each of them computes the whole update, all do
the same work. Instead, a core may get only its part of a summed gradient, hold only this part of
the weights and slots, and update this part; the next step gathers the weights from all cores (Xu et
al., 2020, "Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training").
"""

import dataclasses
from typing import Any, Protocol

import tensorflow.compat.v1 as tf


class Shards(Protocol):
    """What an update needs of the cores that share it.

    The parts of a tensor are as long as each other, and follow each other along an axis."""

    def axis_of(self, variable: tf.Variable) -> int | None:
        """Returns the axis of a variable's parts; None if every core updates the whole variable."""

    def sum_part(self, tensor: tf.Tensor, axis: int) -> tf.Tensor:
        """Sums float32 tensors of one shape over the replicas; returns this core's part."""

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the cores' tensors, a float32 tensor of their shape."""

    def hold_part(self, variable: tf.Variable, axis: int) -> Any:
        """Makes this core hold only its part of a variable, and returns the part.

        It has a variable's `handle`, `dtype`, `shape` and `assign`."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Holds a core's part of a gradient.

    Attributes:
      value: float32 tensor; the other cores have the parts before and after it.
      axis: the axis along which the parts follow each other.
      shards: the cores that have the parts.
    """

    value: tf.Tensor
    axis: int
    shards: Shards
