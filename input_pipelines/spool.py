"""Sequences that lie on disk while records are made; only their offsets are in memory."""

import array
import sys
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from typing import IO

import numpy as np

from input_pipelines.flat_document import FlatDocument, TokenizedDocument


class Spool(Sequence[bytes]):
    """Byte strings in a temporary file in `$TMPDIR`, read one at a time; 8 bytes of memory each.

    The file has no name, so it is deleted with the spool, or when the program ends in any way.
    """

    def __init__(self, strings: Iterable[bytes]):
        self._file = tempfile.TemporaryFile()  # noqa: SIM115, closed with the spool
        weakref.finalize(self, self._file.close)
        self._ends = array.array("q", [0])
        for string in strings:
            self._file.write(string)
            self._ends.append(self._ends[-1] + len(string))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> bytes:
        if not 0 <= number < len(self):
            raise IndexError(f"string {number} of {len(self)}")
        start, end = self._ends[number : number + 2]
        self._file.seek(start)
        return self._file.read(end - start)


class SpooledDocuments(Sequence[FlatDocument]):
    """Documents on disk; a sentence is read as a list of ids when it is asked for.

    The files are mapped to memory, which the operating system reclaims when memory is short.
    """

    def __init__(self, documents: Iterable[TokenizedDocument]):
        self._first_sentences = array.array("q", [0])
        with tempfile.TemporaryFile() as ids, tempfile.TemporaryFile() as starts:
            start = 0
            for document in documents:
                for sentence in document:
                    ids.write(array.array("i", sentence).tobytes())
                    starts.write(start.to_bytes(8, sys.byteorder))
                    start += len(sentence)
                self._first_sentences.append(self._first_sentences[-1] + len(document))
            starts.write(start.to_bytes(8, sys.byteorder))
            self._starts = _mapped(starts, np.int64)
            self._ids = _mapped(ids, np.int32)

    def __len__(self) -> int:
        return len(self._first_sentences) - 1

    def __getitem__(self, number: int) -> FlatDocument:
        if not 0 <= number < len(self):
            raise IndexError(f"document {number} of {len(self)}")
        first, end = self._first_sentences[number : number + 2]
        return FlatDocument(self._ids, self._starts[first : end + 1])


def _mapped(file: IO[bytes], dtype: type) -> np.ndarray:
    """Maps the content of a file, which stays readable after the file is closed."""
    file.flush()
    if file.tell() == 0:  # an empty file cannot be mapped
        return np.zeros([0], dtype)
    return np.asarray(np.memmap(file, dtype, "r"))
