"""Opening a model: a checkpoint's path, a directory, an archive; here or in remote storage."""

import dataclasses
import functools
import glob
import os
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile

from bert_estimator.command_line import run_directory
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.interchange.hub import reader
from bert_estimator.interchange.hugging_face import sentence_files, torch_files, weight_files
from bert_estimator.interchange.onnx import runtime
from bert_estimator.interchange.source import Source
from bert_estimator.storage import remote, staging
from bert_estimator.system import disk_files, paths, zip_files

# Lies in the models that the scripts export.
_TASK_OF_EXPORT = ("assets.extra", "task.json")
# Lies beside the weights that PEFT trains, such as LoRA's. transformers adds them to the weights of
# the model that it names, or of the model beside it.
_ADAPTER = "adapter_config.json"

# TensorFlow reads files, not members of archives: the files with these endings are unpacked.
_WANTED = (".json", ".txt", ".model", ".index", ".safetensors", ".bin", ".pb")

# Of a model in remote storage.
_NOT_READ = re.compile(r"(.*/)?(events\.out\.tfevents[^/]*|graph\.pbtxt|[^/]*\.meta)|.*/.*")
_OF_SENTENCES = re.compile(r"\d+_\w+/config\.json")  # a step of sentence-transformers
_BEST = re.compile(rf"{run_directory.BEST_DIRECTORY}/[^/]*(?<!\.meta)")
_DATA = re.compile(r".*\.data-\d+-of-\d+")
_STEP = re.compile(r"(.*model\.ckpt-)(\d+)\.index")


def open_source(path: str, choice: str | None = None) -> Source:
    """Opens a model in google-research/bert's format, in Hugging Face's or in TF Hub's.

    Args:
      path: a TF1 checkpoint without .index (`uncased_L-12_H-768_A-12/bert_model.ckpt`); a directory
        with one checkpoint, such as the directory of a run, or with Hugging Face's config.json and
        model.safetensors or pytorch_model.bin, or with TF Hub's saved_model.pb; or a zip archive of
        such a directory. Each may be remote, such as gs://bucket/run.
      choice: which checkpoint of a run's directory, as for `tf1_checkpoint.find`.

    Raises:
      ValueError: there is no model, it cannot be read, or it has no checkpoints to choose from.
    """
    if paths.is_remote(path):
        path = copied_here(path, choice)
    if os.path.exists(path) and (why := disk_files.why_unreadable(path)):
        raise ValueError(f"{path}: {why}")
    for file in (path, *glob.glob(f"{glob.escape(path)}.*"), *glob.glob(f"{glob.escape(path)}/*")):
        if os.path.exists(file) and stat.S_ISFIFO(os.stat(file).st_mode):
            raise ValueError(f"{file}: is a pipe, not a file")  # TensorFlow would wait without end
    is_prefix = tf1_checkpoint.exists(path)
    is_model = weight_files.is_model(path) or reader.is_model(path)
    if choice is not None and (is_prefix or os.path.isfile(path) or is_model):
        raise ValueError(
            f"{path}: is not the directory of a run, so that there is no {choice} checkpoint to "
            "choose; leave --checkpoint out"
        )
    # The path variables/variables in a module of TF Hub is a checkpoint's, too.
    if is_prefix:
        module = reader.folder_of(path)
        if module is not None:
            return reader.open_directory(module, path)
        return tf1_checkpoint.open_prefix(path, path)
    folder = unpacked(path) if os.path.isfile(path) else path
    if not os.path.isdir(folder):
        raise ValueError(
            f"{path}: there is no such checkpoint. Give the path of a checkpoint without .index or "
            ".data, such as uncased_L-12_H-768_A-12/bert_model.ckpt, a directory, or a zip archive"
        )
    _check_no_adapter(folder, path)
    if (inner := sentence_files.folder_of_network(folder)) is not None:
        return dataclasses.replace(
            open_source(inner, choice), path=path, **sentence_files.read(folder)
        )
    # The order matters: an export of this project is a SavedModel, which `reader.is_model` takes
    # for a module of TF Hub, and a directory may hold Hugging Face's files beside an ONNX model.
    if weight_files.is_model(folder):
        return weight_files.open_directory(folder, path)
    if runtime.is_model(folder):
        raise ValueError(
            f"{path}: is an ONNX model, whose weights are not read here; bert-predict, bert-embed "
            "and bert-fill answer with it. Give the model that it was made from"
        )
    if os.path.isfile(os.path.join(folder, *_TASK_OF_EXPORT)):
        raise ValueError(
            f"{path}: is an exported model, which answers by bert_estimator.serving.predictor; "
            "give the directory of the run that it was exported from"
        )
    if reader.is_model(folder):
        return reader.open_directory(folder, path)
    prefix = tf1_checkpoint.find(folder, choice)
    if prefix is not None:
        return tf1_checkpoint.open_prefix(prefix, path)
    # Last, since torch may be missing, and the others do not need it.
    if torch_files.is_model(folder):
        return weight_files.open_directory(folder, path)
    raise ValueError(
        f"{path}: holds neither a TF1 checkpoint (*.index) nor Hugging Face's model.safetensors or "
        "pytorch_model.bin nor TF Hub's saved_model.pb"
    )


