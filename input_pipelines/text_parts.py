"""Text files cut into parts, which several processes can read at the same time."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Sequence

from input_pipelines import documents

PART_BYTES = 1 << 24
"""The least number of bytes of a part, but for the last part of a file."""


@dataclasses.dataclass(frozen=True)
class TextPart:
    """Names some whole documents of a file.

    Attributes:
      path: the file.
      start: the byte at which the documents begin.
      end: the byte at which they end.
      version: the size and the time of the last change of the file.
    """

    path: str
    start: int
    end: int
    version: tuple[int, int]

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def digest(self) -> str:
        """A hash of all attributes."""
        described = json.dumps([os.path.abspath(self.path), self.start, self.end, self.version])
        return hashlib.sha256(described.encode()).hexdigest()[:32]

    def documents(self) -> Iterator[list[str]]:
        """Yields the documents; see `documents.read_documents`, whose errors this raises."""
        return documents.documents_of_file(self.path, self.start, self.end)


def split_files(files: Sequence[str], part_bytes: int = PART_BYTES) -> list[TextPart]:
    """Cuts files at the beginnings of documents; the parts do not depend on the machine.

    Raises:
      ValueError: a file cannot be read.
    """
    parts = []
    for path in files:
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                version = (status.st_size, status.st_mtime_ns)
                starts = [0]
                while starts[-1] + part_bytes < status.st_size:
                    starts.append(_next_document(file, starts[-1] + part_bytes))
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror}.") from None
        ends = [*starts[1:], status.st_size]
        parts += [
            TextPart(path, start, end, version)
            for start, end in zip(starts, ends, strict=True)
            if end > start
        ]
    return parts


def _next_document(file, offset: int) -> int:
    """Returns where the first empty line from `offset` on ends; the end of the file without one."""
    file.seek(offset - 1)
    file.readline()  # the rest of a line, or the end of the line before
    while line := file.readline():
        if not line.strip():
            break
    return file.tell()
