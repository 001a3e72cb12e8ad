"""Output in remote storage: written on this machine first, and uploaded when complete.

The manifest of records is the last file that is uploaded: without it, the files are not a set of
records that this project made. Nothing is uploaded of a command that fails or is killed. A killed
creation of records resumes on the same machine. No lock keeps a process of another machine from
writing the same files.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from bert_estimator import storage
from bert_estimator.tpu import lock
from input_pipelines import companions


@contextlib.contextmanager
def file_written_here(path: str) -> Iterator[str]:
    """Gives a remote file a local name, and uploads it at the end.

    Args:
      path: a URL; or a path of this machine, which is given back as it is.

    Yields:
      The path of a file of the same name on this machine.

    Raises:
      StorageError: the file system cannot be used.
    """
    if not storage.is_remote(path):
        yield path
        return
    directory, _, name = path.rpartition("/")
    storage.check(directory)
    with tempfile.TemporaryDirectory(prefix="bert_estimator_output_") as folder:
        storage.show(folder, directory)
        yield os.path.join(folder, name)
        storage.upload(os.path.join(folder, name), path)


@contextlib.contextmanager
def records_written_here(
    output_file: str, num_shards: int | None
) -> Iterator[tuple[str, list[str]]]:
    """Gives remote record files local names; what lies beside them at the end is uploaded.

    The local directory is the same for the same arguments, so that a killed command finds its
    unfinished work.

    Args:
      output_file: URLs of files in one directory, with commas between them.
      num_shards: the number of files, if `output_file` names a single one.

    Yields:
      (Paths of files of the same names in a directory of this machine, with commas between them;
      the names of the files that are in the remote directory.)

    Raises:
      ValueError: the files are not in one remote directory.
      StorageError: the file system cannot be used.
      lock.InUseError: another process of this machine writes them.
    """
    urls = output_file.split(",")
    (directory, *others) = dict.fromkeys(url.rpartition("/")[0] for url in urls)
    if others:
        raise ValueError(f"{output_file} lie in different directories; give one")
    storage.check(directory)
    there = [name for name in storage.files(directory) if "/" not in name]
    work = hashlib.sha256(f"{output_file} {num_shards}".encode()).hexdigest()[:12]
    folder = os.path.join(tempfile.gettempdir(), f"bert_estimator_records_{work}")
    storage.show(folder, directory)
    with lock.held(folder):
        try:
            yield ",".join(os.path.join(folder, url.rpartition("/")[2]) for url in urls), there
            _upload(folder, directory)
        except Exception:  # Not if Ctrl-C ended the command: it can be given again.
            shutil.rmtree(folder)
            raise
        shutil.rmtree(folder)


def _upload(folder, directory):
    names = sorted((name for name in os.listdir(folder) if name[0] != "."), key=_place)
    # An old manifest must not describe new files if this program ends between the two.
    for name in filter(companions.is_manifest, names):
        storage.remove(f"{directory}/{name}")
    for name in names:
        storage.upload(os.path.join(folder, name), f"{directory}/{name}")


def _place(name):
    """Returns the place of a file in the order of uploads; the held-out records come first."""
    return companions.is_manifest(name), companions.HELD_OUT_PREFIX not in name, name
