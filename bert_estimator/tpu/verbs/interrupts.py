"""SIGINT and SIGTERM: finish the current step, save, exit with the signal's own code."""

import os
import signal
import sys
import threading

from bert_estimator.tpu.program import hosts

# The `Interrupts` that the main thread is in, with the innermost last.
_entered = []


def in_one():
    """Whether the main thread is in an `Interrupts`, as a listener of a training is."""
    return bool(_entered)


def stop_requested():
    """Whether a signal is ending what the main thread runs."""
    return in_one() and _entered[0].requested is not None


class Interrupts:
    """Context manager that turns the first SIGINT or SIGTERM into a request to stop.

    Training and evaluation ask `requested` after every step. A second signal ends the process at
    once. Outside the main thread, where Python handles no signals, nothing is installed.

    An evaluation that a training's listener runs is one within another. They have their signals in
    common: what asks the inner one to stop asks the outer one too, and after that the second
    signal is the second wherever it comes. None is entered any more then, it raises at once.

    Python handles a signal when the main thread is back from TensorFlow, which may be after a long
    step, or never. So a thread of its own watches for them, through the signal module's wakeup fd.

    Args:
      consequence: what the first signal is going to lead to, for the message.
      num_hosts: the processes that are in it together.

    Raises:
      KeyboardInterrupt, SystemExit: on entering, as `raise_if_requested`.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, consequence, num_hosts=1):
        self._consequence = consequence
        self._alone = num_hosts == 1
        self._outermost = self
        self._requested = None  # the outermost one's counts
        self._agreed = None  # what all hosts know of

    @property
    def requested(self):
        """The number of the signal that asked to stop, or None."""
        return self._outermost._requested

    def __enter__(self):
        self._counts = threading.current_thread() is threading.main_thread()
        if self._counts:
            if _entered:
                self._outermost = _entered[0]
                self._raise(self.requested)
            _entered.append(self)
            if self._outermost is self:
                self._install()
        return self

    def __exit__(self, *exc_info):
        if not self._counts:
            return
        if self._outermost is self:
            self._uninstall()
        _entered.remove(self)

    def _install(self):
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._previous_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._previous = {s: signal.signal(s, self._handle) for s in self._SIGNALS}
        self._watcher = threading.Thread(target=self._watch, name="interrupts", daemon=True)
        self._watcher.start()

    def _uninstall(self):
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._previous_fd)
        os.close(self._writer)  # the watcher then reads the end of the pipe
        self._watcher.join()
        os.close(self._reader)

    def wanted_by_any_host(self, wish=False):
        """Waits for the other hosts; returns whether one of them has a request to stop, or a wish.

        A signal to one host is a request on all from here on: each would wait for one that left.
        """
        if self._alone:
            self._outermost._agreed = self.requested
            return wish or self.requested is not None
        found = hosts.gather([int(wish), self.requested or 0])
        number = int(found[:, 1].max())
        if number and self.requested is None:
            self._outermost._requested = number
            self._say(number, f"{self._consequence}, since another host got it.")
        self._outermost._agreed = number or None  # a signal since then is for the next time
        return bool(found.any())

    def raise_if_requested(self):
        """Raises KeyboardInterrupt for SIGINT, SystemExit(128 + number) for SIGTERM.

        It waits for the other hosts, and raises on all of them.
        """
        self.wanted_by_any_host()
        self._raise(self._outermost._agreed)

    def _raise(self, number):
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number is not None:
            raise SystemExit(128 + number)

    def _handle(self, number, frame):
        """The handler proper, so that a signal from the main thread itself counts at once."""
        self._requested = self._requested or number

    def _watch(self):
        seen = 0
        while byte := os.read(self._reader, 1):
            number = byte[0]
            if number not in self._SIGNALS:
                continue
            seen += 1
            if seen > 1:
                os._exit(128 + number)
            self._requested = self._requested or number
            consequence = _entered[-1]._consequence
            self._say(number, f"{consequence}. Send it again to exit at once.")

    def _say(self, number, text):
        print(f"\n{signal.Signals(number).name}: {text}", file=sys.stderr, flush=True)
