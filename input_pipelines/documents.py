"""Reads text files in google-research/bert's input format into documents.

The files are UTF-8 text with one sentence a line and an empty line between documents. The end of a
file ends a document too.
"""

from collections.abc import Iterator, Sequence

from bert_estimator import paths


def find_files(patterns: Sequence[str]) -> list[str]:
    """Expands glob patterns to files, sorted within each pattern, each file only once.

    Raises:
      ValueError: no pattern is given, or a pattern does not match any file.
    """
    files: list[str] = []
    for pattern in patterns:
        matches = paths.matches(pattern)
        if not matches:
            raise ValueError(f"no file matches {pattern!r}. Give an existing file or glob.")
        files.extend(path for path in matches if path not in files)
    if not files:
        raise ValueError("no pattern is given. Give a comma-separated list of files.")
    return files


def read_documents(files: Sequence[str]) -> Iterator[list[str]]:
    """Yields the documents of the files, each a non-empty list of non-empty sentences.

    Raises:
      ValueError: a file cannot be read or is not UTF-8 (the message gives the offset of the first
        bad byte), or the files do not contain any document.
    """
    number_of_documents = 0
    for path in files:
        for document in _documents_of_file(path):
            number_of_documents += 1
            yield document
    if not number_of_documents:
        raise ValueError(
            f"{', '.join(files)}: every line is empty. Give text with one sentence a line and an "
            "empty line between documents."
        )


def _documents_of_file(path: str) -> Iterator[list[str]]:
    document: list[str] = []
    for line in _lines(path):
        sentence = line.strip()
        if sentence:
            document.append(sentence)
        elif document:
            yield document
            document = []
    if document:
        yield document


def _lines(path: str) -> Iterator[str]:
    offset = 0
    try:
        with open(path, "rb") as file:
            for line in file:
                yield line.decode("utf-8-sig" if offset == 0 else "utf-8")
                offset += len(line)
    except UnicodeDecodeError as error:
        skipped = len(line) - len(error.object)  # of the byte order mark, if the file has one
        raise ValueError(
            f"{path}: byte {offset + skipped + error.start} is not UTF-8 ({error.reason}). Convert "
            "the file to UTF-8 (for instance: iconv -f latin1 -t utf-8)."
        ) from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}.") from None
