"""Lines by time: whatever takes long says every few seconds how it goes on."""

import contextlib
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator

LONGEST_SILENCE_SECS = 10.0
"""`never_silent` says something if nobody else has for this long."""

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
    """Says a line every few seconds while the block runs.

    A block inside of the block may do so too; the outer one is silent meanwhile. In a block of
    `never_silent`, the first line comes when nothing has been said for that long, also before the
    block began: several short pieces of work are not a long silence.

    Args:
      secs: the seconds between two lines. None means that there are no lines.
      line: function that returns the line, or None if there is nothing to say. It is called on a
        thread of its own.
      say: function that is called with the line.
    """
    ended, ticker = threading.Event(), object()

    def run():
        wait = min(secs, max(_heard[0] + secs - time.monotonic(), _LOOK_EVERY_SECS))
        while not ended.wait(wait):
            wait = secs
            text = line() if _running[-1:] == [ticker] else None
            if text and not ended.is_set():
                say(text)

    _running.append(ticker)
    thread = threading.Thread(target=run, name="ticker", daemon=True)
    if secs:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        _running.remove(ticker)
        if secs:
            thread.join()


@contextlib.contextmanager
def never_silent(doing: str, say: Callable[[str], None] = print_error) -> Iterator[None]:
    """Says that the block still runs whenever there was no line for `LONGEST_SILENCE_SECS`.

    Args:
      doing: what is being done before the first line, such as "Starting".
      say: function that is called with the line.
    """
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
    """Returns a function that says how long something has taken since this call.

    Args:
      what: what is being done, such as "Building the model".
    """
    start = time.perf_counter()
    return lambda: f"{what}: {format_secs(time.perf_counter() - start)} so far."


def format_secs(secs: float) -> str:
    """Returns seconds as `m:ss`, `h:mm:ss`, or `12 days`."""
    if secs >= 2 * 86400:
        return f"{secs / 86400:,.0f} days"
    minutes, secs = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"
