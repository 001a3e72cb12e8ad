"""Batches of features, for fine-tuning, its evaluation and its predictions.

To evaluate and predict, examples come in the order of their lengths: a batch takes the time of its
longest example.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import tensorflow.compat.v1 as tf

from input_pipelines.records.order import BatchOrder
from input_pipelines.records.pretraining_input import deployment, prefetched

_LEAST_LENGTH = 2  # [CLS] [SEP]
# In training, lengths are multiples of at least 8, and there are at most 16 of them.
_LEAST_MULTIPLE, _MOST_LENGTHS = 8, 16


class Batches(Protocol):
    """What batches are drawn from: `Features`, `TagFeatures` or `Windows`."""

    def __len__(self) -> int: ...

    def batch(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns features, int32 [number, length] each, of the examples with these numbers.

        Args:
          numbers: int64 [number]; -1 gives a padding of zeros.
        """


class BatchesOfLength(Batches, Protocol):
    """`Batches` that can be padded to a length: `Features` or `TagFeatures`.

    Attributes:
      lengths: int64 [number of examples], tokens with [CLS] and [SEP].
      max_seq_length: the greatest length.
    """

    lengths: np.ndarray
    max_seq_length: int

    def batch(self, numbers: np.ndarray, length: int | None = None) -> dict[str, np.ndarray]:
        """Returns features, int32 [number, length], as `Batches.batch` does, padded to a length."""


def input_fn_builder(
    features: Batches,
    is_training: bool,
    random_seed: int = 0,
    skipped: Sequence[tuple[int, int]] = (),
    pads_to_longest: bool = False,
) -> Callable[[Mapping[str, Any]], tf.data.Dataset]:
    """Builds an `input_fn`.

    Training is endless, in the order of `input_pipelines.records.order`, from the batch of
    `params["context"].global_step` on. Evaluation and prediction are one pass in the examples'
    order; the last batch is padded with examples of zeros, whose `is_real_example` is 0.

    Args:
      features: the examples.
      is_training: True for training, False for evaluation and prediction.
      random_seed: seed of the order of training.
      skipped: the batches that training leaves out, as `order.BatchOrder` takes them.
      pads_to_longest: whether a batch is as long as its longest example, and not always
        max_seq_length. In training the length is rounded up, so that there are few: XLA compiles
        parts of the network for each. The features must be `BatchesOfLength`.

    Returns:
      `input_fn(params)`. It returns a dataset of the dictionaries that `features.batch` returns,
      with `params["batch_size"]` examples each. No value is cast to bfloat16: all are integers,
      except the labels of regression, which go into a float32 loss.
    """
    example = features.batch(np.array([-1]))
    names = sorted(example)
    shapes = {name: list(value.shape[1:]) for name, value in example.items()}
    if pads_to_longest:
        for name, value in features.batch(np.array([-1]), _LEAST_LENGTH).items():
            if list(value.shape[1:]) != shapes[name]:
                shapes[name][0] = None

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        batch_size = params["batch_size"]
        start, invocation, num_invocations = deployment(params.get("context"))

        order = BatchOrder(
            len(features),
            batch_size,
            random_seed if is_training else None,
            invocation,
            num_invocations,
            skipped,
        )

        def padded(length: int) -> int:
            if not is_training:
                return length
            longest = features.max_seq_length
            multiple = max(_LEAST_MULTIPLE, -(-longest // _MOST_LENGTHS))
            return min(longest, -(-length // multiple) * multiple)

        def read(batch_number: np.int64) -> list[np.ndarray]:
            numbers = order.record_numbers(int(batch_number))
            if pads_to_longest:
                lengths = features.lengths[numbers[numbers >= 0]]
                batch = features.batch(numbers, padded(int(lengths.max(initial=_LEAST_LENGTH))))
            else:
                batch = features.batch(numbers)
            return [batch[name] for name in names]

        def tensors(batch_number: tf.Tensor) -> dict[str, tf.Tensor]:
            dtypes = [tf.as_dtype(example[name].dtype) for name in names]
            values = tf.numpy_function(read, [batch_number], dtypes)
            for name, value in zip(names, values, strict=True):
                value.set_shape([batch_size, *shapes[name]])
            return dict(zip(names, values, strict=True))

        batches = tf.data.Dataset.range(start if is_training else 0, order.num_batches)
        return prefetched(batches.map(tensors))

    return input_fn


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
        """Returns features, int32 [number, length] each, of the examples at places of the order.

        Args:
          numbers: int64 [number], the places; -1 gives a padding of zeros.
          length: tokens to pad to; None means `max_seq_length`.
        """
        return self._examples.batch(np.where(numbers < 0, -1, self._order[numbers]), length)

    def restored(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields a row for each example, given in this order, in the examples' own order."""
        rows = iter(rows)
        for first in range(0, len(self), self._part_size):
            order = self._order[first : first + self._part_size]
            part = list(itertools.islice(rows, len(order)))
            for place in np.argsort(order):
                yield part[place]
