"""Names of record files and of what lies beside them, and which files belong together.

The files of a set of 8 are `train-00000-of-00008.tfrecord` and so on, and the only file of a set
without numbers is `train.tfrecord`. Files with one name but other numbers of files are other sets.
While a set is made, the directory of its unfinished work lists its files. This module does not
import TensorFlow.
"""

import json
import os
import re
from collections.abc import Sequence

from bert_estimator.system import disk_files, json_files

HELD_OUT_PREFIX = "heldout."
"""The names of held-out records that lie beside training records begin so."""
MANIFEST_PREFIX, MANIFEST_SUFFIX = "manifest.", ".json"
COUNTS_PREFIX, COUNTS_SUFFIX = "token_counts.", ".npy"
LENGTHS_SUFFIX = ".lengths.npy"
"""Counts of tokens, too, but of each record; earlier versions take them for counts."""
RECORDS = ".tfrecord"
"""The names of record files in a directory have this in them."""

_UNFINISHED_PREFIX = "temporary."
_VOCABULARY = re.compile(r"vocab\.[0-9a-f]{64}\.(txt|model)")


def vocabulary_name(sha256: str, is_model: bool) -> str:
    """Returns the name of the copy of a vocabulary, or of a SentencePiece model."""
    return f"vocab.{sha256}.{'model' if is_model else 'txt'}"


def held_out_path(record_file: str) -> str:
    """Returns the path of the held-out records of the set that begins with `record_file`."""
    directory, name = os.path.split(record_file)
    return os.path.join(directory, HELD_OUT_PREFIX + name)


def is_manifest(path: str) -> bool:
    """Returns whether a path has the name of a manifest."""
    name = os.path.basename(path)
    return name.startswith(MANIFEST_PREFIX) and name.endswith(MANIFEST_SUFFIX)


def is_companion(path: str) -> bool:
    """Returns whether a file lies beside training records without being one of them: a manifest,
    counts, a vocabulary, held-out records, or a file that is not complete."""
    # A user's pattern, such as `data/*`, may match them. They must not be trained on.
    return _is_about_records(path) or os.path.basename(path).startswith(HELD_OUT_PREFIX)


def is_text(path: str) -> bool:
    """Returns whether a file may be a user's text: not records, nor what lies beside them."""
    # What a killed command has left of its output is not text either. The names of held-out records
    # do not count, since a text may be called `heldout.txt`, too.
    name = os.path.basename(path)
    return not (RECORDS in name or name.endswith(disk_files.ENDING) or _is_about_records(path))


def _is_about_records(path):
    name = os.path.basename(path)
    is_counts = name.startswith(COUNTS_PREFIX) and name.endswith(COUNTS_SUFFIX)
    is_unfinished = name.startswith(_UNFINISHED_PREFIX) and name.endswith(".part")
    is_vocabulary = _VOCABULARY.fullmatch(name) is not None
    return is_manifest(path) or is_counts or is_unfinished or is_vocabulary


_NUMBERED = re.compile(r"(.+)-[0-9]{5}-of-([0-9]{5})", re.DOTALL)
_WORK, _LIST = ".work", "output_files"


def shard_names(path: str, number: int) -> list[str]:
    """Returns the paths of the files of a set of this many files."""
    name, ending = os.path.splitext(path)
    return [f"{name}-{index:05d}-of-{number:05d}{ending}" for index in range(number)]


def set_of(path: str) -> tuple[str, int]:
    """Returns a file's path without its numbers, and how many files its set has; 0 without
    numbers."""
    name, ending = os.path.splitext(path)
    # `train.tfrecord` and `train-00000-of-00001.tfrecord` are two sets, which are never mixed.
    numbered = _NUMBERED.fullmatch(name)
    return (numbered[1] + ending, int(numbered[2])) if numbered else (path, 0)


def check_one_set(paths: Sequence[str]) -> None:
    """Raises ValueError if files with one name belong to sets of different numbers of files."""
    first: dict[str, tuple[int, str]] = {}
    for path in paths:
        name, number = set_of(path)
        other_number, other = first.setdefault(name, (number, path))
        if other_number != number:
            raise ValueError(
                f"{other} and {path} belong to sets of different numbers of files, which may hold "
                "the same text. Remove the files of one set, or give a pattern that matches the "
                "other set alone."
            )


def other_sets(output_files: Sequence[str], entries: Sequence[str] | None = None) -> list[str]:
    """Returns record files, and directories of unfinished work, that have the name of the given
    files but another number of files; `entries` are the names in their directory, if known."""
    directory = os.path.dirname(output_files[0])
    entries = os.listdir(directory or ".") if entries is None else entries
    of_output = dict(map(set_of, output_files))
    others = []
    for entry in sorted(entries):
        is_work = entry.startswith(".") and entry.endswith(_WORK)
        first = entry[1 : -len(_WORK)] if is_work else entry
        name, number = set_of(os.path.join(directory, first))
        if name in of_output and number != of_output[name]:
            others.append(os.path.join(directory, entry))
    return others


def work_directory(first_file: str) -> str:
    """Returns the directory of the unfinished work of the set that begins with this file."""
    directory, name = os.path.split(first_file)
    return os.path.join(directory, f".{name}{_WORK}")


def list_files(work: str, output_files: Sequence[str]) -> None:
    """Writes into the directory of unfinished work which files will be made."""
    with disk_files.writer(os.path.join(work, _LIST)) as file:
        json.dump({"files": [os.path.basename(path) for path in output_files]}, file)


def unfinished_files(directory: str) -> dict[str, str]:
    """Returns the files in a directory that are still to be made -> the work's directory."""
    # A set that is complete may be among them, if it was there before, or if its creation was
    # killed at its very end.
    files = {}
    for name in sorted(os.listdir(directory or ".")):
        work = os.path.join(directory, name)
        path = os.path.join(work, _LIST)
        if name.startswith(".") and name.endswith(_WORK) and os.path.isfile(path):
            listed = json_files.field(json_files.read(path), "files", list, path)
            files.update({os.path.join(directory, str(file)): work for file in listed})
    return files
