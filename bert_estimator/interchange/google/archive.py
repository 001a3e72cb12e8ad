"""Zip archives, in which google-research/bert's models are published, and their unpacking."""

import functools
import os
import shutil
import tarfile
import tempfile
import zipfile

from bert_estimator.command_line import evaluated_steps
from bert_estimator.storage import remote, staging
from bert_estimator.system import zip_files

# TensorFlow reads files, not members of archives: the files with these endings are unpacked.
_WANTED = (".json", ".txt", ".model", ".index", ".safetensors", ".pb")


def extracted(path: str) -> str:
    """Unpacks a model's archive into a directory that lasts as long as the process.

    An archive is unpacked once in a process, unless it changes. Messages and the settings of runs
    name the archive in place of the directory, as `storage.shown` does.

    Returns:
      The directory in which the model's files lie.

    Raises:
      ValueError: the file is not a zip archive, is damaged, holds several models, or would unpack
        to a place elsewhere or to more than `zip_files.check` allows.
    """
    stat = os.stat(path)
    return _extracted(path, stat.st_mtime_ns, stat.st_size)


@functools.cache
def _extracted(path, *_):
    if tarfile.is_tarfile(path):
        raise ValueError(
            f"{path}: is a tar archive; unpack it (tar -xf), and give the directory of the model"
        )
    if not zipfile.is_zipfile(path):
        raise ValueError(
            f"{path}: is not a zip archive. Give an archive, a directory, or a checkpoint's path "
            "without .index or .data"
        )
    with zip_files.opened(path) as archive:
        names = [n for n in archive.namelist() if n.endswith(_WANTED) or ".data-" in n]
        # macOS packs files of its own beside a model.
        names = [n for n in names if not n.startswith("__MACOSX/")]
        zip_files.check(archive, names, tempfile.gettempdir())
        folder = staging.temporary_folder()
        try:
            for name in names:
                archive.extract(name, folder)  # checks the member's checksum
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    # The directory is another one in the next process: a run's settings must not name it.
    remote.show(folder, remote.shown(path))
    models = {os.path.dirname(n) for n in names if n.endswith((".index", ".safetensors"))}
    modules = {os.path.dirname(n) for n in names if os.path.basename(n) == "saved_model.pb"}
    # Of TF Hub's modules, the weights lie in a directory within.
    models = modules | {m for m in models if os.path.dirname(m) not in modules}
    # A run's directory has its best checkpoint and its exported models within.
    models = sorted(models - {m for m in models for run in models if _is_part(m, run)})
    if len(models) > 1:
        raise ValueError(
            f"{path}: holds models in {', '.join(models)}; unpack it, and give the directory of "
            "one model"
        )
    return os.path.join(folder, models[0] if models else "")


def _is_part(folder, run):
    """Returns whether a directory is the best checkpoint or an exported model of a run."""
    is_best = folder == os.path.join(run, evaluated_steps.DIRECTORY)
    return is_best or folder.startswith(os.path.join(run, "export", ""))
