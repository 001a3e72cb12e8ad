"""Says on stderr how a long piece of work goes on: share, rate and time left."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

from bert_estimator.system import ticker

T = TypeVar("T")

EVERY_SECS = 10.0
"""Seconds between two lines; a terminal has one line that is renewed each second."""

_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class Progress:
    """Counts what is done of a piece of work, and says so from time to time.

    A line names the work, the share that is done, the rate and the time left, as in
    `Reading text: 42 % of 1.3 GB, 3.1 MB/s, 4:02 left`. Work of less than `EVERY_SECS` seconds is
    silent, but for a terminal.

    Args:
      what: the work, such as "Reading text".
      total: how much there is to do, or None if it is not known.
      unit: what is counted, such as "B" for bytes.
      out: where to write; by default stderr.
      clock: function that returns seconds.
    """

    def __init__(
        self,
        what: str,
        total: float | None,
        unit: str,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._what, self._total, self._unit = what, total, unit
        self._out = out or sys.stderr
        self._clock = clock
        self._is_terminal = self._out.isatty()
        self._start = self._shown = clock()
        self._done = 0

    def add(self, number: float) -> None:
        """Counts more of the work as done."""
        self._done += number
        now = self._clock()
        if now - self._shown >= (1.0 if self._is_terminal else EVERY_SECS):
            self._shown = now
            ticker.heard()
            line = self.line()
            self._out.write(f"\r\x1b[K{line}" if self._is_terminal else f"{line}\n")
            self._out.flush()

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """Yields the items, and counts each as 1; ends the line after the last."""
        try:
            for item in items:
                yield item
                self.add(1)
        finally:
            self.end()

    def end(self) -> None:
        """Erases the line of a terminal."""
        if self._is_terminal and self._shown > self._start:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def line(self) -> str:
        """Returns the line that is shown now."""
        secs = max(self._clock() - self._start, 1e-9)
        rate = self._done / secs
        parts = [f"{_quantity(self._done)}{self._unit}", f"{_quantity(rate)}{self._unit}/s"]
        if self._total:
            done = min(self._done, self._total)
            share = 100 * done / self._total
            parts[0] = f"{share:.0f} % of {_quantity(self._total)}{self._unit}"
            if rate:
                parts.append(f"{_time((self._total - done) / rate)} left")
        return f"{self._what}: {', '.join(parts)}"


def _quantity(number):
    for size, prefix in _UNITS:
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.0f} "


def _time(secs):
    minutes, secs = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"
