"""The baseline of masked-LM: the unigram frequencies of the training text.

A model that ignores the context can do no better than these frequencies; its cross-entropy is what
training has to get below.
"""

from collections.abc import Iterable

import numpy as np
import tensorflow.compat.v1 as tf

from input_pipelines.pretraining_features import check_range
from input_pipelines.record_reader import RecordFiles, find_record_files


def unigram_cross_entropy(
    input_files: str | Iterable[str], token_counts: np.ndarray, max_records: int | None = None
) -> float:
    """Mean cross-entropy of the masked tokens of record files under unigram frequencies.

    The probability of an id is (count + 1) / (sum of counts + V): one is added to each count, so
    that a token which the training text does not hold has a probability too (Laplace).

    Args:
      input_files: comma-separated patterns of record files, or a list of them.
      token_counts: integer array [V], how often each id occurs in the training text.
      max_records: how many records to go through, from the first on; all by default.

    Returns:
      Nats per masked token, weighted with `masked_lm_weights`.

    Raises:
      ValueError: the files hold no masked token, or one beyond V.
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
        raise ValueError(f"{input_files}: no masked token in any record.")
    return total / total_weight
