"""What the features of a pretraining record must be, and the opening of files with such records.

`creation.pretraining_records` says what each feature means. Letters: B batch size, F sequence
length, P predictions per sequence.
"""

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from input_pipelines.records import manifest as manifests
from input_pipelines.records.record_reader import (
    RecordError,
    RecordFiles,
    find_listed,
    find_record_files,
)

_INT32_END = 2**31
_LARGEST_WEIGHT = float(tf.bfloat16.max)


class Feature(NamedTuple):
    """What one feature must be.

    Attributes:
      kind: the field of `tf.train.Feature` that holds the values.
      length: number of values.
      length_name: name of the argument that the length comes from; None for a fixed length.
      last: the largest value that is allowed; the smallest is 0.
      reason: why no larger value is allowed, a clause; or None if it needs no explanation.
    """

    kind: str
    length: int
    length_name: str | None = None
    last: int | float = _INT32_END - 1
    reason: str | None = None


class PretrainingFeatures:
    """What the features of every record must be: their kinds, lengths and ranges.

    Args:
      max_seq_length: F, length of `input_ids`, `input_mask` and `segment_ids`.
      max_predictions_per_seq: P, length of `masked_lm_positions`, `masked_lm_ids` and
        `masked_lm_weights`.
      vocab_size: size of the network's vocabulary. None: any ids that int32 can hold.
      type_vocab_size: number of the network's segments. None: as for `vocab_size`.
    """

    def __init__(
        self,
        max_seq_length: int,
        max_predictions_per_seq: int,
        vocab_size: int | None = None,
        type_vocab_size: int | None = None,
    ):
        by_token = ("int64_list", max_seq_length, "max_seq_length")
        by_prediction = (max_predictions_per_seq, "max_predictions_per_seq")
        token = _ids(vocab_size, "vocab_size")
        self._features = {
            "input_ids": Feature(*by_token, *token),
            "input_mask": Feature(*by_token, 1),
            "segment_ids": Feature(*by_token, *_ids(type_vocab_size, "type_vocab_size")),
            "masked_lm_positions": Feature(
                "int64_list", *by_prediction, max_seq_length - 1, "it is a place in input_ids"
            ),
            "masked_lm_ids": Feature("int64_list", *by_prediction, *token),
            "masked_lm_weights": Feature(
                "float_list", *by_prediction, _LARGEST_WEIGHT, "bfloat16 holds no larger number"
            ),
            "next_sentence_labels": Feature("int64_list", 1, None, 1),
        }

    def spec(self) -> dict[str, tf.io.FixedLenFeature]:
        """Returns the features for `tf.io.parse_example`."""
        dtypes = {"int64_list": tf.int64, "float_list": tf.float32}
        return {
            name: tf.io.FixedLenFeature([feature.length], dtypes[feature.kind])
            for name, feature in self._features.items()
        }

    def kinds(self) -> dict[str, Feature]:
        """Returns the features for `check_kinds`."""
        return dict(self._features)

    def check_values(
        self, records: RecordFiles, numbers: np.ndarray, values: Mapping[str, np.ndarray]
    ) -> None:
        """Checks that all values of a batch lie in their ranges.

        Args:
          records: the files of the records.
          numbers: int64 [B], numbers of the records.
          values: name -> values of the feature, int64 or float32 [B, length].

        Raises:
          RecordError: a value is out of its range; the message names the first.
        """
        for name, feature in self._features.items():
            check_range(records, numbers, name, values[name], feature.last, feature.reason)


def check_kinds(record: bytes, location: str, expected: Mapping[str, Feature]) -> None:
    """Checks that a record is an example whose features have the right kinds and lengths.

    Args:
      record: the serialized example.
      location: the file and the place of the record, for the message.
      expected: name -> what the feature must be.

    Raises:
      RecordError: a feature is missing, or has another kind or length.
    """
    check_features(parsed(record, location).features.feature, location, expected)


def check_features(
    features: Mapping[str, tf.train.Feature], location: str, expected: Mapping[str, Feature]
) -> None:
    """Checks the features of a parsed record; `check_kinds` says how, and what it raises."""
    for name, feature in expected.items():
        if name not in features:
            raise RecordError(
                f"{location} has no feature {name!r}; it has "
                f"{', '.join(sorted(features)) or 'no features'}. Are these pretraining "
                "records?"
            )
        kind = features[name].WhichOneof("kind")
        length = len(getattr(features[name], kind).value) if kind else 0
        if (kind, length) == (feature.kind, feature.length):
            continue
        if kind != feature.kind or not length or not feature.length_name:
            raise RecordError(
                f"{location}: {name} has {length} values of kind {kind}; it must have "
                f"{feature.length} of kind {feature.kind}. Create the data again."
            )
        raise RecordError(
            f"{location}: {name} has {length} values, but {feature.length_name} is "
            f"{feature.length}. Use {length}, or create the data again."
        )


def parsed(record: bytes, location: str) -> tf.train.Example:
    """Parses a serialized example.

    Args:
      record: the serialized example.
      location: the file and the place of the record, for the message.

    Raises:
      RecordError: the record is not an example.
    """
    try:
        return tf.train.Example.FromString(record)
    except Exception as error:  # Protocol buffers' own error type has no stable public name.
        raise RecordError(
            f"{location} is not a tf.train.Example: {error}. Create the file again."
        ) from None


