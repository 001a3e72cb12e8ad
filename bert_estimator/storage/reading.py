"""Texts on remote file systems, such as gs://bucket/name and hf://datasets/name: found and read.

fsspec reads them if it is installed, with its module for the protocol (gcsfs, s3fs, ...). Otherwise
TensorFlow does, as far as this build of TensorFlow knows the protocol.
"""

import contextlib
import importlib.util
import posixpath
from collections.abc import Iterator
from typing import IO, Any

from bert_estimator.storage import remote

_TO_DO = "pip install 'bert-estimator[corpora]' and fsspec's module for this protocol"


def find(pattern: str) -> list[str]:
    """Returns the files that match a pattern, or are in or below a directory; sorted."""
    with _errors(pattern):
        if (system := _system(pattern)) is None:
            return _find_by_tensorflow(pattern)
        path = system._strip_protocol(pattern)
        if system.isdir(path):
            # Names that begin with a dot are left out, as in a shell.
            files = [file for file in system.find(path) if not _is_hidden(file, path)]
        else:
            files = [file for file in _visible(system.glob(path), path) if system.isfile(file)]
        return sorted(map(system.unstrip_protocol, files))


def version(path: str) -> tuple[int, int]:
    """Returns the size of a file in bytes, and a number that changes when its content does."""
    with _errors(path):
        if (system := _system(path)) is not None:
            # The checksum is of what the file system says of the file, such as its ETag or the time
            # of its last change.
            return system.size(path), system.checksum(path)
        import tensorflow.compat.v1 as tf

        status = tf.io.gfile.stat(path)
        return status.length, status.mtime_nsec


@contextlib.contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """Opens a file for reading."""
    with _errors(path):
        if (system := _system(path)) is not None:
            file = system.open(path, "rb")
        else:
            import tensorflow.compat.v1 as tf

            file = tf.io.gfile.GFile(path, "rb")
            file.size()  # an error of opening comes now
    with _errors_of_tensorflow(path), file:
        yield file


def _find_by_tensorflow(pattern):
    import tensorflow.compat.v1 as tf

    if not tf.io.gfile.isdir(pattern):
        files = _visible(tf.io.gfile.glob(pattern), pattern)
        return sorted(path for path in files if not tf.io.gfile.isdir(path))
    files = [tf.io.gfile.join(pattern, name) for name in remote.files(pattern)]
    return sorted(file for file in files if not _is_hidden(file, pattern))


def _visible(files, pattern):
    """Leaves out files whose names begin with a dot, unless the last part of the glob does, too."""
    if posixpath.basename(pattern).startswith("."):
        return files
    return [file for file in files if not posixpath.basename(file).startswith(".")]


def _is_hidden(file, directory):
    return "/." in file.removeprefix(directory.rstrip("/"))


def _system(path) -> Any:
    """Returns fsspec's file system of a path, or None if fsspec or its module is not installed."""
    if importlib.util.find_spec("fsspec") is None:
        return None
    import fsspec

    try:
        fsspec.get_filesystem_class(fsspec.utils.get_protocol(path))
    except (ImportError, ValueError):  # The protocol's module is missing, or it is unknown.
        return None
    return fsspec.core.url_to_fs(path)[0]


@contextlib.contextmanager
def _errors(path):
    """Makes errors of a remote file system a ValueError with a sentence."""
    try:
        with _errors_of_tensorflow(path):
            yield
    except FileNotFoundError:
        raise ValueError(f"{path}: cannot be read: it is not there.") from None
    except ImportError as error:
        raise ValueError(f"{path}: cannot be read: {error}. Do this: {_TO_DO}.") from None
    except OSError:
        raise
    except ValueError as error:
        # fsspec says "Protocol not known"; other ValueErrors say what they mean.
        if "rotocol" not in str(error):
            raise
        raise ValueError(f"{path}: cannot be read: {error}. Do this: {_TO_DO}.") from None


@contextlib.contextmanager
def _errors_of_tensorflow(path):
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith("tensorflow"):
            raise ValueError(f"{path}: cannot be read: {error}. Do this: {_TO_DO}.") from None
        raise
