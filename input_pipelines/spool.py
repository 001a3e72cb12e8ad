"""Sequences that are kept on disk while records are made: memory is for their places alone."""

import array
import tempfile
import weakref
from collections.abc import Iterable, Sequence

from input_pipelines.instances import TokenizedDocument


class Spool(Sequence[bytes]):
    """Byte strings in a temporary file of `$TMPDIR`, read one at a time; 8 bytes of memory each.

    The file has no name: it goes when the program ends, however that is, or when the spool does.
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


class SpooledDocuments(Sequence[TokenizedDocument]):
    """Documents in a `Spool`, each read when it is asked for: a list of int arrays."""

    def __init__(self, documents: Iterable[TokenizedDocument]):
        self._spool = Spool(map(_packed, documents))

    def __len__(self) -> int:
        return len(self._spool)

    def __getitem__(self, number: int) -> TokenizedDocument:
        values = array.array("i", self._spool[number])
        start, sentences = 1 + values[0], []
        for length in values[1:start]:
            sentences.append(values[start : start + length])
            start += length
        return sentences


def _packed(document: TokenizedDocument) -> bytes:
    """The number of sentences, their lengths, their ids."""
    values = array.array("i", [len(document), *map(len, document)])
    for sentence in document:
        values.extend(sentence)
    return values.tobytes()
