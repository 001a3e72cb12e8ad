"""The embedded corpus: English that every CPython carries in its standard library.

It has two sources, which are read as text and parsed with `ast`, but never imported:

1. the language reference in `pydoc_data/topics.py`, one document per topic;
2. the docstrings of the standard library's modules, one document per module.

Prose is kept; doctests, code, tables, headings and signatures are dropped. A document is a list of
sentences (str). The order is deterministic: topics by name, then modules by path.
"""

import ast
import dataclasses
import hashlib
import inspect
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

HELD_OUT_SHARE = 0.05

# Tests and demos have little prose; the character-map codecs repeat one sentence a hundred times;
# Python 3.13 does not have lib2to3; the *-packages directories are not the standard library's.
_SKIPPED_DIRECTORIES = frozenset(
    ("__pycache__", "test", "tests", "idle_test", "idlelib", "turtledemo", "lib2to3", "encodings")
    + ("pydoc_data", "site-packages", "dist-packages", "lib-dynload")
)

_TOPICS = Path("pydoc_data", "topics.py")

_UNDERLINE = re.compile(r"([^\w\s])\1{2,}$")
_BULLET = re.compile(r"([*+\-o•]|\(?[0-9]{1,2}[.)]|\[[0-9]+\])\s+")
_ROLE = re.compile(r":[a-z:]+:`([^`]*)`")
_MARKUP = re.compile(r"``?([^`]+)``?|(?<![\w*])\*{1,2}(\w[^*]*)\*{1,2}(?!\w)")
_SENTENCE_END = re.compile(r"(?<=[.!?])(?:[\"')\]]+)?\s+(?=[\"'(\[]?[A-Z])")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|cf|vs|Mr|Dr|St|No|approx)|\b[A-Z])\.$")
_CODE = re.compile(r"::=|->|>>>|[=!<>]=|[{}|\\]|\w\(\w*\)\s*:$|^\.\. |__\w+__\(|@param|  ")
_PLAIN_WORD = re.compile(r"[\"'(\[]*[A-Za-z]+(?:['\u2019-][A-Za-z]+)*[\"')\],.;:!?]*")

_MIN_WORDS = 4
_MIN_PLAIN_SHARE = 0.75


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Holds the corpus, split by document into two parts without a common sentence."""

    # Non-empty lists of sentences; the held-out ones are about `HELD_OUT_SHARE` of the words.
    train: list[list[str]]
    held_out: list[list[str]]
    # The hash is of the text of both parts, which depends on the Python version ("3.11.7") alone.
    sha256: str
    python_version: str


def load(standard_library: str | None = None) -> Corpus:
    """Reads, cleans and splits a standard library's text; None is the running Python's library."""
    root = directory_of_sources(standard_library)
    train, held_out = split(without_repetitions(documents(root)))
    # A stripped or zipped Python lacks its sources.
    if not train or not held_out:
        raise FileNotFoundError(
            f"the standard library at {root} has no text to train on: this Python lacks its "
            "sources or its docstrings. Train on your own text, or use a complete Python."
        )
    digest = hashlib.sha256()
    for side in (train, held_out):
        digest.update("\n\n".join("\n".join(document) for document in side).encode() + b"\f")
    return Corpus(train, held_out, digest.hexdigest(), platform.python_version())


def fingerprint(standard_library: str | None = None) -> str:
    """Hashes the files that `load` reads and this module: the same hash means the same corpus."""
    root = directory_of_sources(standard_library)
    # It takes a tenth of a second, while `load` takes seconds.
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in [root / _TOPICS, *sources(root)]:
        source = path.read_bytes() if path.is_file() else b""
        digest.update(f"{path.relative_to(root).as_posix()} {len(source)}\n".encode() + source)
    return digest.hexdigest()


def documents(root: Path) -> Iterator[list[list[str]]]:
    """Yields documents, each a list of paragraphs, each a list of sentences."""
    for text in _topics(root / _TOPICS):
        yield list(prose(text))
    for path in sources(root):
        yield [paragraph for text in _docstrings(path) for paragraph in prose(text)]


def without_repetitions(paragraphs_of_documents: Iterable[list[list[str]]]) -> list[list[str]]:
    """Drops every paragraph seen before, joins the rest, and drops documents left empty."""
    # The language reference prints many sections twice (alone and within their chapter), and
    # overridden methods inherit docstrings by copy.
    seen = set()
    result = []
    for paragraphs in paragraphs_of_documents:
        document = []
        for paragraph in paragraphs:
            key = tuple(paragraph)
            if key not in seen:
                seen.add(key)
                document.extend(paragraph)
        if document:
            result.append(document)
    return result


def split(
    all_documents: list[list[str]], held_out_share: float = HELD_OUT_SHARE
) -> tuple[list[list[str]], list[list[str]]]:
    """Splits documents into (train, held out), both in their original order."""
    sizes = [sum(len(sentence.split()) for sentence in document) for document in all_documents]
    hashes = [hashlib.sha256("\n".join(document).encode()).digest() for document in all_documents]
    # Documents are held out in the order of the sha256 of their text until they have the share of
    # the words: a random choice that is the same everywhere.
    chosen = set()
    words_left = held_out_share * sum(sizes)
    for index in sorted(range(len(all_documents)), key=hashes.__getitem__):
        # A document that is larger than the missing rest would distort the share: skip it.
        if sizes[index] <= words_left:
            chosen.add(index)
            words_left -= sizes[index]
    train = [document for index, document in enumerate(all_documents) if index not in chosen]
    trained_sentences = {sentence for document in train for sentence in document}
    held_out = []
    for index in sorted(chosen):
        # A held-out sentence that is trained on, too, would make the evaluation look too good.
        document = [s for s in all_documents[index] if s not in trained_sentences]
        if document:
            held_out.append(document)
    return train, held_out


def prose(text: str) -> Iterator[list[str]]:
    """Yields the paragraphs of a docstring that are prose, each as a list of sentences."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if ">>>" in block or "\n..." in block:
            continue
        for paragraph in _paragraphs(block.split("\n")):
            sentences = [s for s in split_sentences(_plain(paragraph)) if _is_prose(s)]
            if sentences:
                yield sentences


