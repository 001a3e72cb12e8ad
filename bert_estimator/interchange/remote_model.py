"""Models in remote storage: what opening one needs is copied to this machine first."""

import functools
import os
import re

from bert_estimator.command_line import run_directory
from bert_estimator.storage import remote

_NOT_READ = re.compile(r"(.*/)?(events\.out\.tfevents[^/]*|graph\.pbtxt|[^/]*\.meta)|.*/.*")
_BEST = re.compile(rf"{run_directory.BEST_DIRECTORY}/[^/]*(?<!\.meta)")
_DATA = re.compile(r".*\.data-\d+-of-\d+")
_STEP = re.compile(r"(.*model\.ckpt-)(\d+)\.index")


def fetched(url: str, choice: str | None) -> str:
    """Copies a model's files to a directory that lasts as long as the process.

    Of a run, only the checkpoint that `choice` asks for is copied. A model that has been copied
    before in this process is only copied again if a file of its directory has changed.

    Args:
      url, choice: `path` and `choice` of `open_source`.

    Returns:
      What to open instead: a local directory, archive, or checkpoint without .index.

    Raises:
      StorageError: there is no such model, or the file system cannot be used.
    """
    if remote.check(f"{url}.index"):
        folder, _, name = url.rpartition("/")
        module = folder.removesuffix("/variables")
        if module != folder and remote.check(f"{module}/saved_model.pb"):  # TF Hub's
            return os.path.join(fetched(module, choice), "variables", name)
        return os.path.join(_copy_of_prefix(folder, name, _state(folder)), name)
    if url.endswith(".zip"):
        return remote.local(url)
    return _copy_of_directory(url, choice, _state(url))


def _state(url):
    """Returns what a directory holds, as something that can be compared: names, sizes, times."""
    return frozenset(remote.files(url).items())


@functools.cache
def _copy_of_prefix(folder, name, _):
    return remote.local_directory(
        folder,
        lambda file: _is_read(file) and (not _is_of_checkpoint(file) or _is_of(name, file)),
    )


@functools.cache
def _copy_of_directory(url, choice, state):
    files = [name for name, _ in state]
    if "saved_model.pb" in files:  # TF Hub's
        return remote.local_directory(url)
    copy = remote.local_directory(url, lambda file: _is_read(file) and not _DATA.fullmatch(file))
    wanted = _prefix(copy, choice)
    for file in files:
        if _DATA.fullmatch(file) and _is_read(file) and (wanted is None or _is_of(wanted, file)):
            remote.download(f"{url.rstrip('/')}/{file}", os.path.join(copy, file))
    return copy


def _prefix(folder, choice):
    """Returns which checkpoint of a directory without data is wanted, relative to the directory.

    It is None if the directory is not a run's.
    """
    best = None
    if choice == "best":
        best = run_directory.path_of_best(folder)
    elif choice is None:
        best = run_directory.delivered_best(folder)
    if best is not None:
        return os.path.relpath(best, folder)
    steps = [match for match in map(_STEP.fullmatch, os.listdir(folder)) if match]
    newest = max(steps, key=lambda match: int(match[2]), default=None)
    return newest and newest[0].removesuffix(".index")


def _is_read(file):
    return _BEST.fullmatch(file) or not _NOT_READ.fullmatch(file)


def _is_of_checkpoint(file):
    return file.endswith(".index") or _DATA.fullmatch(file)


def _is_of(prefix, file):
    return file.startswith(f"{prefix}.")
