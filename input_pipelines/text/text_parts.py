"""Text files cut into parts, which several processes can read at the same time."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Sequence

from bert_estimator.storage import reading
from bert_estimator.system import paths
from input_pipelines.text import documents
from input_pipelines.text.document_filter import DocumentFilter
from input_pipelines.text.documents import TextOptions

_DEFAULT = TextOptions()
_PART_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True)
class TextPart:
    """Names some whole documents of a file.

    Attributes:
      path: the file.
      start: the byte at which the documents begin.
      end: the byte at which they end.
      version: the size of the file, and the time of its last change; for a remote file, another
        number that changes when its content does.
      options: how the file is read.
      side: (fraction, whether its documents are meant or all others) of `documents.is_held_out`;
        None for all documents.
    """

    path: str
    start: int
    end: int
    version: tuple[int, int]
    options: TextOptions = _DEFAULT
    side: tuple[float, bool] | None = None

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def digest(self) -> str:
        """Returns a hash of all attributes."""
        described = dataclasses.asdict(self)
        if not paths.is_remote(self.path):
            described["path"] = os.path.abspath(self.path)
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:32]

    def documents(self, chosen: DocumentFilter | None = None) -> Iterator[list[str]]:
        """Yields the documents; see `documents.read_documents`, whose errors this raises.

        Args:
          chosen: a filter of the options, which counts the documents of both sides that it leaves
            out; None for a new one.
        """
        chosen = chosen or self.options.new_filter()
        end = self.end if self.end < self.version[0] else None
        is_meant = True
        pieces = documents.pieces_of_file(self.path, self.start, end, self.options)
        for piece in documents.kept(pieces, chosen):
            # All pieces of a document that is cut are on one side.
            if self.side and piece.is_first:
                fraction, are_held_out = self.side
                is_meant = documents.is_held_out(piece.sentences, fraction) == are_held_out
            if is_meant:
                yield piece.sentences


def split_files(
    files: Sequence[str],
    options: TextOptions = _DEFAULT,
    side: tuple[float, bool] | None = None,
    part_bytes: int = _PART_BYTES,
) -> list[TextPart]:
    """Cuts files of plain text at the beginnings of documents; other files are parts as they are.

    The parts do not depend on the machine.

    Args:
      files: paths.
      options, side: attributes of the parts.
      part_bytes: the least number of bytes of a part, but for the last part of a file.

    Raises:
      ValueError: a file cannot be read.
    """
    parts = []
    for path in files:
        if paths.is_remote(path):
            version, starts = reading.version(path), [0]
        else:
            version, starts = _starts(path, options, part_bytes)
        ends = [*starts[1:], version[0]]
        parts += [
            TextPart(path, start, end, version, options, side)
            for start, end in zip(starts, ends, strict=True)
            if end > start
        ]
    return parts


def _starts(path, options, part_bytes):
    """Returns the version of a file, and where its parts begin."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            version = (status.st_size, status.st_mtime_ns)
            starts = [0]
            if documents.is_plain(path, options):
                while starts[-1] + part_bytes < status.st_size:
                    starts.append(_next_document(file, starts[-1] + part_bytes))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}.") from None
    return version, starts


def _next_document(file, offset: int) -> int:
    """Returns where the first empty line from `offset` on ends; the end of the file without one."""
    file.seek(offset - 1)
    file.readline()  # the rest of a line, or the end of the line before
    while line := file.readline():
        if not line.strip():
            break
    return file.tell()
