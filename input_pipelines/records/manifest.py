"""The manifest of a set of record files: what they hold, and how to tell that they are complete.

The manifest lies beside the files as `manifest.<name of the first file>.json`. Its name begins with
`manifest` so that a glob over the record files, such as `train*`, does not match it. Held-out
records lie beside the training records, in a file whose name begins with `heldout.`, which the
manifest of the training records names under `corpus["held_out"]`.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.command_line import choices
from bert_estimator.storage import remote
from bert_estimator.system import json_files, paths
from bert_estimator.tokenization import Casing
from input_pipelines.records import record_names

FORMAT_VERSION = 1
"""The version of records with masks; programs of this version and earlier ones read them."""
DYNAMIC_FORMAT_VERSION = 2
"""The version of records without masks, which `unmasked_records` describes."""
ONE_SEGMENT_FORMAT_VERSION = 3
"""The version of records without masks that have one segment, which earlier programs misread."""
_VERSIONS = (FORMAT_VERSION, DYNAMIC_FORMAT_VERSION, ONE_SEGMENT_FORMAT_VERSION)
LONG_WORD = 9  # tokens; it may be a phrase, or longer than can be masked
_MANY_LONG = 0.05  # share of the tokens
UNCUT = "If spaces do not cut the text into words, give --word_segmenter, or --masking_unit=token"
_OPTIONAL = {"vocab_file": str, "strip_accents": bool}  # fields that may be null, with their types


@dataclasses.dataclass(frozen=True)
class RecordFile:
    """Describes one record file by its name without directory, its size and its hash."""

    name: str
    num_records: int
    num_bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Describes the contents of a set of record files."""

    # The lengths of the features of every record.
    max_seq_length: int
    max_predictions_per_seq: int
    vocab_size: int
    vocab_sha256: str
    # What happened to the text, as in `tokenization.Casing`; with `strip_accents` below.
    do_lower_case: bool
    num_records: int  # in all files together
    files: tuple[RecordFile, ...]  # in order
    token_counts: str  # name of the file with the counts of each id, int64 [vocab_size]
    token_counts_sha256: str
    # Facts about the text: at least sha256, documents, sentences and tokens; since records can be
    # packed, also `record_lengths` (file, sha256, mean).
    corpus: dict[str, Any]
    creation: dict[str, Any]  # the settings of data creation
    # The copy of the vocabulary beside the files; None in the manifests of earlier versions.
    vocab_file: str | None = None
    strip_accents: bool | None = None
    format_version: int = FORMAT_VERSION

    @property
    def casing(self) -> Casing:
        """Returns what happened to the capitals and accents of the text."""
        return Casing(self.do_lower_case, self.strip_accents)

    @property
    def is_dynamic(self) -> bool:
        """Whether the records have no masks, which are drawn while training."""
        return self.format_version != FORMAT_VERSION

    @property
    def lengths_file(self) -> str | None:
        """Returns the name of the file with the length of each record, unsigned ints [num_records];
        None in the manifests of earlier versions."""
        entry = self.corpus.get("record_lengths")
        if entry is None:
            return None
        place = "corpus: record_lengths"
        json_files.check(entry, dict, place)
        json_files.field(entry, "sha256", str, place)
        return json_files.field(entry, "file", str, place)


def manifest_path(record_file: str) -> str:
    """Returns the path of the manifest of the set that begins with `record_file`."""
    return _sibling(record_file, record_names.MANIFEST_PREFIX, record_names.MANIFEST_SUFFIX)


def files_of(record_file: str, manifest: Manifest) -> list[str]:
    """Returns the paths of the manifest of the set that begins with a file, and of all it names."""
    directory = os.path.dirname(record_file)
    return [manifest_path(record_file), *(os.path.join(directory, n) for n in _names(manifest))]


def token_counts_path(record_file: str) -> str:
    """Returns the path of the token counts of the set that begins with `record_file`."""
    return _sibling(record_file, record_names.COUNTS_PREFIX, record_names.COUNTS_SUFFIX)


def lengths_path(record_file: str) -> str:
    """Returns the path of the records' lengths of the set that begins with `record_file`."""
    return _sibling(record_file, record_names.COUNTS_PREFIX, record_names.LENGTHS_SUFFIX)


