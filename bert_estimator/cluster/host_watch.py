"""Watches the other hosts of a training, and ends this process when one of them is lost.

A host that is killed, or whose machine vanishes, breaks its connection to the chief, and the chief
tells the other hosts. The devices cannot go on without the lost host: the process says what
happened, and exits with 1. A host that ends by itself says goodbye before, with its exit code. If
that host failed, or this process still needs it, this process ends too, with the same code (1 in
place of 0).
"""

import contextlib
import os
import selectors
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from bert_estimator.cluster.host_connection import Connection, printable

EXIT_CODE = 1

# Hosts end together with these codes: success, Ctrl-C, SIGTERM.
_CTRL_C = 128 + 2
_AGREED = (0, _CTRL_C, 128 + 15)

# The chief's error may be the first sign of a host's end, a moment before the broken connection.
_ERROR_SECS = 3
# A machine that vanishes breaks a connection later than `roll_call` lets the kernel wait.
_BROKEN_SECS = 30
# Work that all hosts had finished when one left ends on the others within this time.
_END_SECS = 10
# Looking for the last checkpoint may hang on a file system of the lost host.
_ADVICE_SECS = 5
# A host answers within this time, also if it is busy.
_ASK_SECS = 2


class HostWatch:
    """Watches the connections of a roll call, on a thread of its own.

    Args:
      addresses: the address of each host.
      index: the number of this host.
      connections: dict of host's number -> `Connection`.
      end: function of (exit code) that ends the process.

    Attributes:
      exit_code: what the goodbye says at Python's end: the code of `sys.exit`, or of a SystemExit
        that came by.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        index: int,
        connections: dict[int, Connection],
        end: Callable[[int], None] = os._exit,
    ):
        self._addresses, self._index, self._end = addresses, index, end
        self._connections = dict(connections)
        self._left = {}  # number of a host that has said goodbye -> its exit code
        self._needed = None  # inside `needing_others`: an object that stands for this call
        self._advice, self._has_lost = None, False
        self._is_leaving, self._waits, self._last_code = False, False, 0
        self.exit_code = 0
        self._explained = None  # the last error that was waited for
        self._present = set()  # the hosts that have answered in `starting`
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="host watch", daemon=True)
        self._thread.start()

    def advise(self, advice: Callable[[], str]) -> None:
        """Adds a sentence, which a function without arguments returns, to the last message.

        It replaces the advice before.
        """
        self._advice = advice

    @contextlib.contextmanager
    def starting(self, end: float, wait_secs: float) -> Iterator[None]:
        """Surrounds the start of jax on all hosts; if it takes too long, this process ends.

        Args:
          end: when it must have ended, as `time.monotonic()` says it.
          wait_secs: how long the whole start may take, for the message.
        """
        done = threading.Event()
        args = (done, end, wait_secs)
        threading.Thread(target=self._end_late, args=args, name="start", daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def _end_late(self, done, end, wait_secs):
        """Asks which hosts are still there shortly before the deadline, and ends the process."""
        secs = end - time.monotonic()
        if done.wait(max(0, min(secs - _ASK_SECS, threading.TIMEOUT_MAX))):
            return
        for connection in self._connections.values():
            connection.send(asks=self._index)
        # The chief's word, which names the silent host, comes before the other hosts' own.
        if done.wait(_ASK_SECS if self._index == 0 else 2 * _ASK_SECS):
            return
        silent = sorted(self._connections.keys() - self._present)
        if silent:
            self._lose(silent[0], f"it has come, but does not answer within {wait_secs:g} seconds")
        else:
            self._end_with(
                f"the hosts of TF_CONFIG have met, but could not start jax together within "
                f"{wait_secs:g} seconds. Look on all of them for errors, or wait longer.",
                EXIT_CODE,
            )

    @contextlib.contextmanager
    def needing_others(self) -> Iterator[None]:
        """Surrounds work of all hosts: a host that has left, or leaves meanwhile, is lost."""
        before = self._needed
        self._needed = before or object()  # the outermost block counts
        try:
            self._lose_left()
            yield
        except Exception as error:
            if _is_of_connections(error):
                self._lose_left()
                self.wait_for_cause(error)
            raise
        finally:
            self._needed = before

    def wait_for_cause(self, error: Exception) -> None:
        """Waits until the watch ends the process, if a lost host may have caused this error.

        It returns if no host is lost.
        """
        if error is not self._explained:
            self._explained = error
            time.sleep(_BROKEN_SECS if _is_of_connections(error) else _ERROR_SECS)

    def leave(self, code: int, waits: bool = False) -> bool:
        """Says goodbye to the other hosts, with the exit code of this process.

        Args:
          code: the exit code.
          waits: whether this process then waits for the other hosts, as jax's farewell does. If one
            of them is lost meanwhile, the process ends, with the code or with 1.

        Returns:
          Whether waiting makes sense: a host that Ctrl-C has ended does not wait.
        """
        with self._lock:
            self._is_leaving, self._waits, self._last_code = True, waits, code
            for connection in self._connections.values():
                connection.send(leaving=code, host=self._index)
            return _CTRL_C not in self._left.values()

    def _run(self):
        with selectors.DefaultSelector() as selector:
            for number, connection in self._connections.items():
                if not connection.has_messages or self._attend(number):
                    with contextlib.suppress(ValueError):  # This process has closed it already.
                        selector.register(connection.socket, selectors.EVENT_READ, number)
            while selector.get_map():
                for key, _ in selector.select():
                    if not self._attend(key.data):
                        selector.unregister(key.fileobj)

    def _attend(self, number):
        """Reads what a host has sent; returns False if its connection has ended."""
        why = "its process or its machine has ended"
        try:
            for message in (messages := self._connections[number].receive()) or ():
                self._obey(number, message)
        except ValueError:
            messages, why = None, "what its connection brings is not a host's message"
        if messages is None and number not in self._left:
            self._lose(number, why)
        return messages is not None

    def _obey(self, number, message):
        """Does what a host's message asks for.

        A host speaks for itself, and the chief also says who is lost.

        Raises:
          ValueError: it is not a message that this host may send.
        """
        match message:
            case {"lost": int(lost), "why": str(why), "code": int(code)} if (
                number == 0 and 0 <= lost < len(self._addresses) and _is_code(code)
            ):
                self._lose(lost, printable(why), code)
            case {"leaving": int(code), "host": int(host)} if host == number and _is_code(code):
                self._let_go(number, code)
            case {"asks": int(host)} if host == number:
                self._connections[number].send(present=self._index)
            case {"present": int(host)} if host == number:
                self._present.add(number)
            case _:
                raise ValueError("not a message of this host")

    def _let_go(self, number, code):
        """Notes a goodbye. A host that failed by itself makes the others end with it.

        A host that ended with success, Ctrl-C or SIGTERM does so only if this host still needs it.
        If this host only waits to say farewell, and the other one ended by Ctrl-C, this one ends
        with its own code.
        """
        with self._lock:
            self._left[number] = code
            waits_in_vain = self._waits and code == _CTRL_C
        if waits_in_vain:
            self._end(self._last_code)
        elif code not in _AGREED:
            # This host may be about to fail in the same way, and to say so.
            time.sleep(_ERROR_SECS)
            why = f"it has ended with exit code {code}, and its own output says why"
            self._lose(number, why, code)
        elif (needed := self._needed) is not None:
            time.sleep(_END_SECS)
            if self._needed is needed:
                self._lose_left()

    def _lose_left(self):
        """Ends the process, which needs all hosts, if one has left with a code of `_AGREED`."""
        for number, code in list(self._left.items()):
            if code in _AGREED:
                # 0 is also said for a program that has ended by a SystemExit of its own.
                ended = f"has ended with exit code {code}" if code else "has come to its end"
                why = f"it {ended} before the work of all hosts was done"
                self._lose(number, why, code or EXIT_CODE)

    def _lose(self, number, why, code=EXIT_CODE):
        with self._lock:
            if self._has_lost or (self._is_leaving and not self._waits):
                return
            self._has_lost, code = True, self._last_code or code
            for other, connection in self._connections.items():
                if other != number and self._index == 0:
                    connection.send(lost=number, why=why, code=code)
        self._end_with(
            f"host {number} of TF_CONFIG ({self._addresses[number]}) is lost: {why}."
            f"{self._given_advice()} Start the same commands again on all hosts: they resume.",
            code,
        )

    def _end_with(self, sentence, code):
        with contextlib.suppress(Exception):  # such as a closed pipe: the process ends all the same
            name = os.path.basename(sys.argv[0])
            print(f"\n{name}: error: {sentence}", file=sys.stderr, flush=True)
            sys.stdout.flush()
        self._end(code)

    def _given_advice(self):
        if self._advice is None:
            return ""
        given = []

        def ask():
            with contextlib.suppress(Exception):
                given.append(self._advice())

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_ADVICE_SECS)
        return "".join(f" {sentence}" for sentence in given)


def _is_code(code):
    """Returns whether a process can end with an exit code."""
    return -(2**31) <= code < 2**31


def _is_of_connections(error):
    """Returns whether an error may come from a broken connection between the devices' hosts."""
    words = ("Gloo", "gloo", "collective", "UNAVAILABLE", "DEADLINE_EXCEEDED", "Connection")
    return type(error).__module__.startswith("jax") or any(word in str(error) for word in words)


def exit_now(code: int) -> NoReturn:
    """Ends the process without jax's farewell, which would wait for hosts that have gone."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
