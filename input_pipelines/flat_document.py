"""A tokenized document as one array of ids and the places at which its sentences begin."""

from collections.abc import Sequence

import numpy as np

TokenizedDocument = Sequence[Sequence[int]]
"""A document as a sequence of sentences, each a non-empty sequence of token ids."""


class FlatDocument(Sequence[list[int]]):
    """Holds sentences one after the other; as a sequence, it gives each as a list of ids.

    Args:
      ids: int array of the tokens of this document, and perhaps of others.
      starts: int64 array [number of sentences + 1], where each sentence begins in `ids`, and where
        the last one ends.
    """

    def __init__(self, ids: np.ndarray, starts: np.ndarray):
        self._ids = ids
        self._starts = starts

    @classmethod
    def of(cls, document: TokenizedDocument) -> "FlatDocument":
        """Returns a document in this form."""
        if isinstance(document, cls):
            return document
        lengths = [len(sentence) for sentence in document]
        ids = [token for sentence in document for token in sentence]
        return cls(np.array(ids, np.int64), np.cumsum([0, *lengths]))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number):
        if isinstance(number, slice):
            return [self[sentence] for sentence in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(f"sentence {number} of {len(self)}")
        return self.tokens(number, number + 1)

    def tokens(self, first: int, end: int) -> list[int]:
        """Returns the tokens of the sentences from `first` up to `end`, `end` not included."""
        return self._ids[self._starts[first] : self._starts[end]].tolist()

    def end_of(self, first: int, length: int) -> int:
        """Returns the end of the fewest sentences from `first` on that have `length` tokens.

        It is the end of the document if there are fewer tokens. `length` is positive.
        """
        end = self._starts.searchsorted(self._starts[first] + length)
        return min(int(end), len(self))
