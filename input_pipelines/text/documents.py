"""Reads text files into documents, each a non-empty list of non-empty sentences.

Plain text is in google-research/bert's input format by default: UTF-8 with one sentence a line and
an empty line between documents. The end of a file ends a document too. `text_formats` has the other
formats; `text_files` says how files may be packed. Files are cut into parts (`TextPart`), which
several processes can read at the same time.
"""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bert_estimator.command_line import flags
from bert_estimator.storage import reading
from bert_estimator.system import paths
from bert_estimator.system.ticker import Progress
from input_pipelines.records import record_names
from input_pipelines.text import sentences, text_files, text_formats
from input_pipelines.text.document_filter import DocumentFilter, in_words

MOST_SENTENCES = 1 << 18
"""A document with more sentences is cut, so that no file has to fit into memory."""

_LOOKED_AT = 1 << 20  # bytes of a file's first line, to tell its format
_MOST_NAMED = 3  # files in a message
_PART_BYTES = 1 << 24


@flags.group()
class TextOptions:
    """Says how text files are read, and which documents are left out."""

    text_field: str = flags.field(
        "text", "Read the text from this key of JSON lines, or from this column of parquet."
    )
    split_sentences: str = flags.field(
        "auto",
        "Split texts into sentences (yes), or take each line for a sentence (no). auto splits the "
        "texts of all formats but plain text, which has a sentence in each line.",
        flags.one_of(("auto", "yes", "no")),
    )
    document_per_file: bool = flags.field(
        False,
        "Take each file of plain text for one document; by default, empty lines end documents.",
    )
    min_words: int = flags.field(0, "Leave out documents with fewer words than this.")
    min_letters: float = flags.field(
        0.0,
        "Leave out documents of which a smaller share of the characters, without spaces, are "
        "letters.",
    )
    language: str = flags.field(
        "",
        "Leave out documents in other languages than this, such as en; py3langid detects them. By "
        "default, take all languages.",
    )

    def __post_init__(self):
        # A message begins with an option's name, so that a command can put -- before it.
        if self.min_words < 0:
            raise ValueError(f"min_words is {self.min_words}; it must be 0 or more.")
        if not 0 <= self.min_letters <= 1:
            raise ValueError(f"min_letters is {self.min_letters}; it must be from 0 to 1.")
        self.new_filter()  # for its errors

    def new_filter(self) -> DocumentFilter:
        """Returns a filter of documents, which has not left out any yet; see `DocumentFilter`."""
        return DocumentFilter(self.min_words, self.min_letters, self.language)


_DEFAULT = TextOptions()


def find_files(patterns: Sequence[str], vocab_file: str = "") -> list[str]:
    """Expands glob patterns and directories to files, sorted within each pattern, but without the
    vocabulary; each file comes only once, however it is spelled."""
    place_of_vocabulary = os.path.realpath(vocab_file) if vocab_file else None
    files: dict[str, str] = {}  # the place of each file -> its path
    for pattern in patterns:
        matches = _matches(pattern)
        # Records, and what lies beside them, are left out, unless a file is given by its name.
        texts = [path for path in matches if path == pattern or record_names.is_text(path)]
        if place_of_vocabulary is not None:
            if os.path.realpath(pattern) == place_of_vocabulary:
                raise ValueError(f"{pattern} is the vocabulary, which is not text to read")
            texts = [path for path in texts if os.path.realpath(path) != place_of_vocabulary]
        if not texts:
            only = ", only records or what lies beside them" if matches else ""
            raise ValueError(f"no file matches {pattern!r}{only}. Give an existing file or glob.")
        for path in texts:
            files.setdefault(path if paths.is_remote(path) else os.path.realpath(path), path)
    if not files:
        raise ValueError("no pattern is given. Give a comma-separated list of files.")
    return list(files.values())


def _matches(pattern):
    if paths.is_remote(pattern):
        return reading.find(pattern)
    return _files_below(pattern) if os.path.isdir(pattern) else paths.matches(pattern)