def split_sentences(paragraph: str) -> list[str]:
    """Splits after `.`, `!` or `?` before a capital, but not after a common abbreviation."""
    sentences = []
    start = 0
    for match in _SENTENCE_END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph, start, match.start()):
            sentences.append(paragraph[start : match.end()].strip())
            start = match.end()
    if start < len(paragraph):
        sentences.append(paragraph[start:].strip())
    return sentences


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Joins the lines of a block; a bullet, a new indentation or a heading ends a paragraph."""
    paragraph: list[str] = []
    indentation = None
    for line in lines:
        stripped = line.strip()
        if _UNDERLINE.match(stripped):
            paragraph = []  # the line above it was a heading
            continue
        bullet = _BULLET.match(stripped)
        margin = len(line) - len(line.lstrip())
        if paragraph and (bullet or margin != indentation):
            yield " ".join(paragraph)
            paragraph = []
        if bullet:
            stripped = stripped[bullet.end() :]
            margin += bullet.end()
        indentation = margin
        paragraph.append(stripped)
    if paragraph:
        yield " ".join(paragraph)


def _plain(paragraph: str) -> str:
    """Removes the inline markup of reStructuredText."""
    paragraph = _ROLE.sub(r"\1", paragraph)
    paragraph = _MARKUP.sub(lambda match: match.group(1) or match.group(2), paragraph)
    return re.sub(r"\s+", " ", paragraph.replace("::", ":")).strip()


def _is_prose(sentence: str) -> bool:
    """Returns True for a sentence of enough words, most of them plain, without signs of code."""
    words = sentence.split(" ")
    starts_well = sentence.lstrip("\"'([")[:1].isalnum()
    if len(words) < _MIN_WORDS or not starts_well or _CODE.search(sentence):
        return False
    plain = sum(_PLAIN_WORD.fullmatch(word) is not None for word in words)
    return plain >= _MIN_PLAIN_SHARE * len(words)


def directory_of_sources(directory: str | None = None) -> Path:
    """Returns the directory of the standard library: `directory`, or the running Python's."""
    return Path(directory or sysconfig.get_path("stdlib"))


def sources(root: Path) -> list[Path]:
    """Returns the paths of the standard library's modules, sorted."""
    source_files = []
    for directory, subdirectories, files in os.walk(root):
        subdirectories[:] = [name for name in subdirectories if name not in _SKIPPED_DIRECTORIES]
        source_files.extend(Path(directory, name) for name in files if name.endswith(".py"))
    return sorted(source_files, key=lambda path: path.relative_to(root).parts)


def _topics(path: Path) -> Iterator[str]:
    """Yields the texts of `topics = {name: text, ...}` by name."""
    for statement in parse(path).body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == "topics":
            topics = ast.literal_eval(statement.value)
            for name in sorted(topics):
                yield topics[name]


def _docstrings(path: Path) -> Iterator[str]:
    """Yields the docstrings of a module, its classes and functions, in source order."""
    # A stack instead of `ast.walk`, which does not keep the order of the source.
    pending = [parse(path)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield docstring
        blocks = [getattr(node, name, []) for name in ("body", "handlers", "orelse", "finalbody")]
        pending.extend(child for block in reversed(blocks) for child in reversed(block))


def parse(path: Path) -> ast.Module:
    """Parses a file; a file that is missing or is not Python gives an empty module."""
    if not path.is_file():
        return ast.Module([], [])
    with warnings.catch_warnings():
        # Newer compilers warn about escapes in old modules, which do not matter here.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return ast.Module([], [])
