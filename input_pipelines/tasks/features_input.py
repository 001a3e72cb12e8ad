"""Batches of features, for fine-tuning, its evaluation and its predictions.

To evaluate and predict, examples come in another order than their own (`ReorderedBatches`), since a
batch takes the time of its longest example, or of the fullest batch.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from input_pipelines.records.order import BatchOrder
from input_pipelines.records.packed_rows import Packs
from input_pipelines.records.pretraining_input import deployment, prefetched
from input_pipelines.tasks.features import Batches

_LEAST_LENGTH = 2  # [CLS] [SEP]
# In training, lengths are multiples of at least 8, and there are at most 16 of them.
_LEAST_MULTIPLE, _MOST_LENGTHS = 8, 16
_USUAL_ROW = 128  # packed rows are at least as long, if max_seq_length allows it


def input_fn_builder(
    features: Batches,
    is_training: bool,
    random_seed: int = 0,
    skipped: Sequence[tuple[int, int]] = (),
    pads_to_longest: bool = False,
    packs: Packs | None = None,
) -> Callable[[Mapping[str, Any]], tf.data.Dataset]:
    """Builds an `input_fn`.

    Training is endless, in the order of `input_pipelines.records.order`, from the batch of
    `params["context"].global_step` on; if rows are packed, it ends with the last batch of the plan.
    Evaluation and prediction are one pass in the examples' order; the last batch is padded with
    examples of zeros, whose `is_real_example` is 0.

    Args:
      features: the examples.
      is_training: True for training, False for evaluation and prediction.
      random_seed: seed of the order of training.
      skipped: the batches that training leaves out, as `order.BatchOrder` takes them.
      pads_to_longest: whether a batch is as long as its longest example, and not always
        max_seq_length; in training the length is rounded up, so that XLA compiles few lengths.
      packs: how rows are packed; None for a row for each example.

    Returns:
      `input_fn(params)`. It returns a dataset of the dictionaries that `features.batch` returns,
      with `params["batch_size"]` examples each. No value is cast to bfloat16: all are integers,
      except the labels of regression and the weights of windows, which go into a float32 loss.
    """

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        batch_size = params["batch_size"]
        start, invocation, num_invocations, replicas = deployment(params.get("context"))
        seed = random_seed if is_training else None
        if packs is not None:
            # Every host plans the rows of the global batch, and then reads its own share of them.
            order = BatchOrder(len(features), batch_size * num_invocations, seed, skipped=skipped)
            row_length = row_length_of(features)
            order = packs.slot_order(
                order,
                functools.partial(_lengths, features),
                row_length,
                batch_size // replicas,
                replicas,
                (invocation, num_invocations),
            )
            read = _reader(features, row_length)
            shapes = order.shapes(lambda number: read(np.full(number, -1)))
        else:
            order = BatchOrder(
                len(features), batch_size, seed, invocation, num_invocations, skipped
            )
            read = _reader(features, None, is_training, pads_to_longest)
            shapes = _shapes(features, batch_size, pads_to_longest)
        names = sorted(shapes)

        def arrays(batch_number: np.int64) -> list[np.ndarray]:
            numbers, _ = order.records(int(batch_number))
            batch = read(numbers)
            if packs is not None:
                batch = order.packed(int(batch_number), batch)
            return [batch[name] for name in names]

        def tensors(batch_number: tf.Tensor) -> dict[str, tf.Tensor]:
            dtypes = [shapes[name][1] for name in names]
            # numpy_function returns a list, so features are sorted by name; it loses the shapes.
            values = tf.numpy_function(arrays, [batch_number], dtypes)
            for name, value in zip(names, values, strict=True):
                value.set_shape(shapes[name][0])
            return dict(zip(names, values, strict=True))

        # Batches that are read ahead after the last of a training have not been planned.
        batches = tf.data.Dataset.range(start if is_training else 0, order.num_batches)
        return prefetched(batches.map(tensors))

    return input_fn


def row_length_of(features: Batches) -> int:
    """Returns the length of packed rows: room for the longest example and several usual ones."""
    # Longer rows would only add products between tokens of different examples.
    longest = max(int(features.lengths.max(initial=0)), _USUAL_ROW)
    return min(features.max_seq_length, -(-longest // _LEAST_MULTIPLE) * _LEAST_MULTIPLE)


def _reader(features, row_length, is_training=False, pads_to_longest=False):
    """Returns the function of the numbers of a batch that returns its features."""

    def read(numbers):
        if not pads_to_longest:
            return features.batch(numbers, row_length)
        length = int(_lengths(features, numbers).max(initial=_LEAST_LENGTH))
        if is_training:
            # XLA compiles parts of the network for each length, so there must be few.
            longest = features.max_seq_length
            multiple = max(_LEAST_MULTIPLE, -(-longest // _MOST_LENGTHS))
            length = min(longest, -(-length // multiple) * multiple)
        return features.batch(numbers, length)

    return read


def _lengths(features, numbers):
    """Returns the lengths of examples; 0 for the number -1."""
    return np.where(numbers < 0, 0, features.lengths[numbers])


def _shapes(features, batch_size, pads_to_longest):
    """Returns a dict of a feature's name -> (its shape, its dtype); None for sizes that differ."""
    padding = np.full(batch_size, -1)
    batch = features.batch(padding)
    shapes = {name: list(value.shape) for name, value in batch.items()}
    if pads_to_longest:
        for name, value in features.batch(padding, _LEAST_LENGTH).items():
            if list(value.shape) != shapes[name]:
                shapes[name][1] = None
    return {name: (shapes[name], tf.as_dtype(value.dtype)) for name, value in batch.items()}


