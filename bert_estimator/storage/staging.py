"""Directories below $TMPDIR for files that come from remote storage, or are on their way there.

Only this user can read them. A directory that is to outlive a kill is locked while a process uses
it, so that another process knows what nobody uses any more.
"""

import atexit
import contextlib
import glob
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator

from bert_estimator.system import lock

_PREFIX = "bert_estimator_"


def temporary_folder() -> str:
    """Returns a new directory that lasts as long as the process."""
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _digest(url):
    return hashlib.sha256(url.encode()).hexdigest()[:12]


# Outputs of commands: the same command finds its directory again.

_OUTPUTS = f"{_PREFIX}output_"


@contextlib.contextmanager
def output_folder(url: str) -> Iterator[str]:
    """Makes the directory of an output, or finds it again, and locks it."""
    folder = f"{_outputs_of_user()}{_digest(url)}"
    if not os.path.lexists(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    # Anybody can tell the name from the user and the output, and may have made it before.
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{folder} is not a directory; remove it, or set TMPDIR to another one")
    if status.st_uid != _user():
        raise ValueError(f"{folder} belongs to another user; set TMPDIR to a directory of your own")
    os.chmod(folder, 0o700)
    with lock.held(folder, url):
        yield folder


def other_output_folders(folder: str) -> list[str]:
    """Returns the directories of this user's other outputs that no process uses."""
    folders = set(glob.glob(f"{glob.escape(_outputs_of_user())}*")) - {folder}
    return [other for other in sorted(folders) if lock.is_free(other)]


def _outputs_of_user():
    return os.path.join(tempfile.gettempdir(), f"{_OUTPUTS}{_user()}_")


def _user():
    return os.getuid() if hasattr(os, "getuid") else 0  # not on Windows


# Runs: each process has a directory of its own, whose name nobody can guess.

_RUN = "run"
_KEPT = "kept"  # This file says that a local directory holds what was not uploaded.

_open: set[str] = set()  # the local directories of this process


class LocalFolder:
    """Makes a local directory, which is locked, below $TMPDIR; removes what killed processes have
    left for its URL."""

    def __init__(self, url: str):
        prefix = f"{_PREFIX}{_digest(url)}_"
        _remove_abandoned(prefix)
        self._lock = contextlib.ExitStack()
        self.path = _locked(prefix, self._lock)
        # The copy of the remote directory, which does not exist yet.
        self.run = os.path.join(self.path, _RUN)
        _open.add(self.path)
        atexit.register(self.remove)

    def keep(self, names: Collection[str] | None = None) -> str:
        """Has these files of the run (None for all) stay when the process ends; returns a sentence
        that says so, without a period."""
        for parent, _, files in os.walk(self.run) if names is not None else ():
            for file in files:
                path = os.path.join(parent, file)
                if os.path.relpath(path, self.run) not in names:
                    os.remove(path)
        with open(os.path.join(self.path, _KEPT), "w", encoding="utf-8"):
            pass
        return f"What was not uploaded is kept on this machine, below {self.path}"

    def remove(self) -> None:
        """Removes the directory, unless it is kept, and its lock."""
        self._lock.close()
        if not os.path.exists(os.path.join(self.path, _KEPT)):
            shutil.rmtree(self.path, ignore_errors=True)


def _locked(prefix, stack):
    """Makes a local directory, and locks it until the stack is closed; returns its path."""
    while True:
        folder = tempfile.mkdtemp(prefix=prefix)
        # Until it is locked, a process that starts meanwhile takes it for abandoned.
        with contextlib.suppress(lock.InUseError, FileNotFoundError):
            stack.enter_context(lock.held(folder))
            return folder


def _remove_abandoned(prefix):
    """Removes the local directories of processes that were killed."""
    folders = glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{prefix}*"))
    # A process can take a lock twice, so it would remove its own directories.
    for folder in set(folders) - _open:
        if os.path.exists(os.path.join(folder, _KEPT)):
            continue
        with contextlib.suppress(lock.InUseError, OSError), lock.held(folder):
            shutil.rmtree(folder, ignore_errors=True)
