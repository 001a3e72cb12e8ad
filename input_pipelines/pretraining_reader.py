"""Reads, parses, checks and masks pretraining records, several batches at a time.

A call from TensorFlow into Python costs as much as the work on ten records, so small batches are
read in blocks of batches. A record that is not what it should be ends training at its own batch
nevertheless: each batch of a block carries its error.

Letters: M batches of a block, B batch size, F sequence length, P predictions per sequence.
"""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from input_pipelines import packed_records
from input_pipelines.bad_records import BadRecords
from input_pipelines.order import BatchOrder
from input_pipelines.packed_records import PackedRecords
from input_pipelines.pretraining_features import PretrainingFeatures, check_examples, check_kinds
from input_pipelines.record_reader import RecordError, RecordFiles

_RECORDS_AT_ONCE = 256


class PretrainingReader:
    """Reads the batches of records, and parses, checks and masks them.

    Args:
      records: `RecordFiles` of pretraining.
      order: says which records a batch holds.
      features: the features of a batch, and the ranges of their values.
      batch_size: B.
      packing: makes batches of packed records; None for records that have masks.
      bad_records: says which records that are not what they should be are left out.
    """

    def __init__(
        self,
        records: RecordFiles,
        order: BatchOrder,
        features: PretrainingFeatures,
        batch_size: int,
        packing: PackedRecords | None,
        bad_records: BadRecords,
    ):
        self._records = records
        self._order = order
        self._features = features
        self._batch_size = batch_size
        self._at_once = max(1, _RECORDS_AT_ONCE // batch_size)
        self._packing = packing
        self._bad_records = bad_records
        self._spec = packed_records.SPEC if packing else features.spec()
        self._names = [name.encode() for name in self._spec]
        self._padding = packed_records.zeros() if packing else features.zeros()

    def batches(self, start: int) -> tf.data.Dataset:
        """Returns a dataset of the batches from number `start` on.

        A batch is a dict of int32 and float32 tensors [B, ...]: the features of records with masks,
        and `is_real_example` [B].
        """
        blocks = tf.data.Dataset.range(start, self._order.num_batches, self._at_once)
        return blocks.map(self._parse).unbatch().map(_without_errors)

    def _parse(self, first):
        """Returns (errors [M], features [M, B, ...]) of a block of batches."""
        read = (tf.string, tf.int64, tf.int64, tf.string, tf.string)
        examples, numbers, epochs, locations, errors = tf.numpy_function(self._read, [first], read)
        for tensor in (examples, locations):
            tensor.set_shape([None])
        # The names are for the messages of the parser, which checks kinds and lengths.
        parsed = tf.io.parse_example(examples, self._spec, example_names=locations)
        # Values are checked as int64: a cast to int32 would bring some back into their range.
        values = [parsed[name] for name in self._spec]
        shapes = {name: (spec.shape, spec.dtype) for name, spec in self._features.spec().items()}
        shapes["is_real_example"] = ([], tf.int64)
        dtypes = {n: tf.int32 if d == tf.int64 else d for n, (_, d) in shapes.items()}
        errors, *features = tf.numpy_function(
            self._finish, [numbers, epochs, errors, *values], [tf.string, *dtypes.values()]
        )
        errors.set_shape([None])
        for feature, (shape, _) in zip(features, shapes.values(), strict=True):
            feature.set_shape([None, self._batch_size, *shape])
        return errors, dict(zip(shapes, features, strict=True))

    def _read(self, first):
        """Returns the serialized examples of a block and what belongs to them.

        Returns:
          (examples [M * B], record numbers [M, B], epochs [M, B], locations [M * B], errors [M]).
          The number of padding is -1, and an error that is not empty ends the stream there.
        """
        end = min(int(first) + self._at_once, self._order.num_batches)
        records = [self._order.records(number) for number in range(int(first), end)]
        numbers, epochs = (np.stack(arrays) for arrays in zip(*records, strict=True))
        numbers[np.isin(numbers, self._bad_records.numbers())] = -1
        errors = np.empty(len(numbers), object)
        errors.fill(b"")

        def read():
            real = numbers[numbers >= 0]
            examples, locations = self._records.read_all(real), self._records.locations(real)
            self._check_examples(real, examples, locations)
            return examples, locations

        parts = self._settled(read, numbers, errors)
        examples, locations = (np.empty(numbers.size, object) for _ in parts)
        examples.fill(self._padding)
        locations.fill(b"")
        for array, values in zip((examples, locations), parts, strict=True):
            # Without the dtype, NumPy would strip zeros at the ends of byte strings.
            array[numbers.reshape(-1) >= 0] = np.array(values, object)
        return examples, numbers, epochs, locations, errors

    def _check_examples(self, numbers, examples, locations):
        """Checks what the parser cannot report as well, or, to leave records out, all of it."""
        if not self._bad_records.may_skip:
            # What holds the names of all features goes to the parser, which is faster.
            by_name = [[name in example for example in examples] for name in self._names]
            named = zip(*by_name, strict=True)
            odd = [i for i, has_names in enumerate(named) if not all(has_names)]
            check_examples([examples[i] for i in odd], [locations[i] for i in odd])
            return
        for number, example, location in zip(numbers.tolist(), examples, locations, strict=True):
            try:
                if self._packing:
                    check_kinds(example, location, packed_records.FEATURES)
                else:
                    self._features.check_example(example, location)
            except RecordError as error:
                error.number = number
                raise

    def _finish(self, numbers, epochs, errors, *values):
        """Returns the errors [M] and the checked features of a block [M, B, ...]."""
        named = dict(zip(self._spec, values, strict=True))
        flat = numbers.reshape(-1)

        def features():
            found = {name: _cleared(value, flat < 0) for name, value in named.items()}
            if self._packing:
                found = self._packing.features(self._records, flat, epochs.reshape(-1), found)
            self._features.check_values(self._records, flat, found)
            return found

        found = self._settled(features, numbers, errors)
        found = {**found, "is_real_example": flat >= 0}
        spec = self._features.spec()
        shaped = [
            found[name]
            .reshape(*numbers.shape, *found[name].shape[1:])
            .astype(np.float32 if name in spec and spec[name].dtype == tf.float32 else np.int32)
            for name in [*spec, "is_real_example"]
        ]
        return errors, *shaped

    def _settled(self, function: Callable, numbers: np.ndarray, errors: np.ndarray):
        """Returns the result of a function of the records that are left after its errors.

        A record that may be skipped is left out, by the number -1. If it may not be skipped, its
        batch gets the error, and the batches from there on are left out.
        """
        while True:
            try:
                return function()
            except RecordError as error:
                if error.number is None:
                    raise
                is_bad = numbers == error.number
                if not self._bad_records.skip(error):
                    batch = int(np.argmax(is_bad.any(axis=1)))
                    errors[batch:] = str(error).encode()
                    is_bad[batch:] = True
                numbers[is_bad] = -1


def _cleared(values: np.ndarray, is_padding: np.ndarray) -> np.ndarray:
    """Returns the values of a feature with zeros, or without bytes, in the rows of padding."""
    if not is_padding.any():
        return values
    values = values.copy()
    values[is_padding] = b"" if values.dtype == object else 0
    return values


def _without_errors(error: tf.Tensor, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the features of a batch; raises RecordError in the session if there is an error."""

    def fail(message):
        raise RecordError(message.decode())

    error = tf.cond(
        tf.equal(error, ""), lambda: error, lambda: tf.numpy_function(fail, [error], tf.string)
    )
    with tf.control_dependencies([error]):
        return {name: tf.identity(value) for name, value in features.items()}