def keep_vocabulary(vocab_file: str, directory: str) -> tuple[str, str]:
    """Copies a vocabulary beside record files; returns (name of the copy, its sha256)."""
    sha256 = sha256_of_file(vocab_file)
    # It is named by its hash, so that sets of records in one directory share it.
    name = record_names.vocabulary_name(sha256, vocab_file.endswith(".model"))
    path = os.path.join(directory, name)
    if not (tf.io.gfile.exists(path) and sha256_of_file(path) == sha256):
        tf.io.gfile.copy(vocab_file, path + ".tmp", overwrite=True)
        tf.io.gfile.rename(path + ".tmp", path, overwrite=True)
    return name, sha256


def write_manifest(manifest: Manifest, path: str) -> None:
    """Writes the manifest, either completely or not at all."""
    temporary = path + ".tmp"
    with tf.io.gfile.GFile(temporary, "w") as file:
        fields = dataclasses.asdict(manifest)
        if manifest.strip_accents is None:
            del fields["strip_accents"]  # which earlier versions of this program do not know
        file.write(json.dumps(fields, indent=2) + "\n")
    tf.io.gfile.rename(temporary, path, overwrite=True)


def read_manifest(path: str) -> Manifest:
    """Reads a manifest; raises ValueError if it is not of a known format version."""
    try:
        fields = remote.read_json(path)
        version = json_files.field(fields, "format_version", int, path)
        if version in _VERSIONS:
            fields["files"] = tuple(
                _checked(RecordFile, entry, f"{path}: files")
                for entry in json_files.field(fields, "files", list, path)
            )
            manifest = _checked(Manifest, fields, path)
            directory = os.path.dirname(path)
            # A name with `..` would make this program read, or replace, files elsewhere.
            for name in _names(manifest):
                paths.inside(directory, name)
            return manifest
    except ValueError as error:
        raise ValueError(
            f"{path}: is not a complete manifest ({error}). Create the data again."
        ) from None
    raise ValueError(
        f"{path}: the format version is {version}, but this program reads {_VERSIONS[0]} to "
        f"{_VERSIONS[-1]}. Create the data again with this version of the program."
    )


def _checked(kind, values, place):
    """Returns a dataclass of values from a manifest, whose types are checked."""
    json_files.check(values, dict, place)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise ValueError(f"{place}: the key {unknown[0]!r} is unknown")
    types = {"files": tuple, "corpus": dict, "creation": dict, **_OPTIONAL}
    checked = {}
    for name, field in fields.items():
        optional = {"default": None} if name in _OPTIONAL else {}
        of_type = types.get(name, field.type)
        if of_type is tuple:
            checked[name] = values[name]
        elif name in values or field.default is dataclasses.MISSING:
            checked[name] = json_files.field(values, name, of_type, place, **optional)
    return kind(**checked)


def _names(manifest):
    """Returns the names of files that a manifest holds."""
    names = [entry.name for entry in manifest.files]
    others = [manifest.vocab_file, manifest.lengths_file]
    return [*names, manifest.token_counts, *filter(None, others)]


def read_manifests_of(record_files: Sequence[str]) -> dict[str, tuple[str, Manifest]]:
    """Finds the manifests that list record files; returns file -> (path of manifest, manifest)."""
    places = {path: place(path) for path in record_files}
    listed = {}
    for directory in sorted(set(map(os.path.dirname, places.values()))):
        for name in sorted(tf.io.gfile.listdir(directory)):
            if not record_names.is_manifest(name):
                continue
            path = os.path.join(directory, name)
            manifest = read_manifest(path)
            for entry in manifest.files:
                listed[os.path.join(directory, entry.name)] = (path, manifest)
    return {path: listed[real_path] for path, real_path in places.items() if real_path in listed}


