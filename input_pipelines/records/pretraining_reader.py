"""Reads, parses, checks and masks pretraining records, several batches at a time.

A call from TensorFlow into Python costs as much as the work on ten records, so small batches are
read in blocks of batches. A record that is not what it should be ends training at its own batch
nevertheless: each batch of a block carries its error.

Letters: M batches of a block, B batch size, F sequence length, P predictions per sequence.
"""

import functools
import weakref
from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from input_pipelines.records import packed_records
from input_pipelines.records.order import BatchOrder
from input_pipelines.records.packed_records import Packing
from input_pipelines.records.pretraining_features import PretrainingFeatures, check_kinds
from input_pipelines.records.record_reader import BadRecords, RecordError, RecordFiles

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
        packing: Packing | None,
        bad_records: BadRecords,
    ):
        self._records = records
        self._order = order
        self._features = features
        self._batch_size = batch_size
        self._at_once = max(1, _RECORDS_AT_ONCE // batch_size)
        self._packing = packing
        self._bad_records = bad_records
        self._kinds = packed_records.FEATURES if packing else features.kinds()
        outputs = {name: (spec.shape, spec.dtype) for name, spec in features.spec().items()}
        outputs["is_real_example"] = ([], tf.int64)
        # Values are checked as int64: a cast to int32 would bring some back into their range.
        self._outputs = {
            name: (shape, tf.int32 if dtype == tf.int64 else dtype)
            for name, (shape, dtype) in outputs.items()
        }

    @functools.cached_property
    def _parse(self):
        # TensorFlow sizes the threads of all sessions of a process by the first session. The first
        # must be the session that trains, so this one is made when the first records are read.
        return _parser(packed_records.SPEC if self._packing else self._features.spec())

    def batches(self, start: int) -> tf.data.Dataset:
        """Returns a dataset of the batches from number `start` on.

        A batch is a dict of int32 and float32 tensors [B, ...]: the features of records with masks,
        and `is_real_example` [B].
        """
        blocks = tf.data.Dataset.range(start, self._order.num_batches, self._at_once)
        return blocks.map(self._block).unbatch().map(_without_errors)

    def _block(self, first):
        """Returns (errors [M], features [M, B, ...]) as tensors."""
        dtypes = [tf.string, *(dtype for _, dtype in self._outputs.values())]
        errors, *features = tf.numpy_function(self._read, [first], dtypes)
        errors.set_shape([None])
        for feature, (shape, _) in zip(features, self._outputs.values(), strict=True):
            feature.set_shape([None, self._batch_size, *shape])
        return errors, dict(zip(self._outputs, features, strict=True))

    def _read(self, first):
        """Returns errors [M] and features [M, B, ...]; an error that is not empty ends the stream.

        A record that may be left out becomes padding. If it may not, its batch has the error, and
        the batches from there on are padding.
        """
        end = min(int(first) + self._at_once, self._order.num_batches)
        batches = [self._order.records(number) for number in range(int(first), end)]
        numbers, epochs = (np.stack(arrays) for arrays in zip(*batches, strict=True))
        numbers[np.isin(numbers, self._bad_records.numbers())] = -1
        errors = np.empty(len(numbers), object)
        errors.fill(b"")
        while True:
            is_real = numbers >= 0
            try:
                rows = self._rows(numbers[is_real], epochs[is_real]) if is_real.any() else {}
                break
            except RecordError as error:
                if error.number is None:
                    raise
                is_bad = numbers == error.number
                if not self._bad_records.skip(error):
                    batch = int(np.argmax(is_bad.any(axis=1)))
                    errors[batch:] = str(error).encode()
                    is_bad[batch:] = True
                numbers[is_bad] = -1
        features = []
        for name, (shape, dtype) in self._outputs.items():
            feature = np.zeros([*numbers.shape, *shape], dtype.as_numpy_dtype)
            feature[is_real] = rows.get(name, 1 if name == "is_real_example" else 0)
            features.append(feature)
        return errors, *features

    def _rows(self, numbers: np.ndarray, epochs: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the checked features of records, int64 or float32 [number of records, ...]."""
        values = self._parsed(numbers, self._records.read_all(numbers))
        if self._packing:
            values = self._packing.features(self._records, numbers, epochs, values)
        self._features.check_values(self._records, numbers, values)
        return values

    def _parsed(self, numbers, examples):
        try:
            return self._parse(np.array(examples, object))
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
            # The parser's message quotes bytes, which nobody can read, not even TensorFlow.
            for number, example in zip(numbers.tolist(), examples, strict=True):
                try:
                    check_kinds(example, self._records.location(number), self._kinds)
                except RecordError as error:
                    error.number = number
                    raise
            raise


def _parser(spec):
    """Returns a function from serialized examples to a dict of arrays.

    It has a session of its own, so that an error of the parser can be caught.
    """
    with tf.Graph().as_default() as graph:
        serialized = tf.placeholder(tf.string, [None])
        parsed = tf.io.parse_example(serialized, spec)
    config = tf.ConfigProto(
        device_count={"GPU": 0}, use_per_session_threads=True, inter_op_parallelism_threads=1
    )
    session = tf.Session(graph=graph, config=config)
    run = session.make_callable(parsed, [serialized])
    weakref.finalize(run, session.close)
    return run


def _without_errors(error: tf.Tensor, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the features of a batch; raises RecordError in the session if there is an error."""

    def fail(message):
        raise RecordError(message.decode())

    error = tf.cond(
        tf.equal(error, ""), lambda: error, lambda: tf.numpy_function(fail, [error], tf.string)
    )
    with tf.control_dependencies([error]):
        return {name: tf.identity(value) for name, value in features.items()}
