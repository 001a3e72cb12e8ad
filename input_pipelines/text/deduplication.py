"""Finds documents that have come before, with some bytes of memory for each.

Exact duplicates have the same words, as `words_of` tells them. Near duplicates share most of
their sequences of 5 words: they are found by MinHash (Broder, 1997) with bands, by the numbers of
the FineWeb paper (Penedo et al., 2024): 14 bands of 8 hashes. Of the pairs of documents that share
75 % of their sequences, 77 % are found, and 5 % of the pairs that share 50 %.
"""

import hashlib
import zlib
from collections.abc import Sequence

import numpy as np

from bert_estimator.system import splitmix
from input_pipelines.text import document_filter

_WORDS = 5
_BANDS, _ROWS = 14, 8
_SEED = 0x3149_4A54
_AT_ONCE = 4096  # hashes that are in memory together, besides what is remembered
_FEWEST, _SHARE = 1024, 16  # so many hashes, and one of so many, are in a set
_BASE = np.uint64(0x9E3779B97F4A7C15)


class ExactDuplicates:
    """Remembers documents by hashes of 8 bytes of their words, whatever their case and spaces: at
    most 32 bytes of memory for each."""

    def __init__(self):
        self._hashes = HashSet()

    def is_new(self, document: Sequence[str]) -> bool:
        """Remembers a document, a sequence of sentences; returns False if it has come before."""
        text = " ".join(_words(document))
        # Among 10 million documents, one is mistaken for another with a probability of 3 in a
        # million.
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return self._hashes.add(int.from_bytes(digest, "big"))


class NearDuplicates:
    """Remembers documents by the hashes of their bands: at most 448 bytes for each document."""

    def __init__(self):
        self._bands = [HashSet() for _ in range(_BANDS)]
        multipliers = splitmix.keys(_SEED, np.arange(_BANDS * _ROWS))
        self._multipliers = multipliers | np.uint64(1)

    def is_new(self, document: Sequence[str]) -> bool:
        """Remembers a document; returns False if it, or one much like it, has come before."""
        signature = self.signature(document).reshape(_BANDS, _ROWS)
        digests = [hashlib.blake2b(band.tobytes(), digest_size=8).digest() for band in signature]
        bands = [int.from_bytes(digest, "big") for digest in digests]
        # All bands are remembered, also if the first one is known: `all` of a generator would stop.
        added = [hashes.add(band) for hashes, band in zip(self._bands, bands, strict=True)]
        return all(added)

    def signature(self, document: Sequence[str]) -> np.ndarray:
        """Returns the MinHash of a document, uint64 [112]."""
        # The share of equal numbers of two signatures estimates the share of sequences of words
        # that the documents have in common.
        hashes = np.array([_word_hash(word) for word in _words(document)] or [0], np.uint64)
        length = min(_WORDS, len(hashes))
        sequences = np.zeros(len(hashes) - length + 1, np.uint64)
        for place in range(length):
            sequences = splitmix.mix(sequences * _BASE + hashes[place : place + len(sequences)])
        smallest = np.full(len(self._multipliers), np.uint64(2**64 - 1))
        for start in range(0, len(sequences), _AT_ONCE):
            # The upper halves of the products are as good as random.
            products = sequences[start : start + _AT_ONCE, None] * self._multipliers
            smallest = np.minimum(smallest, (products >> np.uint64(32)).min(axis=0))
        return smallest


class HashSet:
    """Holds 64-bit hashes, in at most 32 bytes for each beside 0.2 MB, also while it grows."""

    def __init__(self):
        self._sorted, self._latest = np.zeros(0, np.uint64), set()

    def __len__(self) -> int:
        return len(self._sorted) + len(self._latest)

    def add(self, value: int) -> bool:
        """Adds a hash; returns whether it is new."""
        key = np.uint64(value)
        place = self._sorted.searchsorted(key)
        is_sorted = place < len(self._sorted) and self._sorted[place] == key
        if is_sorted or value in self._latest:
            return False
        self._latest.add(value)
        # A set takes ten times the memory of an array.
        if len(self._latest) > _FEWEST + len(self._sorted) // _SHARE:
            latest = np.sort(np.fromiter(self._latest, np.uint64, len(self._latest)))
            self._latest.clear()
            self._sorted = np.concatenate([self._sorted, latest])
            self._sorted.sort(kind="stable")  # which is fast for two sorted parts
        return True


def _words(document: Sequence[str]) -> list[str]:
    return document_filter.words_of([sentence.lower() for sentence in document])


def _word_hash(word: str) -> int:
    content = word.encode()
    return zlib.crc32(content) << 32 | zlib.adler32(content)
