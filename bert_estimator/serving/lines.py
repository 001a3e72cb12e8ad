"""Lines of text as they arrive, and what they say or why they cannot be answered."""

from collections.abc import Iterator
from typing import BinaryIO

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


def text_of(line: bytes | None, is_pair: bool) -> str | tuple[str, str]:
    """Returns the text of a line, or its two texts.

    Args:
      line: what `arriving` yields.
      is_pair: whether the task is about pairs of texts.

    Raises:
      LineError: the line is too long or not UTF-8, or has a different number of texts.
    """
    if line is None:
        raise LineError(f"is longer than {LONGEST_LINE} bytes; shorten the text")
    try:
        parts = line.removesuffix(b"\r").decode("utf-8").split("\t")
    except UnicodeDecodeError as error:
        raise LineError(f"byte {error.start} is not UTF-8") from None
    if len(parts) != (2 if is_pair else 1):
        rule = (
            "pairs: two texts per line, with one tab between"
            if is_pair
            else "single texts: no tabs"
        )
        raise LineError(f"has {len(parts) - 1} tabs, but the model's task is about {rule}")
    return (parts[0], parts[1]) if is_pair else parts[0]


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
