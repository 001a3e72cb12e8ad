"""SIGINT and SIGTERM: finish the current step, save, exit with the signal's own code."""

import os
import signal
import sys
import threading


class Interrupts:
    """Context manager that turns the first SIGINT or SIGTERM into a request to stop.

    Training and evaluation ask `requested` after every step. A second signal ends the process at
    once. Outside the main thread, where Python handles no signals, nothing is installed.

    Python handles a signal when the main thread is back from TensorFlow, which may be after a long
    step, or never. So a thread of its own watches for them, through the signal module's wakeup fd.

    Args:
      consequence: what the first signal is going to lead to, for the message.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, consequence):
        self._consequence = consequence
        self.requested = None  # the signal's number

    def __enter__(self):
        self._previous = {}
        if threading.current_thread() is threading.main_thread():
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._writer, False)
            self._previous_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            self._previous = {s: signal.signal(s, self._handle) for s in self._SIGNALS}
            self._watcher = threading.Thread(target=self._watch, name="interrupts", daemon=True)
            self._watcher.start()
        return self

    def __exit__(self, *exc_info):
        if not self._previous:
            return
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._previous_fd)
        os.close(self._writer)  # the watcher then reads the end of the pipe
        self._watcher.join()
        os.close(self._reader)

    def raise_if_requested(self):
        """Raises KeyboardInterrupt for SIGINT, SystemExit(128 + number) for SIGTERM."""
        if self.requested == signal.SIGINT:
            raise KeyboardInterrupt
        if self.requested is not None:
            raise SystemExit(128 + self.requested)

    def _handle(self, number, frame):
        """The handler proper, so that a signal from the main thread itself counts at once."""
        self.requested = self.requested or number

    def _watch(self):
        seen = 0
        while byte := os.read(self._reader, 1):
            number = byte[0]
            if number not in self._SIGNALS:
                continue
            seen += 1
            if seen > 1:
                os._exit(128 + number)
            self.requested = self.requested or number
            print(
                f"\n{signal.Signals(number).name}: {self._consequence}. Send it again to exit at "
                "once.",
                file=sys.stderr,
                flush=True,
            )
