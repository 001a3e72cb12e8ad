"""Files that are written completely or not at all: written beside their place, then moved there.

What has been written survives a power loss.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import IO

from bert_estimator.system import disk_errors

ENDING = ".tmp"
"""The name of a file that is not complete ends so."""


@contextlib.contextmanager
def writer(path: str, mode: str = "w") -> Iterator[IO]:
    """Opens a file for writing that takes its place when the `with` block ends.

    Until then, and after an exception in the block, the place holds what it held before. A
    process that is killed in the block leaves `<path>.tmp`, which the next writer overwrites.

    Args:
      path: the place of the file, in a directory of this machine.
      mode: "w" for text, which is written as UTF-8 with lines that end in "\\n"; "wb" for bytes.

    Yields:
      The open file.
    """
    options = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    temporary = path + ENDING
    try:
        with disk_errors.naming(path), open(temporary, mode, **options) as file:
            yield file
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
