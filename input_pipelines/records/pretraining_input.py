"""Batches of pretraining records, for training and for evaluation.

`PretrainingReader.batches` counts blocks of batches, and calls `_read` for each, in Python, by way
of `_block`. There `order.records` says which records are in the batches, `read_all` reads them, a
session of its own parses them, a masker makes masks if they have none, and `check_values` checks
them. Then `input_fn` casts, and prefetches two batches.

Packed rows only, to be skipped at first: a host reads batches of its own slots (`packed_rows`), and
packs each of them (`_packed`). It knows the lengths of all records, and so deals the whole batch.

Letters: K batches in a block, B batch size, F sequence length, P predictions per sequence.
"""

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.command_line.choices import PRECISIONS
from input_pipelines.records import packed_rows
from input_pipelines.records.order import BatchOrder, mixture
from input_pipelines.records.pretraining_features import (
    PretrainingFeatures,
    check_kinds,
    open_pretraining_records,
)
from input_pipelines.records.record_lengths import RecordLengths
from input_pipelines.records.record_reader import BadRecords, RecordError, RecordFiles
from input_pipelines.records.unmasked_records import BatchMasker, open_masker

# A call from TensorFlow into Python costs as much as the work on ten records, so small batches are
# read in blocks of batches. A record that is not what it should be ends training at its own batch
# nevertheless: each batch of a block carries its error.
_RECORDS_AT_ONCE = 256


