"""Closes what is still open when the process ends.

A script may end in the middle of a prediction, or while a daemon thread trains. Python would close
a generator when most of the interpreter is gone: no thread can be started, and running threads stop
where they are.
"""

import atexit
import time
import weakref
from typing import Any

# How long the process waits for a daemon thread, which may be in a step.
WAIT_SECS = 5

_open: weakref.WeakSet = weakref.WeakSet()
_began = []  # not empty once the process ends


def close(closable: Any) -> None:
    """Has a generator, or another object, closed at the process's end if it still exists then.

    Functions that were registered with `atexit` since, such as a script's, are called before.
    """
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
        while not _closed(closable) and time.monotonic() < end:
            time.sleep(0.01)


def _closed(closable):
    """Closes something; returns whether that could be done."""
    try:
        closable.close()
    except ValueError:  # A thread is just in this generator.
        return False
    return True
