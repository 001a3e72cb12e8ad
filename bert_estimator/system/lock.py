"""A lock, with which one process at a time writes in a directory, or writes a set of files.

The lock is `flock` on a file that says who holds it. When the holder ends, even by `kill -9`, the
kernel releases the lock; the file may stay, without effect. On a file system without locks the file
itself is the lock: the holder creates it exclusively. If the holder ran on this machine and has
ended, another process takes the file over. This module does not import TensorFlow.
"""

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from bert_estimator.system import json_files, paths

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

FILE = ".lock"
_HELD = "-held"  # at the end of the name of a file that is the lock itself

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)
_LONGEST_COMMAND = 300
_GREATEST_PID = 1 << 22  # of Linux

_mutex = threading.RLock()
_held = {}  # path of a lock's file -> the `_Lock` that this process holds


class InUseError(RuntimeError):
    """Another process holds the lock; the text names the process."""


@contextlib.contextmanager
def held(directory: str, what: str | None = None) -> Iterator[None]:
    """Holds the lock of a directory, which is made if it does not exist, or raises an `InUseError`
    about `what` is written there; the process that holds the lock may enter it again."""
    with _held_in(directory, FILE, what or directory):
        yield


def remove_leftovers(directory: str) -> None:
    """Removes what killed processes did not complete: its directories `temp-` with a time."""
    names = os.listdir(directory) if os.path.isdir(directory) else ()
    for name in names:
        if not re.fullmatch(r"temp-\d{10}", name):
            continue
        # A process that is filling such a directory holds its lock.
        with contextlib.suppress(InUseError):
            unfinished = os.path.join(directory, name)
            with held(unfinished):
                shutil.rmtree(unfinished, ignore_errors=True)


def is_free(directory: str) -> bool:
    """Returns whether it is certain that no process holds the lock of a directory."""
    path = os.path.join(directory, FILE)
    # A lock's file that a killed process of this machine has left does not count.
    return all(has_ended(_read(file)) for file in (path, path + _HELD) if os.path.exists(file))


@contextlib.contextmanager
def held_for(path: str) -> Iterator[None]:
    """Holds the lock of a file, or of a directory that is replaced as a whole, as `held` does."""
    # The lock's file is beside it, so other processes may write other files of the folder.
    folder, name = os.path.split(os.fspath(path).rstrip(os.sep))
    with _held_in(folder or ".", f".{name}{FILE}", path):
        yield


@contextlib.contextmanager
def _held_in(folder, name, what):
    if paths.is_remote(folder):
        _warn(f"{what} is not in a file system of this machine: nothing locks other writers out.")
        yield
        return
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(os.path.realpath(folder), name)
    with _mutex:
        lock = _held.get(path) or _acquire(path, what)
        _held[path] = lock
        lock.holders += 1
    try:
        yield
    finally:
        with _mutex:
            lock.holders -= 1
            if not lock.holders and _held.pop(path, None):
                lock.release()


class _Lock:
    """A lock that this process holds, by its file."""

    def __init__(self, path, descriptor):
        # The descriptor has the `flock`; it is None if the file itself is the lock.
        self.path, self.descriptor = path, descriptor
        # How many times the process has entered the lock.
        self.holders = 0

    def release(self):
        # The file is removed before the lock is released. A process that had opened it sees that
        # another file is in its place, or none.
        with contextlib.suppress(OSError):
            os.remove(self.path)
        if self.descriptor is not None:
            os.close(self.descriptor)


def _acquire(path, what):
    if fcntl is None:
        return _create(path, what)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, description_of_this_process())
                return _Lock(path, descriptor)
            os.close(descriptor)  # Its last holder has removed the file since it was opened.
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise InUseError(refusal(what, _read(path))) from None
            if error.errno not in _UNSUPPORTED:
                raise
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
            return _create(path + _HELD, what)


def _create(path, what):
    """Acquires a lock on a file system without locks: the file itself is the lock."""
    # The second attempt comes after the file of an ended process was removed.
    for _ in range(2):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            before = _read(path)
            if not has_ended(before):
                advice = f" If that process has ended, remove {path}."
                raise InUseError(refusal(what, before) + advice) from None
            _remove_left(path, before)
            continue
        os.write(descriptor, description_of_this_process())
        os.close(descriptor)
        _warn(
            f"The file system of {what} has no locks: {path} keeps other writers out. After a kill "
            "of this process, only a process of this machine can tell that it may be removed."
        )
        return _Lock(path, None)
    raise InUseError(refusal(what, _read(path)))


def _remove_left(path, content):
    """Removes the file of an ended process, unless another process has just replaced it."""
    aside = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        # Of several processes, only one can rename the file. If it got another process's new file,
        # a link brings this back, because a link never replaces a file that has come there since.
        os.rename(path, aside)
        if _read(aside) != content:
            os.link(aside, path)
        os.remove(aside)


def _is_at(descriptor, path):
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def description_of_this_process() -> bytes:
    """Returns what the file of a lock says of its holder: JSON."""
    command = " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
    described = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": command[:_LONGEST_COMMAND],
        "machine": _machine(),
        "started": _start_of(os.getpid()),
    }
    return json.dumps(described).encode() + b"\n"


def _read(path):
    """Returns the dict in a lock's file about its holder; it is empty if the file is."""
    try:
        return json_files.read(path)
    except (OSError, ValueError):
        return {}


def refusal(what: str, holder: dict[str, Any]) -> str:
    """Returns what an `InUseError` says; `holder` is the object of the lock's file."""
    return (
        f"{what} is being written by {named(holder)}. One process writes there at a time: wait "
        "until it has ended, or write elsewhere."
    )


def named(holder: dict[str, Any]) -> str:
    """Returns in words which process holds a lock."""
    if "pid" not in holder:
        return "another process"
    return (
        f"process {holder['pid']} on {holder.get('host')} since {holder.get('since')} "
        f"({holder.get('command')})"
    )


def has_ended(holder: dict[str, Any]) -> bool:
    """Returns whether the process that a file describes ran on this machine and has ended."""
    same = holder.get("host") == socket.gethostname() and holder.get("machine") == _machine()
    if not same or type(holder.get("pid")) is not int or not 0 < holder["pid"] <= _GREATEST_PID:
        return False
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:  # It is another user's process.
        return False
    # If the times differ, a new process has got the number of the old one.
    return _start_of(holder["pid"]) != holder.get("started")


def _machine():
    """Returns an id of this machine's boot and of the container; None if they are not known."""
    # The id tells this machine's processes from another machine's of the same name.
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as reader:
            return f"{reader.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _start_of(pid):
    """Returns when a process began, in ticks since the boot; None if the time is not known."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as reader:
            return int(reader.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _forget():
    """Forgets the locks in a forked process, which may outlive the process that holds them."""
    global _mutex
    _mutex = threading.RLock()
    for lock in _held.values():
        if lock.descriptor is not None:
            os.close(lock.descriptor)
    _held.clear()


def _warn(message):
    logging.getLogger("tensorflow").warning("%s", message)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)