def check_range(
    records: RecordFiles,
    numbers: Sequence[int] | np.ndarray,
    name: str,
    values: np.ndarray,
    last: int | float,
    reason: str | None = None,
) -> None:
    """Checks that values of a feature are from 0 to `last`; not-a-number is not.

    Args:
      records: the files of the records.
      numbers: numbers of B records.
      name: the feature.
      values: int64 or float32 [B, ...].
      last: the largest value that is allowed.
      reason: why no larger value is allowed, a clause.

    Raises:
      RecordError: a value is out of range; the message names the first.
    """
    if not values.size or (values.min() >= 0 and values.max() <= last):
        return
    is_bad = ~((values >= 0) & (values <= last))
    row = int(np.argwhere(is_bad)[0][0])
    number = int(numbers[row])
    raise RecordError(
        f"{records.location(number)}: {name} holds {values[row][is_bad[row]][0]}; it "
        f"must be from 0 to {last}{f', since {reason}' if reason else ''}. Give the network and "
        "the vocabulary that the data was created with, or create the data again.",
        number,
    )


def open_pretraining_records(
    input_files: str | Iterable[str],
    max_seq_length: int,
    max_predictions_per_seq: int,
    vocab_size: int | None = None,
) -> RecordFiles:
    """Finds and indexes pretraining records, and checks that they are what the caller expects.

    A file that a manifest lists is checked against it, any other file by its first record. If a
    directory or a glob lacks files that a manifest lists, a warning says so.

    Args:
      input_files: comma-separated patterns, or a list of them.
      max_seq_length: F.
      max_predictions_per_seq: P.
      vocab_size: size of the network's vocabulary, if it is to be checked.

    Raises:
      ValueError: no file matches, or a file holds records of other lengths or of another
        vocabulary.
      RecordError: a file is cut short, damaged or empty; the message names file and offset.
    """
    records = RecordFiles(find_record_files(input_files))
    listed = manifests.read_manifests_of(records.files)
    _warn_of_missing(input_files, listed)
    features = PretrainingFeatures(max_seq_length, max_predictions_per_seq)
    first_record = 0
    for path in records.files:
        num_records = records.num_records_of(path)
        if path in listed:
            expected = (max_seq_length, max_predictions_per_seq, vocab_size)
            _check_manifest(*listed[path], path, num_records, expected)
        elif num_records == 0:
            raise RecordError(f"{path}: the file is empty. Create the data again.")
        else:
            example, location = records.read(first_record), records.location(first_record)
            check_kinds(example, location, features.kinds())
        first_record += num_records
    if not records.num_records:
        raise RecordError(f"{', '.join(records.files)}: no records. Create the data again.")
    return records


def _warn_of_missing(
    input_files: str | Iterable[str], listed: Mapping[str, tuple[str, manifests.Manifest]]
) -> None:
    """Warns if files that manifests list are not read.

    Of a directory, all files are to be read. A glob may choose some of the files that exist.
    """
    read = {manifests.place(path) for path in listed}
    for is_glob, files in enumerate(find_listed(input_files)):
        for path, manifest in dict(listed[file] for file in files if file in listed).items():
            directory = os.path.dirname(path)
            there = set(tf.io.gfile.listdir(directory)) if is_glob else ()
            missing = [
                entry.name
                for entry in manifest.files
                if os.path.join(directory, entry.name) not in read and entry.name not in there
            ]
            if missing:
                _warn(
                    f"{len(missing)} of the {len(manifest.files)} files that {path} lists are not "
                    f"read, {os.path.join(directory, missing[0])} first: a part of the data is "
                    "missing."
                )


@functools.cache
def _warn(message: str) -> None:
    """Logs a warning, but not again each time the same data is opened."""
    tf.logging.warning("%s", message)


def _ids(size: int | None, name: str) -> tuple[int, str]:
    """Returns (the last of `size` ids, why it is the last)."""
    if size is None:
        return _INT32_END - 1, "ids are int32"
    return size - 1, f"the network's {name} is {size}"


def _check_manifest(
    manifest_file: str,
    manifest: manifests.Manifest,
    path: str,
    num_records: int,
    expected: tuple[int, int, int | None],
) -> None:
    entry = next(entry for entry in manifest.files if entry.name == os.path.basename(path))
    num_bytes = tf.io.gfile.stat(path).length
    if (entry.num_records, entry.num_bytes) != (num_records, num_bytes):
        raise RecordError(
            f"{path}: {num_records} records in {num_bytes} bytes, but {manifest_file} says "
            f"{entry.num_records} records in {entry.num_bytes} bytes. Create the data again."
        )
    for name, wanted in zip(
        ("max_seq_length", "max_predictions_per_seq", "vocab_size"), expected, strict=True
    ):
        value = getattr(manifest, name)
        if wanted is not None and value != wanted:
            raise ValueError(
                f"{path}: {name} is {value}, as {manifest_file} says, but {wanted} was given. Use "
                f"{value}, or create the data again."
            )
