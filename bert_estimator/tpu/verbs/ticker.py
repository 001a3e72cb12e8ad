"""Lines by time: whatever takes long says every few seconds how it goes on."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import tensorflow.compat.v1 as tf

_running = []  # the tickers that run in this process, the innermost last


@contextlib.contextmanager
def every(secs: float | None, line: Callable[[], str | None]) -> Iterator[None]:
    """Logs a line every few seconds while the block runs.

    A block inside of the block may do so too; the outer one is silent meanwhile.

    Args:
      secs: the seconds between two lines. None means that there are no lines.
      line: function that returns the line, or None if there is nothing to say. It is called on a
        thread of its own.
    """
    if not secs:
        yield
        return
    ended, ticker = threading.Event(), object()

    def run():
        while not ended.wait(secs):
            text = line() if _running[-1:] == [ticker] else None
            if text and not ended.is_set():
                tf.logging.info("%s", text)

    _running.append(ticker)
    thread = threading.Thread(target=run, name="ticker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        _running.remove(ticker)
        thread.join()


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
