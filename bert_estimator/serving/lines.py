"""Lines of text as they arrive, and what they say or why they cannot be answered."""

import codecs
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

LONGEST_LINE = 1 << 20  # bytes; no network reads more of a text than its first few thousand

_CHUNK_BYTES = 1 << 16


class LineError(ValueError):
    """A line cannot be answered; the message says why."""


def arriving(reader: BinaryIO) -> Iterator[list[bytes | None]]:
    """Yields lines without their ends, each time as many as are available without waiting.

    A line longer than LONGEST_LINE is None; its bytes are not kept.

    Args:
      reader: a buffered reader.
    """
    line = _Line()
    while chunk := reader.read1(_CHUNK_BYTES):
        *ends, rest = chunk.split(b"\n")
        lines = []
        for end in ends:
            line.add(end)
            lines.append(line.content())
            line = _Line()
        line.add(rest)
        yield lines
    if line.size:
        yield [line.content()]


def text_of(line: bytes | None, is_pair: bool | None) -> str | tuple[str, str]:
    """Returns the text of a line, or its two texts.

    Args:
      line: what `arriving` yields.
      is_pair: whether the task is about pairs of texts; None if a line may have either.

    Raises:
      LineError: the line is too long or not UTF-8, or has a different number of texts.
    """
    if line is None:
        raise LineError(f"is longer than {LONGEST_LINE} bytes; shorten the text")
    try:
        parts = line.removesuffix(b"\r").decode("utf-8").split("\t")
    except UnicodeDecodeError as error:
        raise LineError(f"byte {error.start} is not UTF-8") from None
    if is_pair is None and len(parts) > 2:
        raise LineError(f"has {len(parts) - 1} tabs; a tab stands between the two texts of a pair")
    if is_pair is not None and len(parts) != (2 if is_pair else 1):
        rule = (
            "pairs: two texts per line, with one tab between"
            if is_pair
            else "single texts: no tabs"
        )
        raise LineError(f"has {len(parts) - 1} tabs, but the model's task is about {rule}")
    return (parts[0], parts[1]) if len(parts) == 2 else parts[0]


def answered(
    reader: BinaryIO,
    batch_size: int,
    is_pair: bool | None,
    answer: Callable[[list[str | tuple[str, str]]], Sequence[Any]],
) -> Iterator[list[tuple[Any, str | None]]]:
    """Yields the answers of lines in order, as soon as the lines arrive.

    No line ends the service: if texts cannot be answered together, they are answered one by one. A
    byte-order mark before the first line, as editors on Windows write it, is left out.

    Args:
      reader: a buffered reader.
      batch_size: the most lines that are answered together.
      is_pair: as in `text_of`.
      answer: function of texts that returns an answer for each.

    Yields:
      Lists of (answer, None), or of (None, error) for a line that cannot be answered; the error
      begins with the line's number.
    """
    number = 0
    for arrived in arriving(reader):
        if number == 0 and arrived and arrived[0]:
            arrived[0] = arrived[0].removeprefix(codecs.BOM_UTF8)
        for first in range(0, len(arrived), batch_size):
            part = arrived[first : first + batch_size]
            yield _answers(part, number + 1, is_pair, answer)
            number += len(part)


def _answers(part, first_number, is_pair, answer):
    """Returns (answer, error) for each line of a part; one of the two is None."""
    answers, texts = {}, {}
    for number, line in enumerate(part, first_number):
        try:
            texts[number] = text_of(line, is_pair)
        except LineError as error:
            answers[number] = None, f"line {number}: {error}"
    try:
        for number, found in zip(texts, answer(list(texts.values())), strict=True):
            answers[number] = found, None
    except Exception as error:  # whatever it is, the other lines are answered
        if len(part) > 1:
            one_by_one = (
                _answers([line], n, is_pair, answer) for n, line in enumerate(part, first_number)
            )
            return [found for (found,) in one_by_one]
        answers[first_number] = None, f"line {first_number}: {str(error) or repr(error)}"
    return [answers[number] for number in sorted(answers)]


class _Line:
    """A line whose end may not have arrived."""

    def __init__(self):
        self.size = 0
        self._parts = []

    def add(self, part):
        self.size += len(part)
        if self.size <= LONGEST_LINE:
            self._parts.append(part)
        else:
            self._parts.clear()

    def content(self):
        return b"".join(self._parts) if self.size <= LONGEST_LINE else None
