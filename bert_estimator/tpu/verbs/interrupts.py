"""How a verb ends early: by SIGINT or SIGTERM, or because the process ends.

After a signal, the current step is finished, the state saved, and Python exits. A script may also
end in the middle of a prediction, or while a daemon thread trains. Python would close a generator
when most of the interpreter is gone: no thread can be started, and running threads stop where they
are. So what is open is closed before.
"""

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from typing import Any

from bert_estimator.cluster import hosts
from bert_estimator.system.termination import Termination

# How long the process waits for a daemon thread, which may be in a step.
WAIT_SECS = 5

_open: weakref.WeakSet = weakref.WeakSet()
_began = []  # not empty once the process ends


def close(closable: Any) -> None:
    """Has a generator, or another object, closed at the process's end if it still exists then."""
    # Functions that were registered with `atexit` since, such as a script's, are called before.
    _open.add(closable)
    atexit.unregister(_close_all)  # or else it would keep its old place in the order
    atexit.register(_close_all)


def began() -> bool:
    """Returns whether the process is about to end: its main thread has ended."""
    return bool(_began)


def _close_all():
    _began.append(True)
    end = time.monotonic() + WAIT_SECS
    for closable in list(_open):
        while True:
            with contextlib.suppress(ValueError):  # A thread is just in this generator.
                closable.close()
                break
            if time.monotonic() >= end:
                break
            time.sleep(0.01)


# The `Interrupts` that the main thread is in, with the innermost last.
_entered = []


def in_one() -> bool:
    """Returns whether the main thread is inside an `Interrupts`, as a training's listener is."""
    return bool(_entered)


def stop_requested() -> bool:
    """Returns whether a signal has asked the main thread's training or evaluation to end."""
    return in_one() and _entered[0].requested is not None


def _is_nobodys(handler):
    """Returns whether the program lets a signal do what it does by default."""
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    return handler in defaults or isinstance(getattr(handler, "__self__", None), Termination)


class Interrupts:
    """Turns the first SIGINT or SIGTERM in its block into a request to stop; a second signal ends
    the process at once.

    If a training's listener evaluates, there is an `Interrupts` inside another: a request to stop
    the inner one also stops the outer one, and entering another after a request raises at once, on
    all hosts.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, consequence: str, num_hosts: int = 1):
        self._consequence = consequence  # what happens after the first signal
        self._alone = num_hosts == 1
        self._outermost = self
        self._requested = None  # a signal's number; only the outermost object's value is used
        self._agreed = None  # the number that all hosts know

    @property
    def requested(self) -> int | None:
        """Returns the number of the signal that asked to stop, or None."""
        # Other threads than the main thread do not get signals. If one is a daemon, the end of the
        # process is its request to stop.
        if began() and not self._counts:
            return signal.SIGTERM
        return self._outermost._requested

    def __enter__(self):
        self._thread = threading.current_thread()
        self._counts = self._thread is threading.main_thread()
        if self._counts:
            if _entered:
                self._outermost = _entered[0]
                self.raise_if_requested()
            _entered.append(self)
            if self._outermost is self:
                self._install()
        else:
            # A thread that is in jax or TensorFlow when the interpreter goes would abort the
            # process.
            close(self)
        return self

    def __exit__(self, *exc_info):
        if not self._counts:
            return
        if self._outermost is self:
            self._uninstall()
        _entered.remove(self)

    def close(self) -> None:
        """Waits a moment until the thread has ended; the end of the process calls this."""
        # The end of the block would be too early: its session and its graph are freed after that.
        self._thread.join(WAIT_SECS)

    def _install(self):
        # Python only handles a signal when the main thread returns from TensorFlow, which may take
        # long. So a thread watches for signals, through the signal module's wakeup file descriptor.
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._previous_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        # A program's own handler stays, and so does ignoring: a shell's background jobs are born
        # ignoring SIGINT.
        ours = [s for s in self._SIGNALS if _is_nobodys(signal.getsignal(s))]
        self._previous = {s: signal.signal(s, self._handle) for s in ours}
        self._watcher = threading.Thread(target=self._watch, name="interrupts", daemon=True)
        self._watcher.start()

    def _uninstall(self):
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_fd)
        os.close(self._writer)  # This ends the watcher, which reads from the pipe.
        self._watcher.join()
        os.close(self._reader)

    def wanted_by_any_host(self, wish: bool = False) -> bool:
        """Waits for the other hosts; returns whether any of them got a signal, or has a true
        `wish`."""
        if self._alone:
            self._outermost._agreed = self.requested
            return wish or self.requested is not None
        # From here on, a signal to one host is a request on all hosts: each waits for the others.
        wishes_and_signals = hosts.gather([int(wish), self.requested or 0])
        number = int(wishes_and_signals[:, 1].max())
        if number and self.requested is None:
            self._outermost._requested = number
            self._say(number, f"{self._consequence}, since another host got it.")
        self._outermost._agreed = number or None  # Later signals count at the next call.
        return bool(wishes_and_signals.any())

    def raise_if_requested(self) -> None:
        """Raises KeyboardInterrupt for SIGINT, SystemExit(128 + number) for SIGTERM, on all
        hosts."""
        self.wanted_by_any_host()
        number = self._outermost._agreed
        if number is None:
            return
        hosts.end_together()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def _handle(self, number, frame):
        """Handles a signal in the main thread, so that its own signals count at once."""
        self._requested = self._requested or number

    def _watch(self):
        seen = 0
        while byte := os.read(self._reader, 1):
            number = byte[0]
            if number not in self._previous:
                continue
            seen += 1
            if seen > 1:
                # The main thread may never return from TensorFlow, so this does not wait for it.
                os._exit(128 + number)
            self._requested = self._requested or number
            consequence = _entered[-1]._consequence
            self._say(number, f"{consequence}. Send it again to exit at once.")

    def _say(self, number, text):
        print(f"\n{signal.Signals(number).name}: {text}", file=sys.stderr, flush=True)
