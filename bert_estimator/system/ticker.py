"""Lines by time: whatever takes long says every few seconds how it goes on."""

import contextlib
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

LONGEST_SILENCE_SECS = 10.0
"""`never_silent` says something if nobody else has for this long, and `Progress` has a line as
often."""

_LOOK_EVERY_SECS = 1.0

_running: list[object] = []  # the tickers that run in this process, the innermost last
_heard = [math.inf]  # when the last line was written, in a `never_silent` block; else infinite


def log(text: str) -> None:
    """Logs a line with TensorFlow's logger."""
    logging.getLogger("tensorflow").info("%s", text)


def print_error(text: str) -> None:
    """Prints a line to stderr."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def every(
    secs: float | None, line: Callable[[], str | None], say: Callable[[str], None] = log
) -> Iterator[None]:
    """Says a line every `secs` seconds while the block runs, and lets an outer block be silent
    meanwhile; if `secs` is None, the outer block's lines go on."""
    ended, ticker = threading.Event(), object()

    def run():
        # In a block of `never_silent`, the first line comes when nothing has been said for that
        # long, also before this block began: several short pieces of work are not a long silence.
        wait = min(secs, max(_heard[0] + secs - time.monotonic(), _LOOK_EVERY_SECS))
        while not ended.wait(wait):
            wait = secs
            # Only the innermost block speaks. This thread calls `line`, which may return None.
            text = line() if _running[-1:] == [ticker] else None
            if text and not ended.is_set():
                say(text)

    if not secs:  # An outer block goes on.
        yield
        return
    _running.append(ticker)
    thread = threading.Thread(target=run, name="ticker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        _running.remove(ticker)
        thread.join()


@contextlib.contextmanager
def never_silent(doing: str, say: Callable[[str], None] = print_error) -> Iterator[None]:
    """Says that the block still runs whenever there was no line for `LONGEST_SILENCE_SECS`; before
    the first line it says what is being done, such as "Starting"."""
    start = mine = _heard[0] = time.monotonic()

    def line():
        nonlocal mine
        now = time.monotonic()
        if now - _heard[0] < LONGEST_SILENCE_SECS:
            return None
        what = "Still at work"
        if _heard[0] == mine:  # nobody else has written a line
            what, mine = doing, now
        _heard[0] = now
        return f"{what}: {format_secs(now - start)} so far."

    try:
        with every(_LOOK_EVERY_SECS, line, say):
            yield
    finally:
        _heard[0] = math.inf


def heard() -> None:
    """Notes that a line has been written just now, for `never_silent`."""
    if _heard[0] < math.inf:
        _heard[0] = time.monotonic()


def so_far(what: str) -> Callable[[], str]:
    """Returns a function that says how long `what`, such as "Building the model", has taken."""
    start = time.perf_counter()
    return lambda: f"{what}: {format_secs(time.perf_counter() - start)} so far."


def format_secs(secs: float) -> str:
    """Returns seconds as `m:ss`, `h:mm:ss`, or `12 days`."""
    if secs >= 2 * 86400:
        return f"{secs / 86400:,.0f} days"
    minutes, secs = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"


_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class Progress:
    """Counts what is done of a piece of work, of a `total` if this is known, and says so from time
    to time, as in `Reading text: 42 % of 1.3 GB, 3.1 MB/s, 4:02 left`."""

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
        self._start = self._shown = clock()
        self._done = 0

    def add(self, number: float) -> None:
        """Counts more of the work as done."""
        self._done += number
        now = self._clock()
        # Work of less than that is silent.
        if now - self._shown >= LONGEST_SILENCE_SECS:
            self._shown = now
            heard()
            print(self.line(), file=self._out, flush=True)

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
                parts.append(f"{format_secs((self._total - done) / rate)} left")
        return f"{self._what}: {', '.join(parts)}"


def _quantity(number):
    for size, prefix in _UNITS:
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.0f} "
