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
    """Says what one feature must be."""

    kind: str  # the field of `tf.train.Feature` that holds the values
    length: int  # number of values
    length_name: str | None = None  # the argument that gives the length; None if it is fixed
    last: int | float = _INT32_END - 1  # the largest value that is allowed; the smallest is 0
    reason: str | None = None  # why no larger value is allowed, a clause


class PretrainingFeatures:
    """Says what the features of every record must be; a size of None allows all of int32. For
    masked words alone, the records need not have labels of sentences."""

    def __init__(
        self,
        max_seq_length: int,
        max_predictions_per_seq: int,
        vocab_size: int | None = None,
        type_vocab_size: int | None = None,
        has_sentences: bool = True,
    ):
        by_token = ("int64_list", max_seq_length, "max_seq_length")
        by_prediction = (max_predictions_per_seq, "max_predictions_per_seq")
        token = _ids(vocab_size, "vocab_size")
        # For `check_kinds`.
        self.kinds = {
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
        }
        if has_sentences:
            self.kinds["next_sentence_labels"] = Feature("int64_list", 1, None, 1)

    def spec(self) -> dict[str, tf.io.FixedLenFeature]:
        """Returns the features for `tf.io.parse_example`."""
        dtypes = {"int64_list": tf.int64, "float_list": tf.float32}
        return {
            name: tf.io.FixedLenFeature([feature.length], dtypes[feature.kind])
            for name, feature in self.kinds.items()
        }

    def check_values(
        self, records: RecordFiles, numbers: np.ndarray, values: Mapping[str, np.ndarray]
    ) -> None:
        """Raises RecordError if a value of B records, [B, length] by name, is out of its range."""
        for name, feature in self.kinds.items():
            check_range(records, numbers, name, values[name], feature.last, feature.reason)


def check_kinds(record: bytes, location: str, expected: Mapping[str, Feature]) -> None:
    """Raises RecordError if a serialized example lacks a feature, or has another kind or length."""
    check_features(parsed(record, location).features.feature, location, expected)


def check_features(
    features: Mapping[str, tf.train.Feature], location: str, expected: Mapping[str, Feature]
) -> None:
    """Checks the features of a parsed record, as `check_kinds` does."""
    for name, feature in expected.items():
        if name not in features:
            raise RecordError(
                f"{location} has no feature {name!r}; it has "
                f"{', '.join(sorted(features)) or 'no features'}. Are these pretraining "
                "records?" + " --objective=mlm does without it." * (name == "next_sentence_labels")
            )
        kind = features[name].WhichOneof("kind")
        length = len(getattr(features[name], kind).value) if kind else 0
        if (kind, length) == (feature.kind, feature.length):
            continue
        # A length that comes from an argument may be right in the data, and wrong in the argument.
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
    """Parses a serialized example; raises RecordError if it is not an example."""
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
    """Raises RecordError if values of a feature of B records, [B, ...], are not from 0 to `last`,
    for a reason that is a clause."""
    if not values.size or (values.min() >= 0 and values.max() <= last):
        return
    # Not-a-number is bad, too: no comparison with it is true.
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
    has_sentences: bool = True,
) -> RecordFiles:
    """Finds and indexes pretraining records, and checks that they are what the caller expects."""
    records = RecordFiles(find_record_files(input_files))
    listed = manifests.read_manifests_of(records.files)
    _warn_of_missing(input_files, listed)
    features = PretrainingFeatures(
        max_seq_length, max_predictions_per_seq, has_sentences=has_sentences
    )
    first_record = 0
    for path in records.files:
        num_records = records.num_records_of(path)
        # A manifest speaks for all records of a file. Of other files the first record is a sample.
        if path in listed:
            expected = (max_seq_length, max_predictions_per_seq, vocab_size)
            _check_manifest(*listed[path], path, num_records, expected)
        elif num_records == 0:
            raise RecordError(f"{path}: the file is empty. Create the data again.")
        else:
            # The records of a file are alike; `PretrainingReader` checks each as it is read.
            example, location = records.read(first_record), records.location(first_record)
            check_kinds(example, location, features.kinds)
        first_record += num_records
    if not records.num_records:
        raise RecordError(f"{', '.join(records.files)}: no records. Create the data again.")
    return records


def _warn_of_missing(
    input_files: str | Iterable[str], listed: Mapping[str, tuple[str, manifests.Manifest]]
) -> None:
    """Warns if files that manifests list are not read."""
    read = {manifests.place(path) for path in listed}
    # Of a directory, all files are to be read. A glob may choose some of the files that exist.
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
    # The sizes tell a file that was exchanged; its hash would take as long as reading it.
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
        # A network may have more rows of embeddings than there are tokens.
        may_be_less = name == "vocab_size"
        if wanted is not None and not (value == wanted or (may_be_less and value < wanted)):
            raise ValueError(
                f"{path}: {name} is {value}, as {manifest_file} says, but {wanted} was given. Use "
                f"{value}, or create the data again."
            )