def place(path: str) -> str:
    """Returns where a file lies, however its path is spelled; a symbolic link may lead there."""
    if paths.is_remote(path):
        return path
    real = os.path.realpath(path)
    if os.path.basename(real) == os.path.basename(path):
        return real
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def digest(record_files: Sequence[str]) -> str:
    """Returns a hash that differs between sets of records."""
    listed = read_manifests_of(record_files)
    parts = []
    for path in record_files:
        # A file counts by its checksum if a manifest lists it, else by its name and size.
        name, size = os.path.basename(path), tf.io.gfile.stat(path).length
        checksum = ""
        if path in listed:
            entries = {entry.name: entry.sha256 for entry in listed[path][1].files}
            checksum = entries[name]
        parts.append(f"{name} {size} {checksum}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def vocabularies(record_files: Sequence[str]) -> set[str]:
    """Returns the checksums of the vocabularies in the manifests of the files."""
    return {manifest.vocab_sha256 for _, manifest in read_manifests_of(record_files).values()}


def find_vocabulary(record_files: Sequence[str]) -> str | None:
    """Returns the vocabulary's unchanged copy beside record files, or None without one."""
    for path, manifest in read_manifests_of(record_files).values():
        if manifest.vocab_file is None:
            continue
        vocab_file = os.path.join(os.path.dirname(path), manifest.vocab_file)
        if not tf.io.gfile.exists(vocab_file):
            raise ValueError(
                f"{vocab_file}: is missing, but {path} says that the records were made with it. "
                "Put it back, beside the records"
            )
        if sha256_of_file(vocab_file) != manifest.vocab_sha256:
            raise ValueError(
                f"{vocab_file}: has changed since the records were made with it, as {path} says. "
                "Put the original back, beside the records"
            )
        return vocab_file
    return None


def masking_unit(manifest: Manifest, manifest_file: str) -> tuple[str, str | None]:
    """Returns which tokens are masked together, one of `choices.MASKING_UNITS`, and the segmenter
    that says what a word is; None if the vocabulary tells it."""
    creation = manifest.creation
    if "masking_unit" not in creation:
        whole = json_files.field(creation, "do_whole_word_mask", bool, manifest_file)
        return choices.WORD if whole else choices.TOKEN, None
    unit = json_files.field(creation, "masking_unit", str, manifest_file)
    if unit not in choices.MASKING_UNITS:
        raise ValueError(f"{manifest_file}: masking_unit is {unit!r}. Create the data again.")
    return unit, json_files.field(creation, "word_segmenter", str, manifest_file, default=None)


def whole_words(manifest: Manifest, manifest_file: str = "the manifest") -> str | None:
    """Returns a line that says how long words are; None if tokens are masked alone, and for the
    records of earlier versions."""
    corpus = manifest.corpus
    if "whole_words" not in corpus:
        return None
    unit, segmenter = masking_unit(manifest, manifest_file)
    if unit == choices.TOKEN:
        return None
    share, long = (corpus.get(key, 0) / corpus["tokens"] for key in ("whole_words", "long_words"))
    with_segmenter = f" --word_segmenter={segmenter}" if segmenter else ""
    others = "" if segmenter else " So are Chinese characters, unless --word_segmenter joins them."
    if long > _MANY_LONG:
        others = (
            f" {100 * long:.3g} % are in words of {LONG_WORD} and more tokens, which are masked as "
            f"a whole or, if they are too long, not at all. {UNCUT}."
        )
    asked = f"--masking_unit={unit}{with_segmenter}"
    return f"{asked}: {100 * share:.3g} % of the tokens are words by themselves.{others}"


def casings(record_files: Sequence[str]) -> set[Casing]:
    """Returns how the text of record files was cased, by the manifests of the files."""
    return {manifest.casing for _, manifest in read_manifests_of(record_files).values()}


def objectives(record_files: Sequence[str]) -> set[str | None]:
    """Returns what records were made for, of `choices.OBJECTIVES`, by the manifests of the files;
    None for files without a manifest."""
    listed = read_manifests_of(record_files)
    made_for = {None} if len(listed) < len(record_files) else set()
    for path, manifest in listed.values():
        # Records of pairs do not name it, as before it could be chosen.
        swaps = not manifest.creation.get("random_next_sentence", True)
        pairs = choices.MLM_SOP if swaps else choices.MLM_NSP
        objective = json_files.field(manifest.creation, "objective", str, path, default=pairs)
        if objective not in choices.OBJECTIVES:
            known = ", ".join(choices.OBJECTIVES)
            raise ValueError(f"{path}: objective is {objective!r}; it must be one of {known}")
        made_for.add(objective)
    return made_for


def read_token_counts(path: str) -> np.ndarray:
    """Reads the counts of each id in the text, int64 [vocab_size]."""
    with tf.io.gfile.GFile(path, "rb") as file:
        return np.load(file, allow_pickle=False)


def unigram_nats(token_counts: np.ndarray) -> np.ndarray:
    """Returns the cross-entropy of each id, float32 [V], under the counts of ids in a text, [V]."""
    # A model that ignores the context can do no better; training has to get below it.
    # The probability of an id is (count + 1) / (sum of counts + V): one is added to each count, so
    # that a token which does not occur in the training text has a probability too (Laplace).
    counts = np.asarray(token_counts, np.float64) + 1.0
    return np.float32(np.log(counts.sum()) - np.log(counts))


def token_frequencies(
    record_sets: Sequence[tuple[Sequence[str], float | None]],
) -> np.ndarray | None:
    """Returns how often each id occurs in the text of record sets, (files, weight), float64
    [vocab_size]; None if the counts are not known."""
    counts_of_sets = []
    for files, _ in record_sets:
        listed = read_manifests_of(files)
        # Only manifests name counts; records of other programs do not have any.
        if len(listed) < len(files):
            return None
        counts = [_checked_counts(*entry) for entry in dict(listed.values()).items()]
        if any(of_set is None or of_set.shape != counts[0].shape for of_set in counts):
            return None
        counts_of_sets.append(np.sum(counts, axis=0, dtype=np.float64))
    if len({counts.shape for counts in counts_of_sets}) != 1:
        return None
    # A weight of None is for sets that are read one after the other: each has its own size. With
    # weights, the counts are as if each set had its share of the text.
    totals = [counts.sum() for counts in counts_of_sets]
    weights = [
        total if weight is None else weight
        for total, (_, weight) in zip(totals, record_sets, strict=True)
    ]
    scale = sum(totals) / sum(weights)
    return sum(
        counts * (weight * scale / max(total, 1.0))
        for counts, weight, total in zip(counts_of_sets, weights, totals, strict=True)
    )


def _checked_counts(path, manifest):
    """Returns the counts that a manifest names, or None with a warning if they are missing."""
    counts_path = os.path.join(os.path.dirname(path), manifest.token_counts)
    if not tf.io.gfile.exists(counts_path):
        tf.logging.warning(
            "%s is missing, although %s names it: the unigram baseline is not known.",
            counts_path,
            path,
        )
        return None
    if sha256_of_file(counts_path) != manifest.token_counts_sha256:
        raise ValueError(
            f"{counts_path}: has changed since the records were made, as {path} says. Put the "
            "original back, or remove the file to train without the unigram baseline"
        )
    return read_token_counts(counts_path)


def sha256_of_file(path: str) -> str:
    """Returns the hash of a file's content, hexadecimal."""
    digest = hashlib.sha256()
    with tf.io.gfile.GFile(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _sibling(record_file: str, prefix: str, suffix: str) -> str:
    directory, name = os.path.split(record_file)
    return os.path.join(directory, prefix + name + suffix)


def held_out_description(fraction: float, held_out: Manifest) -> dict[str, Any]:
    """Returns what the manifest of the training records says of the held-out records."""
    (entry,) = held_out.files
    return {"fraction": fraction, "file": entry.name, "sha256": entry.sha256}


def find_held_out(record_files: Sequence[str]) -> list[str]:
    """Returns the held-out records beside training records; [] if no manifest names any."""
    held_out_files = []
    for path, manifest in dict(read_manifests_of(record_files).values()).items():
        entry = manifest.corpus.get("held_out")
        if entry is None:
            continue
        place = f"{path}: corpus: held_out"
        json_files.check(entry, dict, place)
        name = json_files.field(entry, "file", str, place)
        file = paths.inside(os.path.dirname(path), name)
        # Held-out records that were made with other training records might hold text that is
        # trained on.
        of_file = read_manifests_of([file]).get(file)
        checksums = {e.name: e.sha256 for e in of_file[1].files} if of_file else {}
        if checksums.get(name) != json_files.field(entry, "sha256", str, place):
            state = "belongs to other training records" if of_file else "is missing"
            raise ValueError(
                f"{file}: {state}, but {path} names it as the held-out records. Put it back with "
                "its manifest, or create the data again."
            )
        held_out_files.append(file)
    return held_out_files


def held_out_disagreement(record_files: Sequence[str]) -> str | None:
    """Returns a warning if sets of training records do not hold out the same documents, or None."""
    listed = read_manifests_of(record_files)
    # The fraction decides which documents are held out. If one set holds out more than another, its
    # held-out text may be in the other, which is trained on, and the evaluation would look too
    # good.
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
    fractions = [
        f"{path} {f'was made with --eval_fraction={fraction}' if fraction else 'holds out nothing'}"
        for fraction, path in sorted(first_of.items())
    ]
    return (
        f"The training records do not hold out the same documents: {', '.join(fractions)}. If they "
        "share text, some of the held-out text is trained on, and the evaluation looks too good. "
        "Create all of them with the same --eval_fraction, or give --eval_input_file."
    )
