"""The local directory of a run in remote storage: locked while its process lives, and then removed.

If it holds what was not uploaded, it stays when the process ends.
"""

import atexit
import contextlib
import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection

from bert_estimator.system import lock

_RUN = "run"
_KEPT = "kept"  # This file says that a local directory holds what was not uploaded.

_open: set[str] = set()  # the local directories of this process


class LocalFolder:
    """Makes a local directory below $TMPDIR; removes what killed processes have left for its URL.

    Args:
      url: the remote directory.

    Attributes:
      path: the directory, which is locked.
      run: the directory in it that is the copy of the remote one; it does not exist yet.
    """

    def __init__(self, url: str):
        prefix = f"bert_estimator_{hashlib.sha256(url.encode()).hexdigest()[:12]}_"
        _remove_abandoned(prefix)
        self._lock = contextlib.ExitStack()
        self.path = _locked(prefix, self._lock)
        self.run = os.path.join(self.path, _RUN)
        _open.add(self.path)
        atexit.register(self.remove)

    def keep(self, names: Collection[str] | None = None) -> str:
        """Has it stay when the process ends; returns a sentence that says so, without a period.

        Args:
          names: the files of the run that are kept alone, relative to `run`; None for all files.
        """
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
    for folder in set(folders) - _open:
        if os.path.exists(os.path.join(folder, _KEPT)):
            continue
        with contextlib.suppress(lock.InUseError, OSError), lock.held(folder):
            shutil.rmtree(folder, ignore_errors=True)
