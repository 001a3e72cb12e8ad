"""A directory, or a set of files, that another process writes."""

import contextlib
import fcntl
import os

WHO = "is being written by process 77 on h since noon (c). One process writes there at a time: "


@contextlib.contextmanager
def by_another(path):
    """Locks the file of a lock as another process does: with a descriptor of its own."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, b'{"pid": 77, "host": "h", "since": "noon", "command": "c"}')
        yield
    finally:
        os.close(descriptor)
