"""Zip archives that may come from strangers: names, sizes and damages are checked first."""

import contextlib
import errno
import os
import posixpath
import re
import shutil
import stat
import zipfile
from collections.abc import Iterable, Iterator

# Weights hardly shrink, and vocabularies to a third: a model unpacks to less than this many times
# its archive. Constant weights shrink to a thousandth, which small models of tests have.
MOST_RATIO = 100
_ALWAYS_ALLOWED_BYTES = 1 << 28

# Of names: what file systems allow for one directory or file, and what is far beyond any model's.
_MOST_BYTES, _MOST_PATH_BYTES = 255, 1000


class ZipError(ValueError):
    """An archive is damaged, or holds what is not unpacked; the message names it."""


def opened(path: str) -> zipfile.ZipFile:
    """Opens an archive, or raises a `ZipError`; surround what reads its members by `reading`."""
    with reading(path):
        return zipfile.ZipFile(path)


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Makes the errors that a damaged archive leads to a `ZipError`; it surrounds nothing else."""
    try:
        yield
    except OSError as error:
        # A bad place to seek to, and bzip2's errors, which have no number, are damage.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise ZipError(f"{path}: the archive cannot be read: {error}") from None
    except Exception as error:  # zipfile and numpy raise errors of many kinds for damaged archives
        raise ZipError(f"{path}: the archive cannot be read: {str(error) or repr(error)}") from None


def check(archive: zipfile.ZipFile, names: Iterable[str], folder: str | None) -> set[str]:
    """Returns the relative paths of the files that an archive's members become, or raises a
    `ZipError` if they are not to be unpacked into `folder` (None: they are only read)."""
    path, names = str(archive.filename), list(names)
    members: dict[str, str] = {}  # path -> name
    for name in names:
        _check_name(path, name)
        file = posixpath.normpath(name)  # without "." and "//"
        if file in members:
            both = f" and {members[file]!r}, the same file" if members[file] != name else " twice"
            raise ZipError(f"{path}: holds {name!r}{both}")
        members[file] = name
        if stat.S_ISLNK(archive.getinfo(name).external_attr >> 16):
            raise ZipError(f"{path}: {name!r} is a symbolic link, not a file; unpack it yourself")
    # What is a file cannot also be the directory of another file.
    for file in members:
        folders = file.split("/")[:-1]
        for number in range(1, len(folders) + 1):
            if (parent := "/".join(folders[:number])) in members:
                raise ZipError(
                    f"{path}: holds {members[parent]!r} as a file, and {members[file]!r} within it"
                )
    # The sizes that the archive claims: zipfile does not unpack more of a member.
    size = sum(archive.getinfo(name).file_size for name in names)
    most = max(_ALWAYS_ALLOWED_BYTES, MOST_RATIO * os.path.getsize(path))
    if size > most:
        raise ZipError(
            f"{path}: unpacks to {size} bytes, more than {MOST_RATIO} times its size, as no model "
            "does. If you trust it, unpack it yourself"
        )
    free = None if folder is None else shutil.disk_usage(folder).free
    if free is not None and size > free:
        raise ZipError(
            f"{path}: unpacks to {size} bytes, but {folder} has {free} bytes of free space; make "
            "space, or set TMPDIR to a directory that has more"
        )
    return set(members)


def _check_name(path, name):
    """Raises ZipError for a name of a member that leads out of the directory, or is too long."""
    parts = re.split(r"[/\\]", name)
    if not parts[0] or ".." in parts or "\\" in name or ":" in parts[0]:
        raise ZipError(
            f"{path}: holds {name!r}, a name that leads out of the directory that the archive is "
            "unpacked into. Do not use this archive, or unpack it yourself"
        )
    size = len(os.fsencode(name))
    if size > _MOST_PATH_BYTES or max(len(os.fsencode(part)) for part in parts) > _MOST_BYTES:
        raise ZipError(
            f"{path}: holds {name[:40]!r}..., a name of {size} bytes. Allowed are "
            f"{_MOST_PATH_BYTES} bytes, and {_MOST_BYTES} for a directory or a file"
        )
