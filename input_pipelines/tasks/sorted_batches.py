"""Examples in the order of their lengths, for one pass over them.

A batch takes the time of its longest example.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from input_pipelines.tasks.features_input import BatchesOfLength

# So many batches after one another are sorted together. With all of them, no prediction could be
# written before the last one.
_TOGETHER = 16

Row = TypeVar("Row")


class SortedBatches:
    """Has the examples of a `BatchesOfLength` in another order: in each part, the longest first.

    Attributes:
      lengths, max_seq_length: as `BatchesOfLength` has them, in this order.
    """

    def __init__(self, examples: BatchesOfLength, batch_size: int):
        """Sorts.

        Args:
          examples: the examples in their own order.
          batch_size: number of examples of a batch.
        """
        self._examples = examples
        self._part_size = _TOGETHER * batch_size
        parts = [
            first + np.argsort(-examples.lengths[first : first + self._part_size], kind="stable")
            for first in range(0, len(examples), self._part_size)
        ]
        self._order = np.concatenate(parts)
        self.lengths = examples.lengths[self._order]
        self.max_seq_length = examples.max_seq_length

    def __len__(self) -> int:
        return len(self._examples)

    def batch(self, numbers: np.ndarray, length: int | None = None) -> dict[str, np.ndarray]:
        """Returns the features of the examples at these places of the order; -1 is padding."""
        return self._examples.batch(np.where(numbers < 0, -1, self._order[numbers]), length)

    def restored(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields a row for each example, given in this order, in the examples' own order."""
        rows = iter(rows)
        for first in range(0, len(self), self._part_size):
            order = self._order[first : first + self._part_size]
            part = list(itertools.islice(rows, len(order)))
            for place in np.argsort(order):
                yield part[place]
