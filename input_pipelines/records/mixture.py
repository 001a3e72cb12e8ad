"""Mixtures: several sets of records, each with a share of the training examples."""

from collections.abc import Iterable

import numpy as np

from input_pipelines.records.order import SHARES
from input_pipelines.records.record_reader import RecordFiles, find_record_sets


def mixture(records: RecordFiles, patterns: str | Iterable[str]) -> list[tuple[int, int]]:
    """Returns (number of records, share) of each pattern, for `order.BatchOrder`.

    Args:
      records: the opened files of the patterns.
      patterns: comma-separated patterns with weights, or a list of them.

    Returns:
      A pair for each pattern; the shares add up to `order.SHARES`. Empty without weights.

    Raises:
      ValueError: `find_record_sets` refuses the patterns, or a pattern has too small a weight, or
        does not have any record.
    """
    sets = find_record_sets(patterns)
    if sets[0][1] is None:
        return []
    shares = shares_of([weight for _, weight in sets])
    parts = []
    for (files, weight), share in zip(sets, shares, strict=True):
        num_records = sum(records.num_records_of(path) for path in files)
        if not share or not num_records:
            raise ValueError(
                f"{files[0]}: {num_records} records with the weight {weight:g} have "
                f"{share} of {SHARES} examples. Give the pattern more weight, or leave it out."
            )
        parts.append((num_records, share))
    return parts


def shares_of(weights: list[float]) -> list[int]:
    """Rounds weights to shares that add up to `order.SHARES`, by the largest remainders."""
    relative = np.array(weights) / max(weights)  # the sum of huge weights would be infinite
    exact = relative / np.sum(relative) * SHARES
    shares = np.floor(exact).astype(int)
    by_remainder = np.argsort(shares - exact, kind="stable")
    shares[by_remainder[: SHARES - shares.sum()]] += 1
    return shares.tolist()
