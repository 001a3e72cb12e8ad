"""Paths beyond this machine, such as gs://bucket/run, and the errors of their file systems.

TensorFlow's `tf.io.gfile` reads and writes them; each TensorFlow has gs://, and a plug-in may add
others. TensorFlow is only loaded if there is a remote path.
"""

import contextlib
import re
from collections.abc import Iterator

_NOT_REMOTE = ("", "file", "ram")


class StorageError(ValueError):
    """A remote file system cannot be used; the text says why, and what to do."""


def is_remote(path: str | None) -> bool:
    """Returns whether a path is a URL, such as gs://bucket/name."""
    return path is not None and re.match(r"[a-z][a-z0-9+.-]*://", path) is not None


@contextlib.contextmanager
def explaining(url: str) -> Iterator[None]:
    """Makes TensorFlow's errors of a remote file system a `StorageError`, which says what to do."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        if not _is_of_tensorflow(error):
            raise
        raise StorageError(_explanation(url, error)) from None


def _explanation(url, error):
    kind, reason = type(error).__name__, (str(error).strip() or "no such file").splitlines()[0]
    scheme = url.partition("://")[0]
    if kind == "UnimplementedError":
        known = sorted(f"{s}://" for s in _registered_schemes() if s not in _NOT_REMOTE)
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


def _registered_schemes():
    import tensorflow.compat.v1 as tf  # takes seconds: only for remote files

    return tf.io.gfile.get_registered_schemes()


def _is_of_tensorflow(error):
    return type(error).__module__.startswith("tensorflow")
