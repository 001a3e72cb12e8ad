"""Random access to the records of TFRecord files, whose checksums are verified.

A TFRecord file is a sequence of records: length (8 bytes, little-endian), checksum of the length
(4 bytes), data, checksum of the data (4 bytes). Records that are not what they should be end a run,
or are left out and counted (`BadRecords`).
"""

import glob
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.system import paths
from input_pipelines.records import manifest as manifests
from input_pipelines.records import record_names
from input_pipelines.records.encoding import masked_crc32c

_HEADER_BYTES = 12
_FOOTER_BYTES = 4


class RecordError(ValueError):
    """Says that a record or a record file is not what it should be, and names it."""

    def __init__(self, message: str, number: int | None = None):
        super().__init__(message)
        # As `RecordFiles` counts; None if a whole file is meant.
        self.number = number


def find_record_files(patterns: str | Iterable[str]) -> list[str]:
    """Expands comma-separated patterns, or a list of them, to record files, sorted within each
    pattern; a weight at its end, `:0.7`, does not count."""
    return [path for files, _ in find_record_sets(patterns) for path in files]


def find_record_sets(patterns: str | Iterable[str]) -> list[tuple[list[str], float | None]]:
    """Expands patterns as `find_record_files`; returns (files, weight or None) of each pattern."""
    if isinstance(patterns, str):
        patterns = patterns.split(",")
    sets: list[tuple[list[str], float | None]] = []
    seen: set[str] = set()
    for entry in patterns:
        pattern, weight = paths.split_weight(entry)
        matches = _matches(pattern) if pattern else []
        if not matches:
            if os.path.isdir(pattern):
                raise ValueError(
                    f"the directory {pattern!r} does not hold any file of training records. Make "
                    "records of your text with create_pretraining_data, and give their directory."
                )
            raise ValueError(
                f"no file matches {pattern!r}. Give a comma-separated list of record files or "
                "globs; create_pretraining_data makes such files."
            )
        if sets and (weight is None) != (sets[0][1] is None):
            raise ValueError(
                f"{entry!r}: some patterns have a weight and others do not. Give each a weight, as "
                "in a*.tfrecord:0.7,b*.tfrecord:0.3, or none."
            )
        # A set of another number of files, left of before, may hold the same text again.
        record_names.check_one_set(matches)
        _check_finished(matches)
        places = {
            path: path if paths.is_remote(path) else os.path.realpath(path) for path in matches
        }
        if weight is not None and not seen.isdisjoint(places.values()):
            raise ValueError(
                f"{entry!r} matches files that a pattern before it matches too. In a mixture, each "
                "file belongs to one pattern."
            )
        # A file counts where it is first, however it is spelled.
        files = []
        for path, place in places.items():
            if place not in seen:
                seen.add(place)
                files.append(path)
        if files:
            sets.append((files, weight))
    return sets


