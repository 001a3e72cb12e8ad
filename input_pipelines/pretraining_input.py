"""Batches of pretraining records, for training and for evaluation.

Letters: B batch size, F sequence length, P predictions per sequence.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.choices import PRECISIONS
from input_pipelines.order import BatchOrder
from input_pipelines.pretraining_features import (
    PretrainingFeatures,
    check_examples,
    open_pretraining_records,
)
from input_pipelines.record_reader import RecordFiles


def input_fn_builder(
    input_files: str | Iterable[str],
    max_seq_length: int,
    max_predictions_per_seq: int,
    is_training: bool,
    random_seed: int = 0,
    precision: str = "float32",
    vocab_size: int | None = None,
    type_vocab_size: int | None = None,
    skipped: Sequence[tuple[int, int]] = (),
) -> Callable[[Mapping[str, Any]], tf.data.Dataset]:
    """Builds the `input_fn` of pretraining.

    Training is endless, in the order of `input_pipelines.order`. It starts at the batch of
    `params["context"].global_step`, if there is a context, so that a resumed training reads the
    same records as an uninterrupted one. Evaluation is one pass in the files' order; its last batch
    is padded with examples of zeros, whose `is_real_example` is 0.

    Args:
      input_files: comma-separated file patterns, or a list of them.
      max_seq_length: F.
      max_predictions_per_seq: P.
      is_training: True for training, False for evaluation.
      random_seed: seed of the order of training.
      precision: "bfloat16" casts `masked_lm_weights` to bfloat16; "float32" does not.
      vocab_size: size of the network's vocabulary. None: ids need only fit int32.
      type_vocab_size: number of the network's segments. None: segment ids need only fit int32.
      skipped: the batches that training leaves out, as `order.BatchOrder` takes them.

    Returns:
      `input_fn(params)`. It returns a dataset of dictionaries: `input_ids`, `input_mask`,
      `segment_ids` int32 [B, F]; `masked_lm_positions`, `masked_lm_ids` int32 [B, P];
      `masked_lm_weights` float [B, P]; `next_sentence_labels` int32 [B, 1]; `is_real_example` int32
      [B]. B is `params["batch_size"]`.

    Raises:
      ValueError: from the builder, if the precision is unknown; from the `input_fn`, if
        `open_pretraining_records` refuses the files.
      tf.errors.InvalidArgumentError: from the session: a record is damaged, has features of other
        kinds or lengths, or holds a value out of its range; the message names file, record and
        byte.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; it must be {' or '.join(PRECISIONS)}.")

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        batch_size = params["batch_size"]
        records = open_pretraining_records(
            input_files, max_seq_length, max_predictions_per_seq, vocab_size
        )
        start, invocation, num_invocations = deployment(params.get("context"))
        order = BatchOrder(
            records.num_records,
            batch_size,
            random_seed if is_training else None,
            invocation,
            num_invocations,
            skipped,
        )
        features = PretrainingFeatures(
            max_seq_length, max_predictions_per_seq, vocab_size, type_vocab_size
        )
        reader = _BatchReader(records, order, features, batch_size)

        def parse(batch_number: tf.Tensor) -> dict[str, tf.Tensor]:
            return cast_features(reader.parse(batch_number), precision)

        batches = tf.data.Dataset.range(start if is_training else 0, order.num_batches)
        return prefetched(batches.map(parse))

    return input_fn


class _BatchReader:
    """Reads the batches of records, and parses and checks them.

    Args:
      records: `RecordFiles` of pretraining.
      order: says which records a batch holds.
      features: the features of a record, and the ranges of their values.
      batch_size: B.
    """

    def __init__(
        self,
        records: RecordFiles,
        order: BatchOrder,
        features: PretrainingFeatures,
        batch_size: int,
    ):
        self._records = records
        self._order = order
        self._features = features
        self._batch_size = batch_size
        self._spec, self._padding = features.spec(), features.zeros()

    def parse(self, batch_number: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the features of a batch, [B, ...]; integers are int32."""
        examples, numbers, locations = tf.numpy_function(
            self._read, [batch_number], (tf.string, tf.int64, tf.string)
        )
        for tensor in (examples, locations):
            tensor.set_shape([self._batch_size])
        # The names are for the messages of the parser, which checks kinds and lengths.
        parsed = tf.io.parse_example(examples, self._spec, example_names=locations)
        # Values are checked as int64: a cast to int32 would bring some back into their range.
        values = [parsed[name] for name in self._spec]
        numbers = tf.numpy_function(self._check, [numbers, *values], tf.int64)
        numbers.set_shape([self._batch_size])
        with tf.control_dependencies([numbers]):
            features = {
                name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
                for name, value in parsed.items()
            }
        return {**features, "is_real_example": tf.cast(numbers >= 0, tf.int32)}

    def _read(self, batch_number: np.int64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the serialized examples of a batch, their numbers and their locations.

        The number of padding is -1.
        """
        numbers = self._order.record_numbers(int(batch_number))
        real = numbers[numbers >= 0]
        examples = self._records.read_all(real)
        locations = [self._records.location(number) for number in real.tolist()]
        check_examples(examples, locations)
        rest = self._batch_size - len(examples)
        examples, locations = examples + [self._padding] * rest, locations + [""] * rest
        return np.array(examples, object), numbers, np.array(locations, object)

    def _check(self, numbers: np.ndarray, *values: np.ndarray) -> np.ndarray:
        named = dict(zip(self._spec, values, strict=True))
        self._features.check_values(self._records, numbers, named)
        return numbers


def prefetched(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset with two batches prefetched, and without tf.data's autotuning.

    Autotuning has nothing to tune here, and its thread keeps a session from closing for the time
    between two tunings, which grows to a minute.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.prefetch(2).with_options(options)


def shapes_input_fn(
    max_seq_length: int, max_predictions_per_seq: int, precision: str
) -> Callable[[Mapping[str, Any]], dict[str, tf.Tensor]]:
    """Builds an `input_fn` of zeros with the shapes and dtypes of real batches.

    It serves programs that are compiled but not run, and does not read records.
    """

    def input_fn(params: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        shapes = {"is_real_example": ([], tf.int32)}
        features = PretrainingFeatures(max_seq_length, max_predictions_per_seq)
        for name, spec in features.spec().items():
            shapes[name] = (spec.shape, tf.int32 if spec.dtype == tf.int64 else spec.dtype)
        zeros = {
            name: tf.zeros([params["batch_size"], *shape], dtype)
            for name, (shape, dtype) in shapes.items()
        }
        return cast_features(zeros, precision)

    return input_fn


def cast_features(features: Mapping[str, tf.Tensor], precision: str) -> dict[str, tf.Tensor]:
    """Casts float features to bfloat16 if the precision is "bfloat16"; integers stay as they are.

    Args:
      features: tensors by name.
      precision: "bfloat16" or "float32".
    """
    if precision != "bfloat16":
        return dict(features)
    return {
        name: tf.cast(value, tf.bfloat16) if value.dtype.is_floating else value
        for name, value in features.items()
    }


def deployment(context: Any) -> tuple[int, int, int]:
    """Returns (step at which training starts, number of this invocation, number of invocations).

    Args:
      context: `params["context"]` of an `input_fn`, or None.
    """
    if context is None:
        return 0, 0, 1
    _, invocation, num_invocations, _ = context.current_input_fn_deployment()
    return int(context.global_step), invocation, num_invocations
