"""The baseline of masked-LM: the unigram frequencies of the training text.

A model that ignores the context can do no better than these frequencies. Training has to get below
their cross-entropy.
"""

from collections.abc import Iterable

import numpy as np
import tensorflow.compat.v1 as tf

from input_pipelines.pretraining_features import check_range
from input_pipelines.record_reader import RecordFiles, find_record_files


def unigram_cross_entropy(
    input_files: str | Iterable[str], token_counts: np.ndarray, max_records: int | None = None
) -> float:
    """Computes the mean cross-entropy of the masked tokens of records under unigram frequencies.

    The probability of an id is (count + 1) / (sum of counts + V): one is added to each count, so
    that a token which does not occur in the training text has a probability too (Laplace).

    Args:
      input_files: comma-separated patterns of record files, or a list of them.
      token_counts: integer array [V], how often each id occurs in the training text.
      max_records: number of records to use, from the first on; None for all.

    Returns:
      The cross-entropy in nats per masked token, weighted with `masked_lm_weights`.

    Raises:
      ValueError: the records do not have any masked token, or have an id beyond V.
    """
    counts = np.asarray(token_counts, np.float64) + 1.0
    nats = np.log(counts.sum()) - np.log(counts)
    total = total_weight = 0.0
    records = RecordFiles(find_record_files(input_files))
    for number in range(min(records.num_records, max_records or records.num_records)):
        feature = tf.train.Example.FromString(records.read(number)).features.feature
        ids = np.array(feature["masked_lm_ids"].int64_list.value, np.int64)
        weights = np.array(feature["masked_lm_weights"].float_list.value, np.float64)
        check_range(records, [number], "masked_lm_ids", ids[None], len(nats) - 1)
        total += float(nats[ids] @ weights)
        total_weight += float(weights.sum())
    if not total_weight:
        raise ValueError(f"{input_files}: no record has a masked token. Create the data again.")
    return total / total_weight
