"""Record files in remote storage: written on this machine first, and uploaded when complete.

The manifest is the last file that is uploaded: without it, the files are not a set of records that
this project made. Nothing is uploaded of a creation that fails or is killed, and the same command
starts anew. No lock keeps another process from writing the same files.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator

from bert_estimator import storage


@contextlib.contextmanager
def written_here(output_file: str) -> Iterator[tuple[str, list[str]]]:
    """Gives remote record files local names; what lies beside them at the end is uploaded.

    Args:
      output_file: URLs of files in one directory, with commas between them.

    Yields:
      (Paths of files of the same names in a directory of this machine, with commas between them;
      the names of the files that are in the remote directory.)

    Raises:
      ValueError: the files are not in one remote directory.
      StorageError: the file system cannot be used.
    """
    urls = output_file.split(",")
    (directory, *others) = dict.fromkeys(url.rpartition("/")[0] for url in urls)
    if others:
        raise ValueError(f"{output_file} lie in different directories; give one")
    storage.check(directory)
    there = [name for name in storage.files(directory) if "/" not in name]
    with tempfile.TemporaryDirectory(prefix="bert_estimator_records_") as folder:
        storage.show(folder, directory)
        yield ",".join(os.path.join(folder, url.rpartition("/")[2]) for url in urls), there
        names = sorted((name for name in os.listdir(folder) if name[0] != "."), key=_place)
        # An old manifest must not describe new files if this program ends between the two.
        for name in filter(_is_manifest, names):
            storage.remove(f"{directory}/{name}")
        for name in names:
            storage.upload(os.path.join(folder, name), f"{directory}/{name}")


def _is_manifest(name):
    return name.startswith("manifest.")


def _place(name):
    """Returns the place of a file in the order of uploads; the held-out records come first."""
    return _is_manifest(name), "heldout." not in name, name
