"""How many tokens each record has, which the packing of rows must know before records are read.

Data creation writes the lengths beside the records, two bytes a record. Records without them, such
as google-research/bert's, are read once, and their lengths are kept for the next time.
"""

import dataclasses
import functools
import os
import zipfile
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.system import disk_files
from bert_estimator.system.ticker import Progress
from input_pipelines.records import manifest as manifests
from input_pipelines.records import unmasked_records
from input_pipelines.records.encoding import id_type
from input_pipelines.records.pretraining_features import (
    Feature,
    check_features,
    check_range,
    parsed,
)
from input_pipelines.records.record_reader import BadRecords, RecordError, RecordFiles


@dataclasses.dataclass(frozen=True)
class RecordLengths:
    """Holds the lengths of records."""

    # Ints [number of records], with [CLS] and [SEP]; 0 for a record that is left out.
    tokens: np.ndarray
    # Int64 [F + 1], the most words to predict of a record of each length.
    most_predictions: np.ndarray

    @property
    def token_share(self) -> float:
        """Returns the share of the positions of all records that are tokens."""
        return float(self.tokens.mean(dtype=np.float64)) / (len(self.most_predictions) - 1)

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the lengths of records, int64; 0 for the number -1."""
        return np.where(numbers < 0, 0, self.tokens[numbers]).astype(np.int64)

    def predictions(self, lengths: np.ndarray) -> np.ndarray:
        """Returns how many words sequences of these lengths have to predict at most, int64."""
        return self.most_predictions[lengths]


def evenly_spread(
    token_share: float, max_seq_length: int, max_predictions_per_seq: int
) -> RecordLengths:
    """Returns lengths that are spread evenly around a mean, a share of F that is above 0."""
    # Above a half, the lengths would go beyond F: they are spread less then.
    longest = round(min(1.0, 2 * token_share) * max_seq_length)
    shortest = max(1, round((2 * token_share - 1) * max_seq_length))
    tokens = np.round(np.linspace(shortest, longest, 2**16)).astype(np.int64)
    lengths = np.arange(max_seq_length + 1)
    share = max_predictions_per_seq / max_seq_length
    return RecordLengths(tokens, np.ceil(lengths * share).astype(np.int64))


def read(
    records: RecordFiles,
    expected: Mapping[str, Feature],
    kept_in: str | None = None,
    max_bad_records: int = 0,
) -> RecordLengths:
    """Returns the lengths of records, from files beside them, or by reading the records; `kept_in`
    keeps what was read, and None reads it each time."""
    listed = manifests.read_manifests_of(records.files)
    most = np.zeros(expected["input_mask"].length + 1, np.int64)
    of_files, unknown, read_lengths = {}, [], functools.cache(_lengths_beside)
    for path in records.files:
        manifest_path, manifest = listed.get(path, (None, None))
        if manifest is not None:
            most = np.maximum(most, _most_predictions(manifest))
        if manifest is not None and manifest.lengths_file is not None:
            beside = read_lengths(manifest_path)
            of_files[path] = beside[os.path.basename(manifests.place(path))]
        else:
            unknown.append(path)
    if unknown:
        kept = _kept(kept_in, unknown)
        lengths, words = kept or _counted(unknown, listed, expected, BadRecords(max_bad_records))
        # A record that is left out has no tokens. The next run is to see it, and to say so.
        if kept_in and kept is None and lengths.all():
            kept = {"digest": manifests.digest(unknown), "lengths": lengths}
            with disk_files.writer(kept_in, "wb") as file:
                np.savez(file, **kept, most_predictions=words)
        most = np.maximum(most, words)
        ends = np.cumsum([records.num_records_of(path) for path in unknown])
        of_files |= dict(zip(unknown, np.split(lengths, ends[:-1]), strict=True))
    # What no record was seen to need, a record may need nevertheless if it is longer than another.
    most = np.maximum.accumulate(most)
    return RecordLengths(np.concatenate([of_files[path] for path in records.files]), most)


def _most_predictions(manifest):
    """Returns how many words `masking.MaskedExamples` chooses at most, by the record's length."""
    lengths = np.arange(manifest.max_seq_length + 1)
    most = np.rint(lengths * manifest.creation["masked_lm_prob"]).astype(np.int64)
    return np.clip(most, 1, manifest.max_predictions_per_seq)


def _lengths_beside(manifest_path):
    """Returns record file's name -> lengths of its records, of the file beside the manifest."""
    manifest = manifests.read_manifest(manifest_path)
    path = os.path.join(os.path.dirname(manifest_path), manifest.lengths_file)
    expected = manifest.corpus["record_lengths"]["sha256"]
    if not tf.io.gfile.exists(path) or manifests.sha256_of_file(path) != expected:
        raise ValueError(
            f"{path}: is missing or has changed since the records were made, as {manifest_path} "
            "says. Put the original back, or create the data again"
        )
    with tf.io.gfile.GFile(path, "rb") as file:
        lengths = np.load(file, allow_pickle=False)
    ends = np.cumsum([entry.num_records for entry in manifest.files])
    names = [entry.name for entry in manifest.files]
    return dict(zip(names, np.split(lengths, ends[:-1]), strict=True))


def _counted(files, listed, expected, bad_records):
    """Reads records; returns (their lengths, `most_predictions` of records that have masks)."""
    # Records are parsed without TensorFlow's parser: the first session of a process sizes the
    # threads of all, and must be the session that trains.
    records = RecordFiles(files)
    longest = expected["input_mask"].length
    lengths = np.zeros(records.num_records, id_type(longest + 1))
    most = np.zeros(longest + 1, np.int64)
    progress = Progress("Reading the lengths of records", records.num_records, "records")
    for path in files:
        _, manifest = listed.get(path, (None, None))
        is_unmasked = manifest is not None and manifest.is_dynamic
        kinds = unmasked_records.FEATURES if is_unmasked else expected
        first = records.first_record_of(path)
        for number in range(first, first + records.num_records_of(path)):
            try:
                lengths[number], words = _length_of(records, number, kinds, longest)
            except RecordError as error:
                error.number = number
                if not bad_records.skip(error):
                    raise
            else:
                most[lengths[number]] = max(most[lengths[number]], words)
            progress.add(1)
    return lengths, most


def _length_of(records, number, kinds, longest):
    """Returns the length of a record, and how many words it has to predict, if it has masks."""
    example, location = records.read(number), records.location(number)
    features = parsed(example, location).features.feature
    check_features(features, location, kinds)
    if "segment_lengths" in kinds:
        segments = np.array(features["segment_lengths"].int64_list.value)
        most = longest - 2 - int(segments[1] > 0)
        # Each length is checked before their sum, which could wrap around.
        for values in (segments, segments.sum(keepdims=True)):
            check_range(records, [number], "segment_lengths", values[np.newaxis], most)
        return int(segments.sum()) + longest - most, 0
    mask = np.array(features["input_mask"].int64_list.value)
    check_range(records, [number], "input_mask", mask[np.newaxis], 1)
    # The tokens of a packed sequence are the beginning of its row.
    if np.any(mask[1:] > mask[:-1]):
        raise RecordError(f"{location}: input_mask must be ones and then zeros to be packed")
    weights = np.array(features["masked_lm_weights"].float_list.value)
    return int(mask.sum()), np.count_nonzero(weights)


def _kept(path: str | None, files: Sequence[str]):
    """Returns what `read` has kept of these files, or None."""
    if path is None or not os.path.exists(path):
        return None
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as kept:
            if str(kept["digest"]) == manifests.digest(files):
                return kept["lengths"], kept["most_predictions"]
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # a damaged file is written anew
    return None
