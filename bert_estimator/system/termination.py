"""SIGTERM ends a command as an error does, once what must not be cut short is done."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator


class Termination:
    """Turns SIGTERM into SystemExit(143) in a `with` block, as SIGINT is an error in Python."""

    def __init__(self):
        self._work, self._came = None, False

    def __enter__(self):
        # Python handles signals in the main thread alone. Training and evaluation have handlers of
        # their own (`tpu.verbs.interrupts`), and so may the program.
        in_main = threading.current_thread() is threading.main_thread()
        self._installs = in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if self._installs:
            signal.signal(signal.SIGTERM, self._handle)
        return self

    def __exit__(self, *exc_info):
        if self._installs:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @contextlib.contextmanager
    def postponed(self, what: str) -> Iterator[None]:
        """Surrounds work that a first signal ends only when it is done, and a second at once."""
        self._work = what
        try:
            yield
        finally:
            self._work = None

    def raise_if_it_came(self) -> None:
        """Raises SystemExit(143) for a signal that was postponed."""
        if self._came:
            raise SystemExit(128 + signal.SIGTERM)

    def _handle(self, number, frame):
        if self._work and not self._came:
            self._came = True
            text = f"\nSIGTERM: {self._work}. Send it again to exit at once."
            print(text, file=sys.stderr, flush=True)
            return
        raise SystemExit(128 + number)