def _files_below(directory):
    """Returns the files below a directory, sorted, without hidden ones; follows links to
    directories."""
    # A link counts only if it leads to a directory that is not reached without it. So links may
    # lead in circles.
    files, visited, roots = [], set(), [directory]
    for root in roots:  # which grows by the links
        for parent, subdirectories, names in os.walk(root):
            place = os.path.realpath(parent)
            if place in visited:
                # An emptied list keeps `os.walk` from going down.
                subdirectories.clear()
                continue
            visited.add(place)
            subdirectories[:] = sorted(name for name in subdirectories if not name.startswith("."))
            below = [os.path.join(parent, name) for name in subdirectories]
            roots.extend(filter(os.path.islink, below))
            # A name that begins with a dot is hidden: an editor's or the system's file.
            files.extend(os.path.join(parent, name) for name in names if not name.startswith("."))
    return sorted(filter(os.path.isfile, files))


def total_bytes(files: Sequence[str]) -> int:
    """Returns the size of files together, for `Progress`; missing files count 0."""
    return sum(
        reading.version(path)[0] if paths.is_remote(path) else os.path.getsize(path)
        for path in files
        if paths.is_remote(path) or os.path.exists(path)
    )


class Piece(NamedTuple):
    """Holds a document, or a part of a document that is cut because it has too many sentences."""

    sentences: list[str]
    is_first: bool  # whether the document begins with these sentences


def read_pieces(
    files: Sequence[str],
    progress: Progress | None = None,
    options: TextOptions = _DEFAULT,
    chosen: DocumentFilter | None = None,
) -> Iterator[Piece]:
    """Yields the documents of the files, which are not empty, in pieces of `MOST_SENTENCES`; a
    `chosen` filter of None is a new one."""
    chosen = chosen or options.new_filter()
    is_any = False
    for path in files:
        for piece in kept(pieces_of_file(path, options=options, progress=progress), chosen):
            is_any = True
            yield piece
    if not is_any:
        raise ValueError(no_text(files, chosen.left_out, options))


def no_text(
    files: Sequence[str], left_out: Mapping[str, int], options: TextOptions = _DEFAULT
) -> str:
    """Returns the message that says that there is no document, for these numbers of left out."""
    if any(left_out.values()):
        return f"all documents are left out: {in_words(left_out)}. Change the flags."
    names = ", ".join(files[:_MOST_NAMED])
    if len(files) > _MOST_NAMED:
        names += f" and {len(files) - _MOST_NAMED} more files"
    formats = set(map(_format, files))
    if formats == {"plain"}:
        return (
            f"{names}: every line is empty. Give text with one sentence a line and an empty line "
            "between documents."
        )
    verb = "does" if len(files) == 1 else "do"
    if formats <= {"jsonl", "parquet"}:
        return (
            f"{names}: {verb} not hold text under the key {options.text_field!r}. Give files with "
            "text, or the key of the text as text_field."
        )
    return f"{names}: {verb} not hold text. Give files with text."


