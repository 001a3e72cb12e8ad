"""The baseline of masked-LM: the unigram frequencies of the training text.

A model that ignores the context can do no better than these frequencies. Training has to get below
their cross-entropy.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from input_pipelines.records import manifest as manifests
from input_pipelines.records.order import spread
from input_pipelines.records.pretraining_features import (
    Feature,
    check_features,
    check_range,
    parsed,
)
from input_pipelines.records.record_reader import (
    BadRecords,
    RecordError,
    RecordFiles,
    find_record_files,
)
from input_pipelines.records.unmasked_records import FEATURES, BatchMasker, open_masker

_READ_AT_ONCE = 256


def unigram_cross_entropy(
    input_files: str | Iterable[str],
    token_counts: np.ndarray,
    max_records: int | None = None,  # as many as an evaluation reads; None for all
    max_bad_records: int = 0,  # that may be left out, as in `pretraining_input`
) -> float:
    """Computes the mean cross-entropy in nats of the masked tokens of records under the counts of
    each id in the training text, [V]."""
    # The probability of an id is (count + 1) / (sum of counts + V): one is added to each count, so
    # that a token which does not occur in the training text has a probability too (Laplace).
    counts = np.asarray(token_counts, np.float64) + 1.0
    nats = np.log(counts.sum()) - np.log(counts)
    total = total_weight = 0.0
    records = RecordFiles(find_record_files(input_files))
    # Records without masks get the masks that an evaluation gives them.
    masker = open_masker(records.files, seed=None)
    bad_records = BadRecords(max_bad_records)
    end = min(records.num_records, max_records or records.num_records)
    of = records.num_records if len(records.files) > 1 else end  # as in `input_fn_builder`
    for first in range(0, end, _READ_AT_ONCE):
        numbers = spread(np.arange(first, min(first + _READ_AT_ONCE, end)), of, end)
        masked = None
        # A bad record is left out, and the others are read again: its error names one record only.
        while masked is None and numbers.size:
            try:
                masked = list(_masked(records, masker, numbers, len(nats)))
            except RecordError as error:
                if error.number is None or not bad_records.skip(error):
                    raise
                numbers = numbers[numbers != error.number]
        for ids, weights in masked or ():
            total += float(nats[ids] @ weights)
            total_weight += float(weights.sum())
    if not total_weight:
        raise ValueError(f"{input_files}: no record has a masked token. Create the data again.")
    return total / total_weight


def frequencies(record_sets: Sequence[tuple[Sequence[str], float | None]]) -> np.ndarray | None:
    """Returns how often each id occurs in the text of record sets, (files, weight), float64
    [vocab_size]; None if the counts are not known."""
    counts_of_sets = []
    for files, _ in record_sets:
        listed = manifests.read_manifests_of(files)
        # Only manifests name counts; records of other programs do not have any.
        if len(listed) < len(files):
            return None
        counts = [_checked_counts(*entry) for entry in dict(listed.values()).items()]
        if any(of_set is None or of_set.shape != counts[0].shape for of_set in counts):
            return None
        counts_of_sets.append(np.sum(counts, axis=0, dtype=np.float64))
    if len({counts.shape for counts in counts_of_sets}) != 1:
        return None
    # A weight of None is for sets that are read one after the other: each has its own size. With
    # weights, the counts are as if each set had its share of the text.
    totals = [counts.sum() for counts in counts_of_sets]
    weights = [
        total if weight is None else weight
        for total, (_, weight) in zip(totals, record_sets, strict=True)
    ]
    scale = sum(totals) / sum(weights)
    return sum(
        counts * (weight * scale / max(total, 1.0))
        for counts, weight, total in zip(counts_of_sets, weights, totals, strict=True)
    )


def _checked_counts(path, manifest):
    """Returns the counts that a manifest names, or None with a warning if they are missing."""
    counts_path = os.path.join(os.path.dirname(path), manifest.token_counts)
    if not tf.io.gfile.exists(counts_path):
        tf.logging.warning(
            "%s is missing, although %s names it: the unigram baseline is not known.",
            counts_path,
            path,
        )
        return None
    if manifests.sha256_of_file(counts_path) != manifest.token_counts_sha256:
        raise ValueError(
            f"{counts_path}: has changed since the records were made, as {path} says. Put the "
            "original back, or remove the file to train without the unigram baseline"
        )
    return manifests.read_token_counts(counts_path)


def _features(example: bytes, location: str, is_unmasked: bool) -> Mapping[str, tf.train.Feature]:
    """Returns the features of a record; raises RecordError if one is missing or malformed."""
    features = parsed(example, location).features.feature
    expected = FEATURES
    if not is_unmasked:
        # The baseline does not know P: any length will do, if ids and weights agree.
        has_ids = "masked_lm_ids" in features
        number = len(features["masked_lm_ids"].int64_list.value) if has_ids else 0
        expected = {
            "masked_lm_ids": Feature("int64_list", max(number, 1)),
            "masked_lm_weights": Feature("float_list", max(number, 1)),
        }
    check_features(features, location, expected)
    return features


def _masked(
    records: RecordFiles, masker: BatchMasker | None, numbers: np.ndarray, vocab_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (ids of the masked tokens, their weights) of records, int64 and float64."""
    examples = records.read_all(numbers)
    rows = []
    for number, example, location in zip(
        numbers.tolist(), examples, records.locations(numbers), strict=True
    ):
        try:
            rows.append(_features(example, location, masker is not None))
        except RecordError as error:
            error.number = number
            raise
    if masker:
        values = {
            "token_ids": np.array([row["token_ids"].bytes_list.value[0] for row in rows], object),
            **{
                name: np.array([row[name].int64_list.value for row in rows], np.int64)
                for name in ("segment_lengths", "next_sentence_labels")
            },
        }
        batch = masker.features(records, numbers, np.zeros_like(numbers), values)
        labels, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]
    else:
        labels = [np.array(row["masked_lm_ids"].int64_list.value, np.int64) for row in rows]
        weights = [np.array(row["masked_lm_weights"].float_list.value) for row in rows]
    for number, ids, of_ids in zip(numbers, labels, weights, strict=True):
        check_range(records, [number], "masked_lm_ids", ids[None], vocab_size - 1)
        yield ids, of_ids.astype(np.float64)