def find_listed(patterns: str | Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns the files that are to be complete sets: (files of directories, files of globs)."""
    if isinstance(patterns, str):
        patterns = patterns.split(",")
    of_directories, of_globs = [], []
    for pattern in (paths.split_weight(entry)[0] for entry in patterns):
        matches = _matches(pattern)
        if tf.io.gfile.isdir(pattern):
            of_directories += matches
        # A file that is given by its name need not be a complete set.
        elif matches != [pattern]:
            of_globs += matches
    return of_directories, of_globs


def _matches(pattern):
    is_remote = paths.is_remote(pattern)
    if tf.io.gfile.isdir(pattern) if is_remote else os.path.isdir(pattern):
        pattern = os.path.join(glob.escape(pattern), f"*{record_names.RECORDS}*")
    matches = sorted(tf.io.gfile.glob(pattern)) if is_remote else paths.matches(pattern)
    # What data creation writes beside the records is left out. Held-out records are read only if
    # the pattern's name asks for them, or they would be trained on.
    if os.path.basename(pattern).startswith(record_names.HELD_OUT_PREFIX):
        return matches
    return [path for path in matches if not record_names.is_companion(path)]


def _check_finished(record_files):
    """Raises ValueError if the creation of a file's set has not ended: others may be missing."""
    for directory in sorted({os.path.dirname(path) for path in record_files}):
        unfinished = {} if paths.is_remote(directory) else record_names.unfinished_files(directory)
        files = [path for path in record_files if path in unfinished]
        complete = manifests.read_manifests_of(files) if files else {}
        for path in files:
            if path not in complete:
                raise ValueError(
                    f"{path}: belongs to records whose creation has not ended. Give the command "
                    f"again, which resumes, or remove {unfinished[path]} and the records."
                )


class RecordFiles:
    """Reads the records of several files, numbered from 0 across all files in their order."""

    def __init__(self, files: Sequence[str]):
        """Indexes the files; raises RecordError if one is cut short or damaged."""
        self.files = list(files)
        offsets = [record_offsets(path) for path in self.files]
        lengths = [len(in_file) - 1 for in_file in offsets]
        self._starts = np.array([0, *itertools.accumulate(lengths)])
        self._begins = np.concatenate([in_file[:-1] for in_file in offsets])
        self._ends = np.concatenate([in_file[1:] for in_file in offsets])
        self.num_records = int(self._starts[-1])
        self._lock = threading.Lock()
        self._open_files = [_open(path) for path in self.files]
        # Files stay open: small reads of a training would otherwise open one for each record.
        for file in self._open_files:
            weakref.finalize(self, file.close)

    def first_record_of(self, path: str) -> int:
        """Returns the number of the first record of one of the files."""
        return int(self._starts[self.files.index(path)])

    def num_records_of(self, path: str) -> int:
        """Returns the number of records in one of the files."""
        number = self.files.index(path)
        return int(self._starts[number + 1] - self._starts[number])

    def read(self, number: int) -> bytes:
        """Reads one record; see `read_all`."""
        return self.read_all(np.array([number]))[0]

    def read_all(self, numbers: np.ndarray) -> list[bytes]:
        """Reads records; raises RecordError with the number of the first that is damaged."""
        begins = self._begins[numbers] + _HEADER_BYTES
        sizes = self._ends[numbers] - begins
        files = self._file_numbers(numbers)
        places = zip(files.tolist(), begins.tolist(), sizes.tolist(), strict=True)
        stored = [self._read_at(*place) for place in places]
        # A file that was cut short while it is read gives fewer bytes.
        damaged = np.array([len(data) for data in stored]) != sizes
        records = [data[:-_FOOTER_BYTES] for data in stored]
        # A footer that is cut short is filled up, so that the checksums stay an array.
        footers = b"".join([data[-_FOOTER_BYTES:].rjust(_FOOTER_BYTES) for data in stored])
        damaged |= masked_crc32c(records) != np.frombuffer(footers, "<u4")
        if damaged.any():
            number = int(numbers[np.argmax(damaged)])
            raise RecordError(
                f"{self.location(number)} is damaged: its checksum does not match its data. Create "
                "the file again.",
                number,
            )
        return records

    def _read_at(self, file_number: int, begin: int, size: int) -> bytes:
        file = self._open_files[file_number]
        # A remote file has one place to read at, which threads share; `pread` takes a place.
        if isinstance(file, tf.io.gfile.GFile):
            with self._lock:
                file.seek(begin)
                return file.read(size)
        return os.pread(file.fileno(), size, begin)

    def location(self, number: int) -> str:
        """Describes where a record lies: its file, its number in the file and its byte offset."""
        return self.locations(np.array([number]))[0]

    def locations(self, numbers: np.ndarray) -> list[str]:
        """Describes where records lie, as `location`."""
        files = self._file_numbers(numbers)
        in_files = numbers - self._starts[files]
        places = (files.tolist(), in_files.tolist(), self._begins[numbers].tolist())
        return [
            f"{self.files[file]}: record {in_file} (byte {begin})"
            for file, in_file, begin in zip(*places, strict=True)
        ]

    def _file_numbers(self, numbers: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._starts, numbers, side="right") - 1


def record_offsets(path: str) -> np.ndarray:
    """Returns the byte offsets of a file's n records and of its end, int64 [n + 1]."""
    file_bytes = tf.io.gfile.stat(path).length
    offsets = [0]
    headers = []
    # Lengths are read, and data is skipped. A damaged length leads anywhere, so all checksums of
    # lengths are verified before the end of the file is compared.
    with _open(path) as file:
        while offsets[-1] + _HEADER_BYTES <= file_bytes:
            file.seek(offsets[-1])
            headers.append(file.read(_HEADER_BYTES))
            length = int.from_bytes(headers[-1][:8], "little")
            offsets.append(offsets[-1] + _HEADER_BYTES + length + _FOOTER_BYTES)
    checksums = np.frombuffer(b"".join([header[8:] for header in headers]), "<u4")
    damaged = np.flatnonzero(masked_crc32c(header[:8] for header in headers) != checksums)
    if damaged.size and headers[0].startswith(b"\x1f\x8b"):
        raise RecordError(
            f"{path}: is compressed (GZIP), but records are read in any order. Unpack it: "
            f"gunzip --stdout {path} > unpacked.tfrecord"
        )
    if damaged.size:
        raise RecordError(
            f"{path}: record {damaged[0]} (byte {offsets[damaged[0]]}): the record's length is "
            "damaged, or this is not a TFRecord file. Create the file again."
        )
    if offsets[-1] != file_bytes:
        last = len(offsets) - 1 if offsets[-1] < file_bytes else len(offsets) - 2
        raise RecordError(
            f"{path}: record {last} (byte {offsets[last]}) goes on beyond the end of the file "
            f"({file_bytes} bytes): the file is truncated. Create the file again."
        )
    return np.asarray(offsets, np.int64)


def _open(path: str):
    # Python's own files are several times faster at many small reads, but are local files only.
    return tf.io.gfile.GFile(path, "rb") if paths.is_remote(path) else open(path, "rb")


_log = logging.getLogger("tensorflow")


class BadRecords:
    """Counts and names the bad records that are left out, at most `most` different ones."""

    def __init__(self, most: int = 0):
        if most < 0:
            raise ValueError(f"most is {most}; it must be 0 or more.")
        self._most = most
        self._numbers: set[int] = set()

    def numbers(self) -> np.ndarray:
        """Returns the numbers of the records that are left out, int64."""
        return np.array(sorted(self._numbers), np.int64)

    def skip(self, error: RecordError) -> bool:
        """Counts and logs a bad record by its error's number; returns whether it is left out."""
        if len(self._numbers) >= self._most:
            if self._most:
                _log.warning("There are more than %d bad records.", self._most)
            return False
        self._numbers.add(error.number)
        _log.warning("Bad record %d of at most %d: %s", len(self._numbers), self._most, error)
        return True
