"""The infeed: a thread that draws batches ahead of the compute, up to a bounded number."""

import collections
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
        self._depth = depth
        self._error = errors.FirstError()
        self._batches = collections.deque()
        self._has_ended = False
        self._stopping = threading.Event()
        # Notified when batches come or go, when the thread ends, and when it is to end.
        self._changed = threading.Condition()
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
            with self._changed:
                while not interrupted():
                    if self._batches:
                        self._changed.notify_all()
                        return self._batches.popleft()
                    if self._has_ended:
                        self._error.raise_if_any()
                        raise EndOfInput
                    self._changed.wait(_POLL_SECS)  # `interrupted` tells nobody when it changes
            return None
        finally:
            self.waited_secs += time.perf_counter() - start

    def has_batch(self) -> bool:
        """Returns whether `get` would not have to wait."""
        return bool(self._batches)

    def stop(self) -> None:
        """Asks the thread to end, without waiting for a `draw` that is running."""
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()

    def join(self, timeout_secs: float) -> None:
        if self._thread.is_alive():
            self._thread.join(timeout_secs)

    def _run(self):
        try:
            with self._error.recorded():
                self._draw_all()
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _draw_all(self):
        self._stopping.wait(self._delay_secs)
        while not self._stopping.is_set() and self.drawn != self._limit:
            try:
                batch = self._draw()
            except EndOfInput:
                return
            self.drawn += 1
            with self._changed:
                self._changed.wait_for(
                    lambda: len(self._batches) < self._depth or self._stopping.is_set()
                )
                if not self._stopping.is_set():
                    self._batches.append(batch)
                    self._changed.notify_all()
