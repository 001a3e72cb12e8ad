"""What callers give as texts: strings, and pairs of strings, checked; and their batches."""

from collections.abc import Iterator, Sequence
from numbers import Integral

import numpy as np

from input_pipelines.tasks.examples import Example

BATCH_SIZE = 32
# Commands sort the lines of up to so many batches, if that many have arrived.
BATCHES_TOGETHER = 8
_GREATEST_BATCH = 1 << 16

Text = str | tuple[str, str] | Sequence[str]


def check_batch_size(batch_size: int) -> None:
    """Raises ValueError if a batch cannot have this many texts."""
    if not isinstance(batch_size, Integral) or not 0 < batch_size <= _GREATEST_BATCH:
        raise ValueError(f"batch_size={batch_size!r}: must be from 1 to {_GREATEST_BATCH}")


def check_list(texts: Sequence[Text]) -> None:
    """Raises ValueError for a single string, whose characters would be taken for texts."""
    if isinstance(texts, str | bytes):
        raise ValueError("texts is a single string; give a list of texts")


def example_of(number: int, text: Text, is_pair: bool, what: str) -> Example:
    """Returns a text or a pair of texts as an example without a label.

    Args:
      number: the text's place in the caller's list, for errors.
      text: a string, or a tuple or list of two strings.
      is_pair: whether it must be a pair.
      what: what it must be, in words.

    Raises:
      ValueError: it is something else, or a string holds half of a character.
    """
    parts = tuple(text) if isinstance(text, tuple | list) else (text,)
    if len(parts) != (2 if is_pair else 1) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"texts[{number}] is {text!r}; it must be {what}")
    check_characters(number, parts)
    return Example(parts[0], parts[1] if is_pair else None, None)


def batches_by_length(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Yields the numbers of examples batch by batch, the longest examples first.

    A batch takes the time of its longest example, and the most memory comes first.

    Args:
      lengths: [number of examples].
      batch_size: the most examples of a batch.
    """
    order = np.argsort(-lengths, kind="stable")
    for first in range(0, len(order), batch_size):
        yield order[first : first + batch_size]


def check_characters(number: int, parts: Sequence[str]) -> None:
    """Raises ValueError if strings of texts[number] cannot be written in UTF-8."""
    try:
        "".join(parts).encode()
    except UnicodeEncodeError:
        raise ValueError(f"texts[{number}] holds half of a character") from None
