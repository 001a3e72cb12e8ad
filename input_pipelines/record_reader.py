"""Random access to the records of TFRecord files, whose checksums are verified.

A TFRecord file is a sequence of records: length (8 bytes, little-endian), checksum of the length
(4 bytes), data, checksum of the data (4 bytes).
"""

import bisect
import itertools
import threading
import weakref
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator import paths
from input_pipelines import manifest as manifests
from input_pipelines.crc32c import masked_crc32c

_HEADER_BYTES = 12
_FOOTER_BYTES = 4
# Verifying a byte takes 12 bytes of memory; so few records at a time stay in the cache.
_VERIFIED_AT_ONCE = 64


class RecordError(ValueError):
    """A record or a record file that is not what it should be; the message names it."""


def find_record_files(patterns: str | Iterable[str]) -> list[str]:
    """Expands a comma-separated list of file patterns, or a list of them, to record files.

    The files are sorted within each pattern; files that `create_pretraining_data` writes beside
    the records are left out.

    Raises:
      ValueError: a pattern does not match any file.
    """
    if isinstance(patterns, str):
        patterns = patterns.split(",")
    files: list[str] = []
    for pattern in patterns:
        matches = [p for p in _matches(pattern) if not manifests.is_companion(p)]
        if not pattern or not matches:
            raise ValueError(
                f"no file matches {pattern!r}. Give a comma-separated list of record files or "
                "globs; create_pretraining_data makes such files."
            )
        files.extend(path for path in matches if path not in files)
    return files


def _matches(pattern):
    if "://" in pattern:
        return sorted(tf.io.gfile.glob(pattern))
    return paths.matches(pattern)


class RecordFiles:
    """Reads the records of several files, numbered from 0 across all files in their order.

    Attributes:
      files: the files.
      num_records: number of records in all files.
    """

    def __init__(self, files: Sequence[str]):
        """Indexes the files.

        Raises:
          RecordError: a file is cut short or damaged; the message names file and offset.
        """
        self.files = list(files)
        self._offsets = [record_offsets(path) for path in self.files]
        lengths = [len(offsets) - 1 for offsets in self._offsets]
        self._starts = [0, *itertools.accumulate(lengths)]
        self.num_records = self._starts[-1]
        self._lock = threading.Lock()
        self._open_files = [_open(path) for path in self.files]
        for file in self._open_files:
            weakref.finalize(self, file.close)

    def num_records_of(self, path: str) -> int:
        """Returns the number of records in one of the files."""
        return len(self._offsets[self.files.index(path)]) - 1

    def read(self, number: int) -> bytes:
        """Reads one record; see `read_all`."""
        return self.read_all(np.array([number]))[0]

    def read_all(self, numbers: np.ndarray) -> list[bytes]:
        """Reads records and verifies their checksums.

        Args:
          numbers: integer array [number of records].

        Raises:
          RecordError: a record is damaged; the message names file, record and offset.
        """
        with self._lock:
            stored = [self._read_stored(*self._locate(number)) for number in numbers.tolist()]
        is_intact = _checksums_match(stored)
        if not is_intact.all():
            number = int(numbers[np.argmin(is_intact)])
            raise RecordError(
                f"{self.location(number)} is damaged: its checksum does not match its data. Create "
                "the file again."
            )
        return [data[:-_FOOTER_BYTES] for data in stored]

    def _read_stored(self, file_number: int, in_file: int) -> bytes:
        """Reads the data of a record and its checksum."""
        start, end = self._offsets[file_number][in_file : in_file + 2].tolist()
        file = self._open_files[file_number]
        file.seek(start + _HEADER_BYTES)
        return file.read(end - start - _HEADER_BYTES)

    def location(self, number: int) -> str:
        """Describes where a record lies: its file, its number in the file and its byte offset."""
        file_number, in_file = self._locate(number)
        offset = self._offsets[file_number][in_file]
        return f"{self.files[file_number]}: record {in_file} (byte {offset})"

    def _locate(self, number: int) -> tuple[int, int]:
        """Returns (number of the file, number of the record in the file)."""
        file_number = bisect.bisect_right(self._starts, number) - 1
        return file_number, number - self._starts[file_number]


def record_offsets(path: str) -> np.ndarray:
    """Finds the byte offsets of a file's records and of its end, int64 [number of records + 1].

    The records' lengths are read and their checksums verified; their data is skipped.

    Raises:
      RecordError: the last record is cut short, or a length is damaged.
    """
    file_bytes = tf.io.gfile.stat(path).length
    offsets = [0]
    headers = []
    with _open(path) as file:
        while offsets[-1] + _HEADER_BYTES <= file_bytes:
            file.seek(offsets[-1])
            headers.append(file.read(_HEADER_BYTES))
            length = int.from_bytes(headers[-1][:8], "little")
            offsets.append(offsets[-1] + _HEADER_BYTES + length + _FOOTER_BYTES)
    table = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, _HEADER_BYTES)
    checksums = np.ascontiguousarray(table[:, 8:]).view("<u4")[:, 0]
    damaged = np.flatnonzero(masked_crc32c(table[:, :8]) != checksums)
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


def _checksums_match(stored: Sequence[bytes]) -> np.ndarray:
    """Returns whether each record's data matches the checksum after it, bool [number of records].

    Records of the same length are verified together, since numpy's calls cost more than their work.
    """
    lengths = np.array([len(data) for data in stored])
    is_intact = lengths >= _FOOTER_BYTES
    for length in np.unique(lengths[is_intact]):
        rows = np.flatnonzero(lengths == length)
        for part in np.array_split(rows, -(-len(rows) // _VERIFIED_AT_ONCE)):
            table = np.frombuffer(b"".join([stored[row] for row in part]), np.uint8)
            table = table.reshape(len(part), length)
            checksums = np.ascontiguousarray(table[:, -_FOOTER_BYTES:]).view("<u4")[:, 0]
            is_intact[part] = masked_crc32c(table[:, :-_FOOTER_BYTES]) == checksums
    return is_intact


def _open(path: str):
    # Python's own files are several times faster at many small reads, but are local files only.
    return tf.io.gfile.GFile(path, "rb") if "://" in path else open(path, "rb")
