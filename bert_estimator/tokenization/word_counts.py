"""Counts the words of a text of any size in bounded memory, to train vocabularies from."""

import collections
from collections.abc import Callable, Iterable, Iterator
from random import Random

_MOST_WORDS = 1 << 22
_MOST_CHUNKS = 1 << 20
_CHARACTERS_AT_ONCE = 1 << 16
_MOST_SAMPLED_CHARACTERS = 1 << 26


class WordCounts:
    """Counts words; if there are too many different words, it forgets the rarest.

    A text of a few gigabytes has fewer different words than the limit; then the counts are exact.

    Attributes:
      words: word -> count.
      characters_forgotten: character -> its count in the words that were forgotten.
      least: the count that a word had at least when others were forgotten; 0 if none was.
    """

    def __init__(self, split: Callable[[str], Iterable[str]], most_words: int = _MOST_WORDS):
        """Makes an empty count.

        Args:
          split: function that splits a text into words. Spaces separate words for it, whatever is
            beside them: the words of "a b" are the words of "a", then the words of "b".
          most_words: how many different words are counted, at most.
        """
        self.words: collections.Counter[str] = collections.Counter()
        self.characters_forgotten: collections.Counter[str] = collections.Counter()
        self.least = 0
        self._split, self._most_words = split, most_words
        # What spaces separate is split once for all its occurrences.
        self._chunks: collections.Counter[str] = collections.Counter()

    def add(self, texts: Iterable[str]) -> None:
        """Counts the words of texts."""
        for joined in _joined(texts):
            self._chunks.update(joined.split(" "))
            if len(self._chunks) > _MOST_CHUNKS:
                self._split_chunks()
        self._split_chunks()

    def _split_chunks(self):
        words = self.words
        for chunk, count in self._chunks.items():
            for word in self._split(chunk):
                words[word] += count
        self._chunks.clear()
        if len(words) > self._most_words:
            self._forget()

    def _forget(self):
        """Forgets the rarest words, so that at most half of the limit is left."""
        counts = sorted(self.words.values(), reverse=True)
        self.least = max(self.least, counts[self._most_words // 2] + 1)
        for word in [word for word, count in self.words.items() if count < self.least]:
            count = self.words.pop(word)
            for char in word:
                self.characters_forgotten[char] += count


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """Yields texts joined by spaces to strings that are worth a call."""
    together: list[str] = []
    size = 0
    for text in texts:
        together.append(text)
        size += len(text)
        if size >= _CHARACTERS_AT_ONCE:
            yield " ".join(together)
            together, size = [], 0
    if together:
        yield " ".join(together)


def sample(
    texts: Iterable[str], most_characters: int = _MOST_SAMPLED_CHARACTERS
) -> tuple[list[str], float]:
    """Draws texts at random, in their order, so that they fit into memory.

    The same texts give the same sample, and all of them if they are few enough.

    Returns:
      (the texts, the share of all texts that they are).
    """
    random = Random(0)
    kept: list[tuple[float, str]] = []
    number = size = 0
    share = 1.0
    for text in texts:
        number += 1
        place = random.random()
        if place >= share:
            continue
        kept.append((place, text))
        size += len(text)
        while size > most_characters and len(kept) > 1:
            share /= 2
            kept = [(place, text) for place, text in kept if place < share]
            size = sum(len(text) for _, text in kept)
    return [text for _, text in kept], len(kept) / max(number, 1)
