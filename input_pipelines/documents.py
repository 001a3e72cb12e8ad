"""Reads text files in google-research/bert's input format into documents.

The files are UTF-8 text with one sentence a line and an empty line between documents. The end of a
file ends a document too.
"""

import os
from collections.abc import Iterator, Sequence

from bert_estimator import paths
from input_pipelines.progress import Progress


def find_files(patterns: Sequence[str]) -> list[str]:
    """Expands glob patterns and directories to files, each file only once.

    The files are sorted within each pattern. A directory stands for all files in it and below it,
    except for files and directories whose names begin with a dot.

    Raises:
      ValueError: no pattern is given, or a pattern does not match any file.
    """
    files: dict[str, None] = {}
    for pattern in patterns:
        matches = _files_below(pattern) if os.path.isdir(pattern) else paths.matches(pattern)
        if not matches:
            raise ValueError(f"no file matches {pattern!r}. Give an existing file or glob.")
        files.update(dict.fromkeys(matches))
    if not files:
        raise ValueError("no pattern is given. Give a comma-separated list of files.")
    return list(files)


def _files_below(directory):
    found = []
    for parent, subdirectories, names in os.walk(directory):
        subdirectories[:] = [name for name in subdirectories if not name.startswith(".")]
        found.extend(os.path.join(parent, name) for name in names if not name.startswith("."))
    return sorted(filter(os.path.isfile, found))


def total_bytes(files: Sequence[str]) -> int:
    """Returns the size of files together, for `Progress`; missing files count 0."""
    return sum(os.path.getsize(path) for path in files if os.path.exists(path))


def read_documents(files: Sequence[str], progress: Progress | None = None) -> Iterator[list[str]]:
    """Yields the documents of the files, each a non-empty list of non-empty sentences.

    Args:
      files: paths.
      progress: counts the bytes that have been read.

    Raises:
      ValueError: a file cannot be read or is not UTF-8 (the message gives the offset of the first
        bad byte), or the files do not contain any document.
    """
    number_of_documents = 0
    for path in files:
        for document in _documents_of_file(path, progress):
            number_of_documents += 1
            yield document
    if progress:
        progress.end()
    if not number_of_documents:
        raise ValueError(
            f"{', '.join(files)}: every line is empty. Give text with one sentence a line and an "
            "empty line between documents."
        )


def _documents_of_file(path: str, progress: Progress | None) -> Iterator[list[str]]:
    document: list[str] = []
    for line in _lines(path, progress):
        sentence = line.strip()
        if sentence:
            document.append(sentence)
        elif document:
            yield document
            document = []
    if document:
        yield document


def _lines(path: str, progress: Progress | None) -> Iterator[str]:
    offset = 0
    try:
        with open(path, "rb") as file:
            for line in file:
                yield line.decode("utf-8-sig" if offset == 0 else "utf-8")
                offset += len(line)
                if progress:
                    progress.add(len(line))
    except UnicodeDecodeError as error:
        skipped = len(line) - len(error.object)  # of the byte order mark, if the file has one
        raise ValueError(
            f"{path}: byte {offset + skipped + error.start} is not UTF-8 ({error.reason}). Convert "
            "the file to UTF-8 (for instance: iconv -f latin1 -t utf-8)."
        ) from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}.") from None
