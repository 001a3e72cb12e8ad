"""A lock: one process at a time writes in a directory, or writes one set of files.

The lock is `flock` on a file that says who holds it. The kernel releases it however the holder
ends, by `kill -9` too, and the file that is left then means nothing. On a file system without
locks the file itself is the lock: it is created exclusively, and taken over from a process of this
machine that has ended. This module does not import TensorFlow.
"""

import contextlib
import errno
import json
import logging
import os
import socket
import sys
import threading
import time

from bert_estimator.tpu.program import hosts

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

FILE = ".lock"

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)
_LONGEST_COMMAND = 300

_mutex = threading.RLock()
_held = {}  # path of a lock's file -> what is held, of this process


class InUseError(RuntimeError):
    """Another process writes there: the text names it."""


@contextlib.contextmanager
def held(directory):
    """Holds the lock of a directory, which is made if need be; within one process, any number of
    times.

    Raises:
      InUseError: another process holds it.
      OSError: the lock's file cannot be written.
    """
    with _held_in(directory, FILE, directory):
        yield


@contextlib.contextmanager
def held_by_chief(directory):
    """As `held`, by the chief of several hosts for all of them, once all have come here.

    Raises:
      InUseError: on all of the hosts.
    """
    refusal = None
    with contextlib.ExitStack() as stack:
        if hosts.find().is_chief:
            try:
                stack.enter_context(held(directory))
            except InUseError as error:
                refusal = error
        if hosts.gather(int(refusal is not None)).any():
            raise refusal or InUseError(f"{directory} is in use, as the chief of the hosts says.")
        yield


@contextlib.contextmanager
def held_for(path):
    """Holds the lock of a file, or of a directory that is replaced as one, as `held` does. The
    lock's file is beside it: other files of the directory may be written meanwhile."""
    folder, name = os.path.split(os.fspath(path).rstrip(os.sep))
    with _held_in(folder or ".", f".{name}{FILE}", path):
        yield


@contextlib.contextmanager
def _held_in(folder, name, what):
    if "://" in os.fspath(folder):
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
    """A lock that this process holds: the path of its file, and the descriptor that `flock` is on,
    or None where the file itself is the lock."""

    def __init__(self, path, descriptor):
        self.path, self.descriptor = path, descriptor
        self.holders = 0

    def release(self):
        # The file goes first: who opens it then and waits for nobody finds another in its place.
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
                os.write(descriptor, _description_of_this_process())
                return _Lock(path, descriptor)
            os.close(descriptor)  # who held it before has removed it since it was opened
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise InUseError(_refusal(what, _read(path))) from None
            if error.errno not in _UNSUPPORTED:
                raise
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
            return _create(path + "-held", what)


def _create(path, what):
    """Acquires a lock that is the file itself."""
    for _ in range(2):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            before = _read(path)
            if not _has_ended(before):
                advice = f" If that process has ended, remove {path}."
                raise InUseError(_refusal(what, before) + advice) from None
            _remove_left(path, before)
            continue
        os.write(descriptor, _description_of_this_process())
        os.close(descriptor)
        _warn(
            f"The file system of {what} has no locks: {path} keeps other writers out. After a kill "
            "of this process, only a process of this machine can tell that it may be removed."
        )
        return _Lock(path, None)
    raise InUseError(_refusal(what, _read(path)))


def _remove_left(path, content):
    """Removes the file of a process that has ended, unless another has just put its own there."""
    aside = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
        if _read(aside) != content:
            os.link(aside, path)
        os.remove(aside)


def _is_at(descriptor, path):
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _description_of_this_process():
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
    """Returns what a lock's file says of its holder; an empty dict if it says nothing (yet)."""
    try:
        with open(path, encoding="utf-8") as reader:
            described = json.load(reader)
    except (OSError, ValueError):
        return {}
    return described if isinstance(described, dict) else {}


def _refusal(what, holder):
    who = "another process"
    if "pid" in holder:
        who = (
            f"process {holder['pid']} on {holder.get('host')} since {holder.get('since')} "
            f"({holder.get('command')})"
        )
    return (
        f"{what} is being written by {who}. One process writes there at a time: wait until it has "
        "ended, or write elsewhere."
    )


def _has_ended(holder):
    """Whether the process that a file describes ran on this machine, and does so no longer."""
    same = holder.get("host") == socket.gethostname() and holder.get("machine") == _machine()
    if not same or not isinstance(holder.get("pid"), int):
        return False
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:  # somebody else's
        return False
    return _start_of(holder["pid"]) != holder.get("started")  # its number was given again


def _machine():
    """Returns what tells this machine's processes from those of another of its name: its boot, and
    the container; None where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as reader:
            return f"{reader.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _start_of(pid):
    """Returns when a process began, in ticks since the machine did; None if that is not known."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as reader:
            return int(reader.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _forget():
    """A forked process holds no lock: it must not outlive the one that does."""
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
