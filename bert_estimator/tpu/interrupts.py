"""SIGINT and SIGTERM: finish the current step, save, exit with the signal's own code."""

import os
import signal
import sys
import threading


class Interrupts:
    """Context manager that turns the first SIGINT or SIGTERM into a request to stop.

    The training loop asks `requested` after every step. A second signal ends the process at once,
    as the signal by itself would. Outside the main thread, where Python delivers no signals,
    nothing is installed.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self):
        self.requested = None  # the signal's number

    def __enter__(self):
        self._previous = {}
        if threading.current_thread() is threading.main_thread():
            self._previous = {s: signal.signal(s, self._handle) for s in self._SIGNALS}
        return self

    def __exit__(self, *exc_info):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number, frame):
        name = signal.Signals(number).name
        if self.requested is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.requested = number
        print(
            f"\n{name}: finishing the current step, then saving. Send it again to exit at once.",
            file=sys.stderr,
            flush=True,
        )

    def raise_if_requested(self):
        """Raises KeyboardInterrupt for SIGINT, SystemExit(128 + number) for SIGTERM."""
        if self.requested == signal.SIGINT:
            raise KeyboardInterrupt
        if self.requested is not None:
            raise SystemExit(128 + self.requested)
