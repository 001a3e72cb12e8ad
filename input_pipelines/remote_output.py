"""Output in remote storage: made on this machine first, and uploaded when complete.

The files lie in a directory below $TMPDIR, whose name depends on the user and the output, until all
of them are uploaded:

  files/      what the command makes, unfinished work included
  output      the output's URL, for whoever finds the directory
  made.json   once the files are complete: what they were made of, their names, sizes and times

The same command resumes on the same machine after a kill or an error. If the files are complete, it
only uploads them. Of an earlier command with other flags nothing is uploaded. The manifest of
records is the last file that is uploaded: without it, the files are not a set of records that this
project made. No lock keeps a process of another machine from writing the same files.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

from bert_estimator import __version__
from bert_estimator.command_line import flags
from bert_estimator.command_line.flags import named
from bert_estimator.storage import reading, remote, staging
from bert_estimator.system import disk_files, json_files, paths
from input_pipelines.records import record_names
from input_pipelines.text import documents

_FILES, _OUTPUT, _MADE = "files", "output", "made.json"
_WITHOUT_EFFECT = ("num_workers",)  # on the files


def create(
    config: Any,
    flag: str,
    make: Callable[[str, list[str] | None], tuple[str, list[str]]],
    others: Any = None,
) -> str:
    """Makes files, and uploads them if they are to be in remote storage; returns a summary.

    Args:
      config: the command's flags, `input_file` among them.
      flag: the name of the flag that names the output: files, with commas between them.
      make: function of the output, as paths of this machine, and of the names of the files that the
        remote directory holds (None if the output is not remote). It makes the files, and returns
        a summary in words and their paths.
      others: what the files depend on besides flags and text, such as hashes of small files.
    """
    values = flags.values_of(config)
    output = values[flag]
    if not paths.is_remote(output):
        return make(output, None)[0]
    with contextlib.ExitStack() as stack:
        # A bucket that cannot be reached is found before hours of work, not after.
        with named(flag):
            directory, names = _split(output)
            remote.check(directory)
            there = remote.names(directory)
            folder = stack.enter_context(_staged(output, directory))
        files = os.path.join(folder, _FILES)
        identity = _identity(values, others)
        made = _made(folder, identity)
        if made is None:
            summary, made_files = make(",".join(os.path.join(files, name) for name in names), there)
            made = {
                "identity": identity,
                "summary": summary,
                "files": {os.path.basename(path): _version(path) for path in made_files},
            }
            # It is written when all files are: with it, the same command only uploads.
            with disk_files.writer(os.path.join(folder, _MADE)) as writer:
                json.dump(made, writer)
        else:
            _say(f"The files in {folder} are complete: they are uploaded as they are.")
        try:
            _upload(files, directory, made["files"])
        except remote.StorageError as error:
            raise remote.StorageError(
                f"{error}. The files are complete, and kept on this machine in {folder}: the same "
                "command uploads them without making them again"
            ) from None
        return made["summary"]


def _split(output):
    """Returns the directory of URLs of files, and the names of the files."""
    urls = output.split(",")
    for url in urls:
        if paths.is_remote(url) and not paths.is_remote(url.rpartition("/")[0]):
            raise ValueError(f"{url}: is not a file's name; give {url}/name")
    (directory, *others) = dict.fromkeys(url.rpartition("/")[0] for url in urls)
    if others:
        raise ValueError(f"{output} lie in different directories; give one")
    return directory, [url.rpartition("/")[2] for url in urls]


@contextlib.contextmanager
def _staged(output: str, directory: str) -> Iterator[str]:
    """Locks the local directory of an output, and removes it unless it holds something of use."""
    with staging.output_folder(output) as folder:
        files = os.path.join(folder, _FILES)
        os.makedirs(files, exist_ok=True)
        with disk_files.writer(os.path.join(folder, _OUTPUT)) as writer:
            writer.write(output)
        remote.show(files, directory)
        _name_others(folder)
        try:
            yield folder
        except BaseException as error:
            # Half-written files alone are of no use to the command that resumes.
            if all(name.endswith(disk_files.ENDING) for name in os.listdir(files)):
                shutil.rmtree(folder)
            elif not isinstance(error, remote.StorageError):
                _say(f"Unfinished work for {output} is kept on this machine, in {folder}.")
            raise
        shutil.rmtree(folder)


def _name_others(own):
    """Says what commands have left that were killed, and not given again."""
    for folder in staging.other_output_folders(own):
        output = os.path.join(folder, _OUTPUT)
        if os.path.exists(output):
            with open(output, encoding="utf-8") as reader:
                url = reader.read()
            _say(
                f"{folder} ({_size(folder) / 1e6:.1f} MB) is left of a command for {url}. It is "
                "removed when this command is given again and ends; or remove it."
            )


def _size(folder):
    files = (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sum(os.path.getsize(file) for file in files)


def _identity(values: dict[str, Any], others: Any) -> str:
    """Returns a hash of all that the files of a command depend on."""
    given = {name: value for name, value in values.items() if name not in _WITHOUT_EFFECT}
    with named("input_file"):
        texts = documents.find_files(values["input_file"].split(","))
        versions = [
            [path, reading.version(path)]
            if paths.is_remote(path)
            else [os.path.abspath(path), _version(path)]
            for path in texts
        ]
    # The text counts by sizes and times, since a hash would read all of it.
    described = [__version__, sorted(given.items()), versions, others]
    return hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()


def hash_of(path: str | None) -> str | None:
    """Returns a hash of a file; None if it cannot be read, which `make` reports, or for None."""
    if path is None:
        return None
    try:
        with disk_files.reading(remote.local(path)) as reader:
            return hashlib.sha256(reader.read()).hexdigest()
    except (OSError, remote.StorageError):
        return None


def _made(folder, identity) -> dict[str, Any] | None:
    """Returns what made.json says, if a command of this identity made all files as they are."""
    path = os.path.join(folder, _MADE)
    if not os.path.exists(path):
        return None
    made = json_files.read(path)
    if made["identity"] != identity:
        return None
    for name, version in made["files"].items():
        file = os.path.join(folder, _FILES, name)
        if not os.path.exists(file) or _version(file) != version:
            return None
    return made


def _version(path):
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]


def _upload(files, directory, names):
    names = sorted(names, key=_place)
    # An old manifest must not describe new files if this program ends between the two.
    for name in filter(record_names.is_manifest, names):
        remote.remove(f"{directory}/{name}")
    for name in names:
        remote.upload(os.path.join(files, name), f"{directory}/{name}")


def _place(name):
    """Returns the place of a file in the order of uploads; the held-out records come first."""
    return record_names.is_manifest(name), record_names.HELD_OUT_PREFIX not in name, name


def _say(text):
    print(text, file=sys.stderr, flush=True)
