"""Tables of combined features, in which every pair of choices occurs."""

import itertools
from collections.abc import Collection, Mapping

import numpy as np


def table(features: Mapping[str, Collection[str]]) -> list[dict[str, str]]:
    """Returns rows, each a choice for every feature; all pairs of choices occur in some row."""
    pairs_left = _all_pairs(features)
    rows, generator = [], np.random.default_rng(1)
    while pairs_left:
        # The best of some random rows that have the first pair that is left.
        first = dict(min(map(sorted, pairs_left)))
        candidates = []
        for _ in range(100):
            row = {
                name: first.get(name, str(generator.choice(list(choices))))
                for name, choices in features.items()
            }
            candidates.append((len(_pairs_of(row) & pairs_left), row))
        row = max(candidates, key=lambda candidate: candidate[0])[1]
        rows.append(row)
        pairs_left -= _pairs_of(row)
    return rows


def check_table(rows: list[dict[str, str]], features: Mapping[str, Collection[str]]) -> None:
    """Asserts that every pair of choices is in a row."""
    assert set().union(*map(_pairs_of, rows)) == _all_pairs(features)


def _all_pairs(features):
    return {
        frozenset(pair)
        for one, other in itertools.combinations(features, 2)
        for pair in itertools.product(
            [(one, choice) for choice in features[one]],
            [(other, choice) for choice in features[other]],
        )
    }


def _pairs_of(row):
    return set(map(frozenset, itertools.combinations(row.items(), 2)))