def _check_no_adapter(folder, path):
    if os.path.isfile(os.path.join(folder, _ADAPTER)):
        raise ValueError(
            f"{path}: holds an adapter ({_ADAPTER}), which changes another model's weights. Have "
            "PEFT merge it into that model (merge_and_unload), save the model that this returns "
            "in another directory, and give that directory. If the weights here are merged "
            f"already, delete {_ADAPTER}"
        )


def unpacked(path: str) -> str:
    """Unpacks a model's archive into a directory that lasts as long as the process, and returns the
    directory in it that has the model's files."""
    # An archive is unpacked once in a process, unless it changes.
    status = os.stat(path)
    return _unpacked_once(path, status.st_mtime_ns, status.st_size)


@functools.cache
def _unpacked_once(path, *_):
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
        # macOS packs files of its own beside a model. A name that ends in "/" is a directory's.
        names = [n for n in names if not n.startswith("__MACOSX/") and not n.endswith("/")]
        files = zip_files.check(archive, names, tempfile.gettempdir())
        folder = staging.temporary_folder()
        try:
            for name in names:
                with zip_files.reading(path):
                    archive.extract(name, folder)  # checks the member's checksum
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    # The directory is another one in the next process: a run's settings must not name it.
    remote.show(folder, remote.shown(path))
    models = {os.path.dirname(f) for f in files if f.endswith((".index", ".safetensors"))}
    models |= {os.path.dirname(f) for f in files if torch_files.is_file(f)}
    modules = {os.path.dirname(f) for f in files if os.path.basename(f) == "saved_model.pb"}
    # Of TF Hub's modules, the weights lie in a directory within.
    models = modules | {m for m in models if os.path.dirname(m) not in modules}
    # Early versions of sentence-transformers keep the network in a directory within, too.
    homes = {os.path.dirname(f) for f in files if os.path.basename(f) == sentence_files.MODULES}
    models = {p if (p := os.path.dirname(m)) in homes else m for m in models}
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
    is_best = folder == os.path.join(run, run_directory.BEST_DIRECTORY)
    return is_best or folder.startswith(os.path.join(run, "export", ""))


def copied_here(url: str, choice: str | None) -> str:
    """Copies the files of a remote model here for as long as the process lasts, and returns what to
    open instead: a directory, an archive, or a checkpoint without .index."""
    if remote.check(f"{url}.index"):
        folder, _, name = url.rpartition("/")
        module = folder.removesuffix("/variables")
        if module != folder and remote.check(f"{module}/saved_model.pb"):  # TF Hub's
            return os.path.join(copied_here(module, choice), "variables", name)
        return os.path.join(_copy_of_prefix(folder, name, _state(folder)), name)
    if url.endswith(".zip"):
        return remote.local(url)
    return _copy_of_directory(url, choice, _state(url))


def _state(url):
    """Returns the names, sizes and times of a directory's files, so that two states can be
    compared."""
    return frozenset(remote.files(url).items())


@functools.cache
def _copy_of_prefix(folder, name, _):
    # The cache has the state of the directory as a key: a model that was copied before in this
    # process is copied again only if a file of its directory has changed.
    return remote.local_directory(
        folder,
        lambda file: _is_read(file) and (not _is_of_checkpoint(file) or _is_of(name, file)),
    )


@functools.cache
def _copy_of_directory(url, choice, state):
    files = [name for name, _ in state]
    if "saved_model.pb" in files:  # TF Hub's
        return remote.local_directory(url)
    # Weights come last: of a run, only the checkpoint that `choice` asks for is copied, and the
    # other files say which checkpoint this is.
    copy = remote.local_directory(url, lambda file: _is_read(file) and not _DATA.fullmatch(file))
    prefix = checkpoint_wanted(copy, choice)
    # Early versions of sentence-transformers keep the network in a directory within.
    inner = sentence_files.folder_of_network(copy)
    within = inner and os.path.join(os.path.relpath(inner, copy), "")
    for file in files:
        is_data = _DATA.fullmatch(file) and _is_read(file)
        is_inner = inner and file.startswith(within) and _is_read(file.removeprefix(within))
        if is_inner or (is_data and (prefix is None or _is_of(prefix, file))):
            remote.download(f"{url.rstrip('/')}/{file}", os.path.join(copy, file))
    return copy


def checkpoint_wanted(folder: str, choice: str | None = None) -> str | None:
    """Returns which checkpoint of a run's directory, relative to it, `open_source` reads if all of
    them are whole; None if the directory is not a run's."""
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
    is_within = _BEST.fullmatch(file) or _OF_SENTENCES.fullmatch(file)
    return is_within or not _NOT_READ.fullmatch(file)


def _is_of_checkpoint(file):
    return file.endswith(".index") or _DATA.fullmatch(file)


def _is_of(prefix, file):
    return file.startswith(f"{prefix}.")