def is_held_out(document: Sequence[str], fraction: float) -> bool:
    """Returns whether a document, a sequence of sentences, is among a fraction of all documents."""
    # A hash of the text decides, so the choice is the same in every run, on every machine and in
    # every order of reading, and two equal documents are on the same side. The documents of a
    # smaller fraction are among the documents of a larger fraction.
    digest = hashlib.blake2b("\n".join(document).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


def is_plain(path: str, options: TextOptions = _DEFAULT) -> bool:
    """Returns whether a file may be read in parts that begin after empty lines."""
    # A packed file cannot be read from its middle on, and one document must stay in one part.
    if text_files.packing(path) or paths.is_remote(path) or options.document_per_file:
        return False
    return _format(path) == "plain"


def kept(pieces: Iterable[Piece], chosen: DocumentFilter) -> Iterator[Piece]:
    """Yields the pieces of the documents that a filter keeps; it looks at their first pieces."""
    keeps = False
    for piece in pieces:
        if piece.is_first:
            keeps = chosen.keeps(piece.sentences)
        if keeps:
            yield piece


def pieces_of_file(
    path: str,
    start: int = 0,
    end: int | None = None,
    options: TextOptions = _DEFAULT,
    progress: Progress | None = None,
) -> Iterator[Piece]:
    """Yields all documents of a file, or of its bytes from `start` to `end` if `is_plain`, in
    pieces of at most `MOST_SENTENCES` sentences."""
    # A part that begins later is plain, and its first line may look like another format.
    kind = "plain" if start else _format(path)
    with text_files.opened(path, progress) as file:
        if kind == "plain":
            texts = text_formats.lines(file, path, start, end)
            yield from _cut(_plain_pieces(texts, options))
            return
        if kind == "parquet":
            texts = text_formats.parquet_texts(file, path, options.text_field)
        elif kind == "jsonl":
            texts = text_formats.json_texts(file, path, options.text_field)
        else:
            texts = text_formats.wikiextractor_texts(file, path)
        split = str.splitlines if options.split_sentences == "no" else sentences.split_text
        whole = ([line for line in map(str.strip, split(text)) if line] for text in texts)
        yield from _cut(Piece(document, is_first=True) for document in whole if document)


def _format(path) -> str:
    """Returns the format of a file, by its name or by its first line that is not empty."""
    with text_files.opened(path) as file:
        line = file.readline(_LOOKED_AT).removeprefix(b"\xef\xbb\xbf")
        while line and not line.strip():
            line = file.readline(_LOOKED_AT)
        if line.strip() in text_formats.OPENING:  # JSON may be broken into lines here
            line += file.readline(_LOOKED_AT)
        goes_on = not line.endswith(b"\n") and bool(file.read(1))
    # The file may be an old Macintosh's, whose lines end at carriage returns.
    if not line.endswith(b"\n"):
        line = line.lstrip().split(b"\r")[0]
    return text_formats.of_file(path, line.lstrip(), goes_on)


def _plain_pieces(lines, options) -> Iterator[Piece]:
    """Yields documents of plain lines; a document may be cut before it ends."""
    splits = options.split_sentences == "yes"
    kept: list[str] = []
    is_first = True
    for line in itertools.chain(lines, [None]):
        # None ends the last document, as an empty line does.
        text = line and line.strip()
        is_end = line is None or not (text or options.document_per_file)
        # An empty line stays within a document: it ends a paragraph, and so a sentence.
        if text or (splits and not is_end):
            kept.append(text)
        if is_end or len(kept) >= MOST_SENTENCES:
            if any(kept):
                whole = list(sentences.split_text("\n".join(kept))) if splits else kept
                yield Piece(whole, is_first)
                is_first = False
            is_first = is_first or is_end
            kept = []


def _cut(pieces: Iterable[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        for start in range(0, len(piece.sentences), MOST_SENTENCES):
            part = piece.sentences[start : start + MOST_SENTENCES]
            yield Piece(part, piece.is_first and not start)


@dataclasses.dataclass(frozen=True)
class TextPart:
    """Names some whole documents of a file, from one byte to another."""

    path: str
    start: int
    end: int
    # The size of the file, and the time of its last change; of a remote file, another number that
    # changes when its content does.
    version: tuple[int, int]
    options: TextOptions = _DEFAULT
    # (fraction, whether its documents are meant or all others) of `is_held_out`; None for all.
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
        """Yields the documents; a `chosen` filter counts what it leaves out, on both sides."""
        chosen = chosen or self.options.new_filter()
        # Only a part of plain text ends within its file.
        end = self.end if self.end < self.version[0] else None
        is_meant = True
        pieces = pieces_of_file(self.path, self.start, end, self.options)
        for piece in kept(pieces, chosen):
            # All pieces of a document that is cut are on one side.
            if self.side and piece.is_first:
                fraction, are_held_out = self.side
                is_meant = is_held_out(piece.sentences, fraction) == are_held_out
            if is_meant:
                yield piece.sentences


def split_files(
    files: Sequence[str],
    options: TextOptions = _DEFAULT,
    side: tuple[float, bool] | None = None,
    part_bytes: int = _PART_BYTES,  # the fewest, but for the last part of a file
) -> list[TextPart]:
    """Cuts files of plain text where documents begin; other files are parts as they are."""
    # The parts do not depend on the machine, since the hash of the text is made of their hashes.
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
            if is_plain(path, options):
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