# So many batches after one another are sorted together. With all of them, no prediction could be
# written before the last one.
_TOGETHER = 16


class ReorderedBatches:
    """Has the examples of a `Batches` in another order, part by part.

    In each part, the longest come first, so that a batch has examples of about one length; or all
    batches have about the same number of tokens, so that a few packed rows suffice for any.

    Attributes:
      lengths, max_seq_length: as `Batches` has them, in this order.
    """

    def __init__(self, examples: Batches, batch_size: int, is_balanced: bool = False):
        """Finds the order.

        Args:
          examples: the examples in their own order.
          batch_size: number of examples of a batch.
          is_balanced: whether batches get the same number of tokens, and not the same length.
        """
        self._examples = examples
        self._part_size = _TOGETHER * batch_size
        parts = []
        for first in range(0, len(examples), self._part_size):
            lengths = examples.lengths[first : first + self._part_size]
            longest_first = np.argsort(-lengths, kind="stable")
            order = _balanced(longest_first, batch_size) if is_balanced else longest_first
            parts.append(first + order)
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


def in_order(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yields the predictions of examples in the examples' own order.

    Args:
      rows: predictions with `unique_ids`, the examples' numbers from 0; -1 only pads a batch.
    """
    # A row waits for all rows before it, which are in its own sorted part.
    waiting, number = {}, 0
    for row in rows:
        if row["unique_ids"] >= 0:
            waiting[int(row["unique_ids"])] = row
        while number in waiting:
            yield waiting.pop(number)
            number += 1


def _balanced(longest_first, batch_size):
    """Deals examples to batches in turn, to and fro; what does not fill a batch comes last."""
    num_batches = len(longest_first) // batch_size
    full = longest_first[: num_batches * batch_size].reshape(batch_size, num_batches)
    full[1::2] = full[1::2, ::-1].copy()
    # In a batch, long and short ones alternate, so that a core's part has as much of each.
    places = np.arange(batch_size)
    alternating = np.where(places % 2, batch_size - 1 - places // 2, places // 2)
    return np.concatenate([full[alternating].T.ravel(), longest_first[num_batches * batch_size :]])
