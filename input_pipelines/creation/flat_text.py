"""Tokenized documents as one array of ids, and the places at which their sentences begin."""

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np

TokenizedDocument = Sequence[Sequence[int]]
"""A document as a sequence of sentences, each a non-empty sequence of token ids."""


class FlatText:
    """Holds documents one after the other.

    Args:
      ids: integer array [number of tokens].
      sentence_lengths: integer array [number of sentences], numbers of tokens, all positive.
      document_lengths: integer array [number of documents], numbers of sentences, all positive.
      numbers: integer array [number of documents]: the number of each document in the whole text,
        of which these documents may be a part.

    Attributes:
      ids: as above.
      starts: the place in `ids` at which each sentence begins, then the end of the last sentence.
      first_sentences: the first sentence of each document, then the end of the last document.
      numbers: as above.
    """

    def __init__(
        self,
        ids: np.ndarray,
        sentence_lengths: np.ndarray,
        document_lengths: np.ndarray,
        numbers: np.ndarray,
    ):
        self.ids = ids
        # Single elements of lists are read several times as fast as elements of arrays.
        self.starts: list[int] = [0, *np.cumsum(sentence_lengths, dtype=np.int64).tolist()]
        self.first_sentences: list[int] = [0, *np.cumsum(document_lengths).tolist()]
        self.numbers: list[int] = numbers.tolist()

    @classmethod
    def of(cls, documents: Iterable[TokenizedDocument]) -> "FlatText":
        """Returns documents in this form, numbered from 0."""
        documents = list(documents)
        sentences = [sentence for document in documents for sentence in document]
        return cls(
            np.array(list(itertools.chain.from_iterable(sentences)), np.int64),
            np.array([len(sentence) for sentence in sentences], np.int64),
            np.array([len(document) for document in documents], np.int64),
            np.arange(len(documents)),
        )

    def __len__(self) -> int:
        return len(self.numbers)

    def end_of(self, first: int, last: int, length: int) -> int:
        """Returns the end of the fewest sentences from `first` on that have `length` tokens.

        It is `last` if the sentences before sentence `last` have fewer tokens. `length` is
        positive.
        """
        starts = self.starts
        return min(bisect_left(starts, starts[first] + length, first, last + 1), last)
