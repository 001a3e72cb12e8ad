"""Root without the right to read every file, so that a file's mode means what it says."""

import contextlib
import ctypes
import os
from collections.abc import Iterator

_VERSION_3 = 0x20080522
_READS_ALL = (1 << 1) | (1 << 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Sets(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


@contextlib.contextmanager
def modes_hold() -> Iterator[None]:
    """Has the modes of files hold for this thread, also if it is root's."""
    if os.geteuid() != 0:
        yield
        return
    library = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()

    def call(name):
        if getattr(library, name)(ctypes.byref(header), sets):
            raise OSError(ctypes.get_errno(), name)

    call("capget")
    before = sets[0].effective
    sets[0].effective &= ~_READS_ALL
    call("capset")
    try:
        yield
    finally:
        sets[0].effective = before
        call("capset")
