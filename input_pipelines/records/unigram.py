"""The baseline of masked-LM: the unigram frequencies of the training text.

A model that ignores the context can do no better than these frequencies. Training has to get below
their cross-entropy.
"""

import os
from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from input_pipelines.records import manifest as manifests


def nats(token_counts: np.ndarray) -> np.ndarray:
    """Returns the cross-entropy of each id, float32 [V], under the counts of ids in a text, [V]."""
    # The probability of an id is (count + 1) / (sum of counts + V): one is added to each count, so
    # that a token which does not occur in the training text has a probability too (Laplace).
    counts = np.asarray(token_counts, np.float64) + 1.0
    return np.float32(np.log(counts.sum()) - np.log(counts))


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