class PretrainingReader:
    """Reads the batches of records, and parses, checks and masks them.

    Args:
      records: `RecordFiles` of pretraining.
      order: says which records a batch holds; a `SlotOrder` also packs them.
      features: the features of a batch, and the ranges of their values.
      batch_size: B; None if it differs between packed batches.
      masker: makes batches of records without masks; None for records that have masks.
      bad_records: says which records that are not what they should be are left out.
    """

    def __init__(
        self,
        records: RecordFiles,
        order: BatchOrder | packed_rows.SlotOrder,
        features: PretrainingFeatures,
        batch_size: int | None,
        masker: BatchMasker | None,
        bad_records: BadRecords,
    ):
        self._records = records
        self._order = order
        self._features = features
        self._at_once = max(1, _RECORDS_AT_ONCE // batch_size) if batch_size else 1
        self._masker = masker
        self._bad_records = bad_records
        self._kinds = masker.kinds if masker else features.kinds
        outputs = {name: (spec.shape, spec.dtype) for name, spec in features.spec().items()}
        outputs["is_real_example"] = ([], tf.int64)
        # Values are checked as int64: a cast to int32 would bring some back into their range.
        self._outputs = {
            name: (shape, tf.int32 if dtype == tf.int64 else dtype)
            for name, (shape, dtype) in outputs.items()
        }
        self._shapes = {
            name: ([batch_size, *shape], dtype) for name, (shape, dtype) in self._outputs.items()
        }
        if isinstance(order, packed_rows.SlotOrder):
            self._shapes = order.shapes(functools.partial(_zeros, self._outputs))

    @functools.cached_property
    def _parse(self):
        # TensorFlow sizes the threads of all sessions of a process by the first session. The first
        # must be the session that trains, so this one is made when the first records are read.
        return _parser(self._masker.spec if self._masker else self._features.spec())

    def batches(self, start: int) -> tf.data.Dataset:
        """Returns a dataset of the batches from number `start` on.

        A batch is a dict of int32 and float32 tensors [B, ...]: the features of records with masks,
        and `is_real_example` [B]; or what a `SlotOrder` packs.
        """
        blocks = tf.data.Dataset.range(start, self._order.num_batches, self._at_once)
        return blocks.map(self._block).unbatch().map(_without_errors)

    def _block(self, first):
        """Returns (errors [K], features [K, B, ...]) as tensors."""
        dtypes = [tf.string, *(dtype for _, dtype in self._shapes.values())]
        errors, *features = tf.numpy_function(self._read, [first], dtypes)
        errors.set_shape([None])
        for feature, (shape, _) in zip(features, self._shapes.values(), strict=True):
            feature.set_shape([None, *shape])
        return errors, dict(zip(self._shapes, features, strict=True))

    def _read(self, first):
        """Returns errors [K] and features [K, B, ...]; a non-empty error ends the stream."""
        end = min(int(first) + self._at_once, self._order.num_batches)
        batches = [self._order.records(number) for number in range(int(first), end)]
        numbers, epochs = (np.stack(arrays) for arrays in zip(*batches, strict=True))
        numbers[np.isin(numbers, self._bad_records.numbers())] = -1
        errors = np.empty(len(numbers), object)
        errors.fill(b"")
        # A record that may be left out becomes padding. If it may not, its batch has the error, and
        # the batches from there on are padding. Each turn finds one bad record, and reads the
        # others again.
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
        features = _zeros(self._outputs, *numbers.shape)
        for name, values in features.items():
            values[is_real] = rows.get(name, 1 if name == "is_real_example" else 0)
        if isinstance(self._order, packed_rows.SlotOrder):
            features = self._packed(int(first), features, errors)
        return errors, *(features[name] for name in self._shapes)

    def _packed(self, first, features, errors):
        """Packs the batches of a block; a batch that cannot be packed gets an error."""
        packed = []
        for place in range(len(errors)):
            batch = {name: values[place] for name, values in features.items()}
            try:
                self._check_tokens(first + place, batch)
                packed.append(self._order.packed(first + place, batch))
            except ValueError as error:
                # The stream ends here, so the error is the error of all batches after it, too; an
                # earlier error stays.
                errors[place:] = errors[place] or str(error).encode()
                packed.append(
                    {
                        name: np.zeros([size or 1 for size in shape], dtype.as_numpy_dtype)
                        for name, (shape, dtype) in self._shapes.items()
                    }
                )
        return {name: np.stack([batch[name] for batch in packed]) for name in self._shapes}

    def _check_tokens(self, batch_number, batch):
        """Raises RecordError for a record that has another length than is known, or tokens after
        padding."""
        expected = self._order.lengths(batch_number)
        is_token = np.arange(batch["input_mask"].shape[1]) < expected[:, np.newaxis]
        is_wrong = (batch["input_mask"] != is_token).any(axis=1) & (batch["is_real_example"] > 0)
        if is_wrong.any():
            number = int(self._order.records(batch_number)[0][np.argmax(is_wrong)])
            raise RecordError(
                f"{self._records.location(number)}: input_mask must be "
                f"{expected[np.argmax(is_wrong)]} times 1 and then 0 to be packed. Give --nopack, "
                "or create the data again, and train in another --output_dir.",
                number,
            )

    def _rows(self, numbers: np.ndarray, epochs: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the checked features of records, int64 or float32 [number of records, ...]."""
        values = self._parsed(numbers, self._records.read_all(numbers))
        if self._masker:
            values = self._masker.features(self._records, numbers, epochs, values)
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


def _zeros(outputs, *sizes):
    """Returns arrays of features, name -> (shape, dtype), for batches of these sizes."""
    return {
        name: np.zeros([*sizes, *shape], dtype.as_numpy_dtype)
        for name, (shape, dtype) in outputs.items()
    }


def _parser(spec):
    """Returns a function from serialized examples to a dict of arrays."""
    # It has a session of its own, so that an error of the parser can be caught.
    with tf.Graph().as_default() as graph:
        serialized = tf.placeholder(tf.string, [None])
        parsed = tf.io.parse_example(serialized, spec)
    config = tf.ConfigProto(
        device_count={"GPU": 0}, use_per_session_threads=True, inter_op_parallelism_threads=1
    )
    session = tf.Session(graph=graph, config=config)
    run = session.make_callable(parsed, [serialized])
    # A session that is not closed keeps its threads for the life of the process.
    weakref.finalize(run, session.close)
    return run


def _without_errors(error: tf.Tensor, features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the features of a batch; raises RecordError in the session if there is an error."""

    def fail(message):
        raise RecordError(message.decode())

    error = tf.cond(
        tf.equal(error, ""), lambda: error, lambda: tf.numpy_function(fail, [error], tf.string)
    )
    # Without a consumer, TensorFlow would leave the check out of the graph.
    with tf.control_dependencies([error]):
        return {name: tf.identity(value) for name, value in features.items()}


# Of one core, for an example without masks; measured by `python -m benchmarks.input_speed`.
_SECS_OF_AN_EXAMPLE, _SECS_OF_A_TOKEN = 14e-6, 0.038e-6


def core_secs(max_seq_length: int) -> float:
    """Returns about how long one core takes to read, check and mask an example, in seconds."""
    return _SECS_OF_AN_EXAMPLE + max_seq_length * _SECS_OF_A_TOKEN


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
    max_bad_records: int = 0,
    packs: packed_rows.Packs | None = None,
    lengths: RecordLengths | None = None,
    num_read: int | None = None,
    has_sentences: bool = True,
) -> Callable[[Mapping[str, Any]], tf.data.Dataset]:
    """Builds the `input_fn` of pretraining.

    Training is endless, in the order of `input_pipelines.records.order`; if rows are packed, it
    ends with the last batch of the plan. It starts at the batch of `params["context"].global_step`,
    if there is a context, so that a resumed training reads the same records as an uninterrupted
    one. Evaluation is one pass in the files' order; its last batch
    is padded with examples of zeros, whose `is_real_example` is 0. If it only reads `num_read`
    records of several files, they are spread evenly over all of them.

    Records without masks (`unmasked_records`) get masks here, in training other ones in each epoch.

    Args:
      input_files: comma-separated file patterns, or a list of them. In training, patterns with
        weights at their ends, `a*.tfrecord:0.7,b*.tfrecord:0.3`, are a mixture: of each 1000
        examples, a pattern has its share. Evaluation ignores the weights.
      max_seq_length: F.
      max_predictions_per_seq: P.
      is_training: True for training, False for evaluation.
      random_seed: seed of the order of training.
      precision: "bfloat16" casts `masked_lm_weights` to bfloat16; "float32" does not.
      vocab_size: size of the network's vocabulary. None: ids need only fit int32.
      type_vocab_size: number of the network's segments. None: segment ids need only fit int32.
      skipped: the batches that training leaves out, as `order.BatchOrder` takes them.
      packs, lengths: how rows of a training are packed, and the lengths of the records; None for a
        row for each example.
      max_bad_records: how many different records that are damaged, or not what they should be, may
        be left out. Each is logged, and padding with `is_real_example` 0 takes its place.
      num_read: how many records an evaluation reads; None means all.
      has_sentences: False for masked words alone: the batches then lack `next_sentence_labels`,
        and the records may lack it, too.

    Returns:
      `input_fn(params)`. It returns a dataset of dictionaries: `input_ids`, `input_mask`,
      `segment_ids` int32 [B, F]; `masked_lm_positions`, `masked_lm_ids` int32 [B, P];
      `masked_lm_weights` float [B, P]; `next_sentence_labels` int32 [B, 1]; `is_real_example` int32
      [B]. B is `params["batch_size"]`. Packed batches are as `packed_rows.Packing.pack` says.

    Raises:
      ValueError: from the builder, if the precision is unknown, or the rows of an evaluation are to
        be packed; from the `input_fn`, if `open_pretraining_records` refuses the files.
      tf.errors.InvalidArgumentError: from the session: a record is damaged, has features of other
        kinds or lengths, or holds a value out of its range; the message names file, record and
        byte.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; it must be {' or '.join(PRECISIONS)}.")
    if packs is not None and not is_training:
        raise ValueError("packs is given, but only the records of a training are packed.")

    def input_fn(params: Mapping[str, Any]) -> tf.data.Dataset:
        batch_size = params["batch_size"]
        records = open_pretraining_records(
            input_files, max_seq_length, max_predictions_per_seq, vocab_size, has_sentences
        )
        sets = mixture(records, input_files) if is_training else ()
        start, *share, replicas = deployment(params.get("context"))
        seed = random_seed if is_training else None
        # A single file is read from its beginning, and the evaluation's own limit ends it.
        most = None if is_training or len(records.files) == 1 else num_read
        if packs is None:
            order = BatchOrder(records.num_records, batch_size, seed, *share, skipped, sets, most)
        else:
            # Every host knows the records of the whole batch, since it deals all of them.
            global_batch = batch_size * share[1]
            order = BatchOrder(records.num_records, global_batch, seed, 0, 1, skipped, sets)
            order = _slot_order(packs, order, lengths, batch_size // replicas, replicas, share)
            batch_size = order.size
        features = PretrainingFeatures(
            max_seq_length, max_predictions_per_seq, vocab_size, type_vocab_size, has_sentences
        )
        # The masks of an evaluation belong to its records, so that runs can be compared.
        masks_seed = random_seed if is_training else None
        masker = open_masker(records.files, masks_seed)
        reader = PretrainingReader(
            records, order, features, batch_size, masker, BadRecords(max_bad_records)
        )
        batches = reader.batches(start if is_training else 0)
        if precision == "bfloat16":
            batches = batches.map(lambda features: cast_features(features, precision))
        return prefetched(batches)

    return input_fn


def _slot_order(packs, order, lengths, *cores):
    """Plans the packing of a training; `cores` are as for `Packs.slot_order`."""
    row_length = len(lengths.most_predictions) - 1
    return packs.slot_order(order, lengths.of, row_length, *cores, predictions=lengths.predictions)


def prefetched(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset with two batches prefetched, and without tf.data's autotuning."""
    # Autotuning has nothing to tune here, and its thread keeps a session from closing for the time
    # between two tunings, which grows to a minute.
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.prefetch(2).with_options(options)


def shapes_input_fn(
    max_seq_length: int,
    max_predictions_per_seq: int,
    precision: str,
    packs: packed_rows.Packs | None = None,
    lengths: RecordLengths | None = None,
    sets: Sequence[tuple[int, int]] = (),
    has_sentences: bool = True,
) -> Callable[[Mapping[str, Any]], dict[str, tf.Tensor]]:
    """Builds an `input_fn` of zeros with the shapes and dtypes of real batches.

    It serves programs that are compiled but not run, and does not read records. The arguments are
    as for `input_fn_builder`, and `sets` as for `BatchOrder`.
    """

    def input_fn(params: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        shapes = {"is_real_example": ([], tf.int32)}
        features = PretrainingFeatures(
            max_seq_length, max_predictions_per_seq, has_sentences=has_sentences
        )
        for name, spec in features.spec().items():
            shapes[name] = (spec.shape, tf.int32 if spec.dtype == tf.int64 else spec.dtype)
        batch_size = params["batch_size"]
        batches = {name: ([batch_size, *shape], dtype) for name, (shape, dtype) in shapes.items()}
        if packs is not None:
            _, *share, replicas = deployment(params.get("context"))
            order = BatchOrder(len(lengths.tokens), batch_size * share[1], seed=0, sets=sets)
            core_batch = batch_size // replicas
            order = _slot_order(packs, order, lengths, core_batch, replicas, share)
            batches = order.shapes(functools.partial(_zeros, shapes))
        zeros = {name: tf.zeros(shape, dtype) for name, (shape, dtype) in batches.items()}
        return cast_features(zeros, precision)

    return input_fn


def cast_features(features: Mapping[str, tf.Tensor], precision: str) -> dict[str, tf.Tensor]:
    """Casts float features to bfloat16 if the precision is "bfloat16"; integers stay as they are.

    Args:
      features: tensors of any shape and dtype, by name.
      precision: "bfloat16" or "float32".
    """
    if precision != "bfloat16":
        return dict(features)
    return {
        name: tf.cast(value, tf.bfloat16) if value.dtype.is_floating else value
        for name, value in features.items()
    }


def deployment(context: Any) -> tuple[int, int, int, int]:
    """Returns what an `input_fn` is called for.

    Returns:
      (step at which training starts, number of this invocation, number of invocations, number of
      replicas that it feeds).

    Args:
      context: `params["context"]` of an `input_fn`, or None.
    """
    if context is None:
        return 0, 0, 1, 1
    _, *numbers = context.current_input_fn_deployment()
    return int(context.global_step), *numbers
