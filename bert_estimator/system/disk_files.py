"""Files of this machine's disks: written completely or not at all, and what is wrong with a disk.

What has been written survives a power loss. Errors are said in a sentence, with what to do.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from typing import IO, BinaryIO

ENDING = ".tmp"
"""The name of a file that is not complete ends so."""


@contextlib.contextmanager
def writer(path: str, mode: str = "w") -> Iterator[IO]:
    """Opens a file that takes its place when the `with` block ends; until then, and after an
    exception, the place holds what it held before."""
    # Text is the same on every system.
    options = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    # If the process is killed in the block, the next writer overwrites this file.
    temporary = path + ENDING
    try:
        with naming(path), open(temporary, mode, **options) as file:
            yield file
            # If its name got to the disk first, a power loss would leave an empty file.
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync(os.path.dirname(path) or ".")
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise


def sync(path: str) -> None:
    """Brings a file's contents, or a directory's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Some file systems cannot do this for directories.
        with contextlib.suppress(OSError) if os.path.isdir(path) else contextlib.nullcontext():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


_BLOCK_BYTES = 1 << 20

# What the kernel says -> what to do. TensorFlow's errors have the kernel's words at their end.
_ADVICE = {
    errno.ENOSPC: "Free space there",
    errno.EDQUOT: "Free space there, or have the quota raised",
    errno.EFBIG: "Raise the limit of the size of files (ulimit -f)",
    errno.EROFS: "Mount the file system for writing again",
    errno.EIO: "Have a look at the disk (dmesg)",
    errno.ESTALE: "Mount the file system again",
    errno.EACCES: "Give this user access to it",
    errno.EPERM: "Give this user access to it",
}
# What is wrong with a path, rather than with a disk: the next attempt would end in the same way.
_OF_PATHS = frozenset(
    (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
)
_REASONS = {os.strerror(number): number for number in _ADVICE}
_ABSENT = os.strerror(errno.ENOENT)
# A path may have spaces. In TensorFlow's messages ": " may stand before it.
_OF_TENSORFLOW = re.compile(
    rf"^(?:.*: )?(.+?); ({'|'.join(map(re.escape, [*_REASONS, _ABSENT]))})", re.MULTILINE
)
_OF_SAVER = re.compile(r"Parent directory of (.+) doesn't exist, can't save")


def explanation(error: BaseException, what_next: str) -> str | None:
    """Returns what a full, missing or broken disk did to end a program, as a sentence that ends in
    `what_next`; None if the error, an OSError or TensorFlow's, is another."""
    path, reason = _path_and_reason(error)
    if reason == _ABSENT:
        missing = _first_missing(path)
        if missing is None:
            return None
        return (
            f"{path} cannot be reached: the directory {missing} is gone. Bring it back; {what_next}"
        )
    if reason not in _REASONS:
        return None
    return f"{path or 'A file'}: {reason}. {_ADVICE[_REASONS[reason]]}; {what_next}"


def is_of_path(error: OSError) -> bool:
    """Returns whether an error says that a path is wrong, or closed to this user."""
    kinds = (FileNotFoundError, IsADirectoryError, PermissionError)  # they may have only a text
    return isinstance(error, kinds) or error.errno in _OF_PATHS


def is_of_input(error: OSError) -> bool:
    """Returns whether an error, raised while an input was opened, says that it cannot be read."""
    return is_of_path(error) or error.errno == errno.EIO


def in_words(error: Exception) -> str:
    """Returns what an error says, an OSError without its number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def why_unreadable(path: str) -> str | None:
    """Returns why a file or directory cannot be read; None if it can."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            os.listdir(path)
        # A pipe passes: some inputs may come from a pipe, and reading it here would take from it.
        elif not stat.S_ISFIFO(mode):
            with open(path, "rb", buffering=0) as reader:
                reader.read(1)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


@contextlib.contextmanager
def reading(path: str) -> Iterator[BinaryIO]:
    """Opens a file of this machine for reading; its errors name it."""
    # The reader of a pipe might wait without end.
    if stat.S_ISFIFO(os.stat(path).st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a pipe, not a file", path)
    with naming(path), open(path, "rb") as reader:
        yield reader


def read_at_most(reader: BinaryIO, number: int) -> bytes:
    """Returns what a stream holds; if it is longer, its first `number` + 1 bytes."""
    # Asked for gigabytes, Python would ask for their memory at once, which small machines refuse.
    blocks, missing = [], number + 1
    while missing and (block := reader.read(min(missing, _BLOCK_BYTES))):
        blocks.append(block)
        missing -= len(block)
    return b"".join(blocks)


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Adds a file's path to the errors of reading and writing it, which do not name it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


def _path_and_reason(error):
    if isinstance(error, OSError):
        path = error.filename if isinstance(error.filename, str) else ""
        return path, os.strerror(error.errno) if error.errno else None
    of_tensorflow = _OF_TENSORFLOW.search(str(error))
    if of_tensorflow:
        return of_tensorflow.groups()
    of_saver = _OF_SAVER.search(str(error))
    return (of_saver[1], _ABSENT) if of_saver else ("", None)


def _first_missing(path):
    """Returns the first directory above a path that does not exist, or None if all exist."""
    missing, folder = None, os.path.dirname(os.path.abspath(path)) if path else os.sep
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        missing, folder = folder, os.path.dirname(folder)
    return missing
