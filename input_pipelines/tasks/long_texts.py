"""What is read of a text that is longer than a sequence: its beginning, its ends, or all of it.

1. `cut` reads the beginning.
2. `head_tail` reads a quarter of what fits, rounded up, from the beginning, and the rest from the
   end: of 510 tokens 128 and 382, as Sun et al. (2019), "How to Fine-Tune BERT for Text
   Classification?", section 5.3.1.
3. `windows` reads all, in windows that overlap, the first of which is what `cut` reads. What a
   network says of them is averaged, with their tokens as weights.

Of a pair, `windows` moves on in the longer text, beside the same tokens of the shorter text, whose
end is cut if both texts are longer than about half of what fits.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

# These are `choices.LONG_TEXTS`.
CUT, HEAD_TAIL, WINDOWS = "cut", "head_tail", "windows"

_Ids = Sequence[int]


class LongTexts(NamedTuple):
    """Says what is read of a text that is longer than a sequence."""

    choice: str = CUT
    # Windows begin so many tokens after one another; None means half of the tokens that fit.
    doc_stride: int | None = None

    def sequences(self, first: _Ids, second: _Ids, room: int) -> Iterator[tuple[_Ids, _Ids]]:
        """Yields the tokens of two texts, the second of which may be empty, that each sequence
        reads; a sequence has room for so many tokens of both."""
        num_first, num_second = kept(len(first), len(second), room)
        if self.choice == HEAD_TAIL:
            yield _ends(first, num_first), _ends(second, num_second)
        elif self.choice == CUT:
            yield first[:num_first], second[:num_second]
        elif len(first) > len(second):
            for place in self._places(len(first), room - num_second):
                yield first[place], second[:num_second]
        else:
            for place in self._places(len(second), room - num_first):
                yield first[:num_first], second[place]

    def _places(self, num_tokens, room):
        for start, length in spans(num_tokens, room, self.doc_stride or max(1, room // 2)):
            yield slice(start, start + length)

    def recorded(self) -> dict[str, Any]:
        """Returns what task.json says of it: a dict without the keys that have their defaults."""
        stride = {"doc_stride": self.doc_stride} if self.doc_stride else {}
        is_usual, has_windows = self.choice == CUT, self.choice == WINDOWS
        return {} if is_usual else {"long_texts": self.choice, **(stride if has_windows else {})}


def kept(first: int, second: int, room: int) -> tuple[int, int]:
    """Returns how many tokens of two texts, of which there are so many, fit into a room: the longer
    text loses tokens, the second if both are as long (google-research/bert's
    `_truncate_seq_pair`)."""
    second = min(second, max(room // 2, room - first))
    return min(first, room - second), second


def is_shorter_cut(first: int, second: int, room: int) -> bool:
    """Returns whether the shorter of two texts, in which windows do not move on, loses tokens."""
    num_first, num_second = kept(first, second, room)
    return num_second < second if first > second else num_first < first


def _ends(ids, number):
    """Returns so many tokens of the beginning and the end of a text."""
    tail = 0 if number == len(ids) else number - -(-number // 4)
    return [*ids[: number - tail], *ids[len(ids) - tail :]]


def spans(num_tokens: int, room: int, doc_stride: int) -> list[tuple[int, int]]:
    """Returns (number of first token, number of tokens) of the windows of a text, at least one."""
    result, start = [], 0
    while True:
        length = min(num_tokens - start, room)
        result.append((start, length))
        if start + length >= num_tokens:
            return result
        start += min(length, doc_stride)
