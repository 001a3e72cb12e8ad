"""The infeed: a thread that draws batches ahead of the compute, up to a bounded number."""

import queue
import threading
import time
from collections.abc import Callable

from bert_estimator.tpu import errors

# Two batches in flight and two waiting hide the jitter of an input pipeline. More only cost memory.
DEPTH = 4
_POLL_SECS = 0.1


class EndOfInput(Exception):
    """The data has ended. `draw` raises this, and so does `Infeed.get` after the last batch."""


class Infeed:
    """Runs `draw()` repeatedly on a thread and hands the batches out in order.

    Args:
      draw: function that returns the next batch or raises `EndOfInput`.
      limit: how many batches to draw at most, so that data is not consumed without being used.
        None means until the data ends.
      delay_secs: how many seconds to wait before the first draw.
      depth: how many batches may wait.

    Attributes:
      drawn: how many batches were drawn.
      waited_secs: how many seconds `get` has waited in total.
    """

    def __init__(
        self, draw: Callable, limit: int | None = None, delay_secs: float = 0, depth: int = DEPTH
    ):
        self._draw = draw
        self._limit = limit
        self._delay_secs = delay_secs
        self._batches = queue.Queue(maxsize=depth)
        self._error = errors.FirstError()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="infeed", daemon=True)
        self.drawn = 0
        self.waited_secs = 0.0

    def start(self) -> None:
        self._thread.start()

    def get(self, interrupted: Callable[[], bool] = lambda: False):
        """Returns the next batch, or None if `interrupted()` becomes true while waiting for it.

        Raises:
          EndOfInput: there are no more batches.
          Exception: `draw` raised it; the batches drawn before it are returned first.
        """
        start = time.perf_counter()
        try:
            while not interrupted():
                # This must come before the look into the queue, or the last batch may be missed.
                finished = not self._thread.is_alive()
                try:
                    return self._batches.get(timeout=0 if finished else _POLL_SECS)
                except queue.Empty:
                    if finished:
                        self._error.raise_if_any()
                        raise EndOfInput from None
            return None
        finally:
            self.waited_secs += time.perf_counter() - start

    def has_batch(self) -> bool:
        """Returns whether `get` would not have to wait."""
        return not self._batches.empty()

    def stop(self) -> None:
        """Asks the thread to end, without waiting for a `draw` that is running."""
        self._stopping.set()

    def join(self, timeout_secs: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout_secs)

    def _run(self):
        with self._error.recorded():
            self._stopping.wait(self._delay_secs)
            while not self._stopping.is_set() and self.drawn != self._limit:
                try:
                    batch = self._draw()
                except EndOfInput:
                    return
                self.drawn += 1
                while not self._stopping.is_set():
                    try:
                        self._batches.put(batch, timeout=_POLL_SECS)
                        break
                    except queue.Full:
                        continue
