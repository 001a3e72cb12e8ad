"""Writes in the background: a thread writes a checkpoint while training goes on.

Code that reads a directory's checkpoints in the same process calls `wait_for` first, which waits
for the end of the write. At most one checkpoint is being written to a directory at a time.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from bert_estimator.system import ticker

_LONG_SECS = 1  # A wait that is longer gets a line.

_pending = {}  # real path of a directory -> its `PendingWrite`


class PendingWrite:
    """Runs a function in a thread, which starts at once. The last write must have ended.

    Args:
      directory: the directory that it writes to.
      what: what is written, such as "the checkpoint of step 4", for messages.
      write: function without arguments.
      log_every_secs: how often a line says that training waits for the write; None for never.

    Attributes:
      what: as above.
    """

    def __init__(
        self,
        directory: str,
        what: str,
        write: Callable[[], None],
        log_every_secs: float | None = None,
    ):
        self._path, self.what, self._write = os.path.realpath(directory), what, write
        self._log_every_secs = log_every_secs
        self._error = None
        self._thread = threading.Thread(target=self._run, name="checkpoint writer")
        _pending[self._path] = self
        self._thread.start()

    def raise_if_failed(self) -> None:
        """Raises the error of the write if it has ended with one. It doesn't wait."""
        if not self._thread.is_alive() and self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Waits for the write's end, and raises its error."""
        self.join()
        self.raise_if_failed()

    def join(self) -> None:
        """Waits for the write's end. If it fails, only `wait` and `raise_if_failed` say so.

        In the thread that writes, it returns at once.
        """
        if self._thread is threading.current_thread():
            return
        start = time.perf_counter()
        waiting = ticker.so_far(f"Waiting until {self.what} is written")
        with ticker.every(self._log_every_secs, waiting):
            self._thread.join()
        if (secs := time.perf_counter() - start) > _LONG_SECS:
            tf.logging.info("Waited %.0f s until %s was written.", secs, self.what)

    def _run(self):
        try:
            self._write()
        except BaseException as error:  # `wait` raises it in the thread of the training.
            self._error = error
        finally:
            with contextlib.suppress(KeyError):
                del _pending[self._path]


def wait_for(directory: str | None) -> None:
    """Waits until a checkpoint that this process is writing to a directory is complete.

    If the write fails, training raises its error.
    """
    write = _pending.get(os.path.realpath(directory)) if _pending and directory else None
    if write is not None:
        write.join()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_pending.clear)  # A forked process lacks the thread.
