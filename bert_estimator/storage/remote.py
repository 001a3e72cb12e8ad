"""Files beyond this machine, such as gs://bucket/run: copied here, copied there, and explained.

TensorFlow's `tf.io.gfile` reads and writes them; each TensorFlow has gs://, and a plug-in may add
others. Messages name what the user named, and not the local copy: see `shown`. TensorFlow is only
loaded if there is a remote path.
"""

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from bert_estimator.storage import staging
from bert_estimator.system import json_files, paths

# An object of these is there as a whole or not at all. Elsewhere a file is written under another
# name, and then renamed.
_OF_WHOLE_OBJECTS = ("gs://", "s3://")
UNFINISHED = ".unfinished"

_MOST_TRIALS = 5
_FIRST_WAIT_SECS = 1.0

# Names of TensorFlow's errors after which another trial is of no use.
_LASTING = (
    "InvalidArgumentError",
    "NotFoundError",
    "PermissionDeniedError",
    "UnauthenticatedError",
    "UnimplementedError",
)

_shown: dict[str, str] = {}  # local copy -> the URL that it is a copy of

Result = TypeVar("Result")

_NOT_REMOTE = ("", "file", "ram")


class StorageError(ValueError):
    """A remote file system cannot be used; the text says why, and what to do."""


@contextlib.contextmanager
def explaining(url: str) -> Iterator[None]:
    """Makes TensorFlow's errors of a remote file system a `StorageError`, which says what to do."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith("tensorflow"):
            raise
        raise StorageError(_explanation(url, error)) from None


def _explanation(url, error):
    kind, reason = type(error).__name__, (str(error).strip() or "no such file").splitlines()[0]
    scheme = url.partition("://")[0]
    if kind == "UnimplementedError":
        known = sorted(f"{s}://" for s in _gfile().get_registered_schemes() if s not in _NOT_REMOTE)
        return (
            f"{url}: this TensorFlow does not know {scheme}://, only {', '.join(known)}. Mount it "
            "as a directory, or use a path of this machine"
        )
    if kind == "NotFoundError":
        return f"{url}: is not there ({reason})"
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return (
            f"{url}: access is denied ({reason}). Give this machine credentials: for gs://, run "
            "gcloud auth application-default login, or name a key in GOOGLE_APPLICATION_CREDENTIALS"
        )
    return (
        f"{url}: {scheme}:// does not answer as it should ({reason}). Look at the name, the "
        "network and the credentials of this machine"
    )


def check(url: str) -> bool:
    """Asks whether a file or a directory is there."""
    with explaining(url):
        return _gfile().exists(url)


def is_directory(url: str) -> bool:
    """Asks whether what is there is a directory."""
    return _retried(lambda: _gfile().stat(url).is_directory, url)


def matches(pattern: str) -> list[str]:
    """Returns the files that a pattern matches, sorted; a directory or a file matches itself."""
    with explaining(pattern):
        gfile = _gfile()
        return [pattern] if gfile.exists(pattern) else sorted(gfile.glob(pattern))


def read(url: str, most_bytes: int = 1 << 20) -> bytes | None:
    """Returns the bytes of a small file, at most so many; None if it does not exist."""

    def try_it():
        if not _gfile().exists(url):
            return None
        with _gfile().GFile(url, "rb") as reader:
            # Without a number it would ask for the size, which may be known from before.
            return reader.read(most_bytes)

    return _retried(try_it, url)


def read_json(path: str, kind: type = dict, most_bytes: int = json_files.MOST_BYTES) -> Any:
    """Reads a JSON file of this machine or of a URL, as `json_files.read` does."""
    if not paths.is_remote(path):
        return json_files.read(path, kind, most_bytes)
    with explaining(path), _gfile().GFile(path, "rb") as reader:
        # A byte more than allowed shows that the file is too long.
        return json_files.parse(reader.read(most_bytes + 1), path, kind, most_bytes)


def write(data: bytes, url: str) -> None:
    """Writes a small file, all of it or nothing."""

    def try_it(target):
        with _gfile().GFile(target, "wb") as writer:
            writer.write(data)

    _written(try_it, url)


def upload(path: str, url: str) -> None:
    """Copies a file of this machine to a URL, all of it or nothing."""
    _written(lambda target: _gfile().copy(path, target, overwrite=True), url)


def download(url: str, path: str) -> None:
    """Copies a file to this machine; its directory is made if it does not exist."""
    os.makedirs(os.path.dirname(path), exist_ok=True)

    def try_it():
        _gfile().copy(url, path, overwrite=True)
        # A connection that breaks may look like the end of the file.
        there, here = _gfile().stat(url).length, os.path.getsize(path)
        if there != here:
            raise StorageError(f"{url}: {here} bytes were read, but it has {there}")

    _retried(try_it, url)


def remove(url: str) -> None:
    """Removes a file, if it is there."""

    def try_it():
        if _gfile().exists(url):
            _gfile().remove(url)

    _retried(try_it, url)


def files(url: str) -> dict[str, tuple[int, int]]:
    """Returns the files in and below a directory, by their paths relative to it -> (bytes, time of
    the last change in nanoseconds)."""

    # `walk` and `isdir` take a directory for a missing one if the file system does not answer.
    def list_into(listed, folder, prefix):
        for name in _gfile().listdir(folder):
            name = name.rstrip("/")
            path = f"{folder}/{name}"
            # They would lead out of the local directory.
            if name in (".", ".."):  # Objects may have any names.
                raise ValueError(f"{path}: is not a name that a file here may have; rename it")
            if not name or name.endswith(UNFINISHED):
                continue
            try:
                stat = _gfile().stat(path)
            except _errors().NotFoundError:  # It was removed since it was listed.
                continue
            if stat.is_directory:
                list_into(listed, path, f"{prefix}{name}/")
            else:
                listed[prefix + name] = (stat.length, stat.mtime_nsec)
        return listed

    url = url.rstrip("/")
    return _retried(lambda: list_into({}, url, "") if _gfile().exists(url) else {}, url)


def names(url: str) -> list[str]:
    """Lists the files and directories in a directory by name; [] if there is no such directory."""

    def try_it():
        entries = _gfile().listdir(url) if _gfile().exists(url) else []
        return [entry.rstrip("/") for entry in entries]

    return _retried(try_it, url)


def local(path: str) -> str:
    """Returns the path of a file on this machine: the path itself, or a copy of a remote file that
    lasts as long as the process."""
    if not paths.is_remote(path):
        return path
    stat = _retried(lambda: _gfile().stat(path), path)
    # A file is copied once in a process, unless it changes.
    return _copied(path, stat.length, stat.mtime_nsec)


@functools.cache
def _copied(url, *_):
    copy = os.path.join(staging.temporary_folder(), os.path.basename(url))
    download(url, copy)
    _shown[copy] = url
    return copy


def local_directory(url: str, is_wanted: Callable[[str], bool] = lambda name: True) -> str:
    """Copies the wanted files of a remote directory, by their relative paths, to a new directory of
    this machine; returns its path."""
    names = list(filter(is_wanted, files(url)))
    if not names:
        raise StorageError(f"{url}: is not there, or does not hold the files that are wanted")
    folder = staging.temporary_folder()
    for name in names:
        download(f"{url.rstrip('/')}/{name}", os.path.join(folder, name))
    _shown[folder] = url.rstrip("/")
    return folder


def show(path: str, url: str) -> None:
    """Has messages name a URL instead of the local directory that stands for it."""
    _shown[path] = url


def shown(text: Any) -> str:
    """Returns a text for the user: paths of local copies become the URLs that they stand for."""
    text = str(text)
    for path, url in list(_shown.items()):  # Another thread may add to it.
        text = text.replace(path, url)
    return text


def _retried(function: Callable[[], Result], url: str) -> Result:
    """Calls a function; after an error that may pass, it waits and calls it again."""
    wait_secs = _FIRST_WAIT_SECS
    for trial in range(1, _MOST_TRIALS + 1):
        try:
            with explaining(url):
                return function()
        except StorageError as error:
            # The `__context__` is TensorFlow's error.
            if type(error.__context__).__name__ in _LASTING or trial == _MOST_TRIALS:
                raise
            logging.getLogger("tensorflow").warning(
                "%s. Trying again in %g s (%d of %d failed).", error, wait_secs, trial, _MOST_TRIALS
            )
            time.sleep(wait_secs)
            wait_secs *= 2
    raise AssertionError("the loop ends by itself")


def _written(write_to, url):
    def try_it():
        _gfile().makedirs(url.rpartition("/")[0])
        if url.startswith(_OF_WHOLE_OBJECTS):
            write_to(url)
        else:
            write_to(url + UNFINISHED)
            _gfile().rename(url + UNFINISHED, url, overwrite=True)

    _retried(try_it, url)


def _gfile() -> Any:
    import tensorflow.compat.v1 as tf  # takes seconds: only for remote files

    return tf.io.gfile


def _errors() -> Any:
    import tensorflow.compat.v1 as tf

    return tf.errors
