"""Held-out documents: which documents are not trained on, and where their records lie.

A document is held out by a hash of its text, so the choice is the same in every run, on every
machine and in every order of reading, and two equal documents are on the same side. If a document
is so long that it is cut, the hash of its first piece decides for all pieces.

The held-out records lie beside the training records, in a file whose name begins with `heldout.`.
The manifest of the training records names that file under `corpus["held_out"]`.
"""

import os
from collections.abc import Sequence
from typing import Any

from bert_estimator.system import json_files, paths
from input_pipelines.records import manifest as manifests
from input_pipelines.text import record_names


def held_out_path(record_file: str) -> str:
    """Returns the path of the held-out records of the set that begins with `record_file`."""
    directory, name = os.path.split(record_file)
    return os.path.join(directory, record_names.HELD_OUT_PREFIX + name)


def held_out_description(fraction: float, held_out: manifests.Manifest) -> dict[str, Any]:
    """Returns what the manifest of the training records says of the held-out records."""
    (entry,) = held_out.files
    return {"fraction": fraction, "file": entry.name, "sha256": entry.sha256}


def find_held_out(record_files: Sequence[str]) -> list[str]:
    """Returns the held-out records that lie beside training records; [] if no manifest names any.

    Raises:
      ValueError: a manifest names held-out records that are missing, or that were made with other
        training records: they might hold text that is trained on.
    """
    found = []
    for path, manifest in dict(manifests.read_manifests_of(record_files).values()).items():
        entry = manifest.corpus.get("held_out")
        if entry is None:
            continue
        place = f"{path}: corpus: held_out"
        json_files.check(entry, dict, place)
        name = json_files.field(entry, "file", str, place)
        file = paths.inside(os.path.dirname(path), name)
        of_file = manifests.read_manifests_of([file]).get(file)
        checksums = {e.name: e.sha256 for e in of_file[1].files} if of_file else {}
        if checksums.get(name) != json_files.field(entry, "sha256", str, place):
            state = "belongs to other training records" if of_file else "is missing"
            raise ValueError(
                f"{file}: {state}, but {path} names it as the held-out records. Put it back with "
                "its manifest, or create the data again."
            )
        found.append(file)
    return found


def held_out_disagreement(record_files: Sequence[str]) -> str | None:
    """Returns a warning if sets of training records do not hold out the same documents, or None.

    The fraction decides which documents are held out. If one set holds out more than another, its
    held-out text may be in the other, which is trained on, and the evaluation would look too good.
    """
    listed = manifests.read_manifests_of(record_files)
    first_of = {}  # fraction -> the first file of a set that holds out this much
    for path in record_files:
        corpus = listed[path][1].corpus if path in listed else {}
        fraction = 0.0
        if corpus.get("held_out") is not None:
            place = f"{listed[path][0]}: corpus: held_out"
            json_files.check(corpus["held_out"], dict, place)
            fraction = json_files.field(corpus["held_out"], "fraction", float, place)
        first_of.setdefault(fraction, path)
    if len(first_of) < 2:
        return None
    found = [
        f"{path} {f'was made with --eval_fraction={fraction}' if fraction else 'holds out nothing'}"
        for fraction, path in sorted(first_of.items())
    ]
    return (
        f"The training records do not hold out the same documents: {', '.join(found)}. If they "
        "share text, some of the held-out text is trained on, and the evaluation looks too good. "
        "Create all of them with the same --eval_fraction, or give --eval_input_file."
    )
