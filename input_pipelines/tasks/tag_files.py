"""Sentences of tagged words, from CoNLL and JSON files, and predicted tags in the same formats.

A CoNLL file has a word on each line; the word is in the first column, and its tag is in the last
one (in .conllu: in columns 2 and 4). An empty line ends a sentence, and so does a line that begins
with -DOCSTART-. The first word says how many columns there are, and whether tabs or spaces separate
them. A JSON file has an object for each sentence, on lines or in an array: with a list of words and
a list of tags, or with a text and spans of characters, which become tags of IOB2.
"""

import collections
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bert_estimator.system import json_files
from bert_estimator.tokenization import entities
from input_pipelines.tasks import annotations, labels
from input_pipelines.tasks.table_files import OBJECT_FORMATS, TableError, read_rows, text_lines
from input_pipelines.text import text_files

_CONLL_U = ".conllu"
CONLL_FORMATS = (".conll", _CONLL_U, ".txt", ".tsv", ".bio", ".iob", ".iob2")
FORMATS = (*CONLL_FORMATS, *OBJECT_FORMATS)

WORDS_NAMES = ("words", "tokens", "text")
TAGS_NAMES = ("tags", "ner_tags", "labels", "label")
PREDICTED = "predicted_tags"

_DOCUMENT_START = "-DOCSTART-"
# Of CoNLL-U: the numbers of a word that is written as one and counted as several, and of a word
# that is not written. Of files with other endings, they are so in sentences of numbered words.
_RANGE = re.compile(r"\d+[-.]\d+")
_HEADER = {"word", "words", "token", "tokens", "text", "form"}
_HEADER_OF_TAGS = {
    *("tag", "tags", "label", "labels", "ner", "pos", "ner_tag", "ner_tags", "pos_tag", "pos_tags"),
    *("upos", "xpos", "iob", "iob2", "bio", "iob_tag", "bio_tag", "chunk", "entity"),
}


@dataclasses.dataclass(frozen=True)
class Columns:
    """Says where words and tags are in files."""

    # A column's number from 0 (-1 is the last), or a key of JSON objects. None means the first and
    # the last column, or one of the usual keys.
    words: int | str | None = None
    tags: int | str | None = None
    encoding: str = "utf-8"


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Holds the words of a sentence, at least one."""

    words: tuple[str, ...]
    tags: tuple[int, ...] | None = None  # the number of each word's tag; None if not known


@dataclasses.dataclass(frozen=True)
class _Row:
    """Holds what a file says of a sentence: the line of each word, the words, and their tags."""

    lines: list[int]
    words: list[str]
    tags: list[str] | None


def read_sentences(path: str, columns: Columns, tag_names: Sequence[str] | None) -> list[Sentence]:
    """Reads the sentences of a file, with the tags' places in `tag_names`; None leaves tags
    unread."""
    numbers = {name: number for number, name in enumerate(tag_names or ())}
    sentences = []
    for row in _rows(path, columns, tag_names is not None):
        if row.tags is None:
            sentences.append(Sentence(tuple(row.words)))
            continue
        for line, tag in zip(row.lines, row.tags, strict=True):
            if tag not in numbers:
                raise labels.unknown(tag, f"{path}:{line}", numbers, "tag")
        sentences.append(Sentence(tuple(row.words), tuple(numbers[tag] for tag in row.tags)))
    if not sentences:
        raise TableError(f"{path}: has 0 sentences; give a file with at least one")
    return sentences


def discover_tags(path: str, columns: Columns, are_all: bool = True) -> tuple[str, ...]:
    """Finds the tags of a file, sorted, with O first; `are_all` requires at least two."""
    first_lines: dict[str, int] = {}
    spellings: dict[str, tuple[str, int]] = {}
    counts: collections.Counter[str] = collections.Counter()
    for row in _rows(path, columns, True):
        counts.update(row.tags or ())
        for line, tag in zip(row.lines, row.tags or (), strict=True):
            if tag not in first_lines:
                # Two spellings that look the same would be two tags to learn.
                labels.check_spelling(tag, path, line, spellings, "tag")
                first_lines[tag] = line
    labels.warn_of_placeholders(path, counts, first_lines, "tag")
    names = tuple(sorted(first_lines, key=lambda name: (name != entities.OUTSIDE, name)))
    if not names:
        raise TableError(f"{path}: has 0 sentences; give a file with at least one")
    if len(names) == 1 and are_all:
        raise TableError(
            f"{path}:{first_lines[names[0]]}: the tag is {names[0]!r} here and at all other words, "
            "so that there is nothing to learn; give sentences with at least two tags"
        )
    try:
        entities.are_entity_tags(names)
    except entities.TagError as error:
        raise TableError(f"{path}:{first_lines[error.tag]}: {error}") from None
    return names


def tagged_lines(path: str, columns: Columns, predicted: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a file, without line ends, with the predicted tags of each sentence: as
    another last column, or in JSON under the key `predicted_tags`."""
    if _is_json(path):
        rows = read_rows(path, encoding=columns.encoding)
        for (_, row), tags in zip(rows, predicted, strict=True):
            if columns.words is None and annotations.is_text(row, WORDS_NAMES):
                words, _ = annotations.words_and_tags(row, path, with_tags=False)
                row = {**row, "words": words}
            row = {**row, PREDICTED: list(tags)}
            yield json.dumps(row, ensure_ascii=False, default=str)
        return
    lines = list(text_lines(path, columns.encoding))
    layout = _layout(path, lines, columns)
    tags = (tag for sentence in predicted for tag in sentence)
    for _, text, cells in _cells_of(lines, layout):
        if cells:
            yield text.rstrip() + layout.separator + next(tags)
        # CoNLL-2003's own files have O as the tag of such a line.
        elif _is_boundary(text):
            yield text.rstrip() + layout.separator + entities.OUTSIDE
        else:
            yield text if text.strip() else ""


def check_can_be_written(path: str, columns: Columns, tags: Sequence[str]) -> None:
    """Raises TableError if a tag with a space would become several columns of `tagged_lines`."""
    if _is_json(path):
        return
    lines = list(text_lines(path, columns.encoding))
    if _layout(path, lines, columns).separator == "\t":
        return
    for tag in tags:
        if " " in tag:
            raise TableError(
                f"{path}: spaces separate its columns, and predicted tags are another column, but "
                f"the tag {tag!r} has a space in it; rename the tag, or separate by tabs"
            )


def extension(path: str) -> str:
    """Returns the ending of a file's name, .jsonl for JSON of any kind."""
    ending = os.path.splitext(text_files.unpacked_name(path))[1]
    if ending not in FORMATS:
        raise TableError(
            f"{path}: the format is unknown; the name of a file of tagged words must end in "
            f"{', '.join(FORMATS)}"
        )
    return ".jsonl" if ending in OBJECT_FORMATS else ending


def _is_json(path):
    return extension(path) == ".jsonl"


def _rows(path: str, columns: Columns, with_tags: bool) -> Iterator[_Row]:
    return (_objects if _is_json(path) else _blocks)(path, columns, with_tags)


def _is_conll_u(path):
    return os.path.splitext(text_files.unpacked_name(path))[1] == _CONLL_U


def _of_format(columns, path):
    """Returns the columns of a CoNLL file: in CoNLL-U its own, unless the user gives others."""
    if not _is_conll_u(path):
        return columns
    words, tags = (1 if columns.words is None else columns.words), columns.tags
    return dataclasses.replace(columns, words=words, tags=3 if tags is None else tags)


def _blocks(path, columns, with_tags):
    """Yields the sentences of a CoNLL file."""
    for name in ("words", "tags"):
        if isinstance(getattr(columns, name), str):
            raise TableError(
                f"{path}: the columns of a CoNLL file have no names; give the number of the column "
                f"of the {name}, from 1"
            )
    columns = _of_format(columns, path)
    lines = list(text_lines(path, columns.encoding))
    layout = _layout(path, lines, columns)
    if layout.number:
        _check_columns(path, layout, columns, with_tags)
    row = _Row([], [], [] if with_tags else None)
    for line, _, cells in _cells_of(lines, layout):
        if cells:
            if len(cells) != layout.number:
                raise TableError(
                    f"{path}:{line}: has {len(cells)} columns, but line {layout.line} has "
                    f"{layout.number}. Columns are separated by "
                    + ("tabs" if layout.separator == "\t" else "spaces")
                )
            row.lines.append(line)
            row.words.append(_filled(cells[layout.word_column], path, line, "word"))
            if with_tags:
                tag = cells[layout.tag_column]
                row.tags.append(_filled(tag, path, line, "tag").strip())
        # None is a line between sentences; an empty list is a line that does not count as a word.
        elif cells is None and row.words:
            _check_words(path, row, layout, columns)
            yield row
            row = _Row([], [], [] if with_tags else None)
    if row.words:
        _check_words(path, row, layout, columns)
        yield row


class _Layout(NamedTuple):
    """Says how a CoNLL file is laid out."""

    # The line of the first word, and how many columns it has; 0 in a file without words.
    line: int
    number: int
    separator: str
    word_column: int
    tag_column: int  # without tags, the last column
    # How often the column of the tags holds what, except for lines that may be comments.
    tags: collections.Counter[str]
    is_conll_u: bool


def _layout(path, lines, columns):
    """Returns the `_Layout` of the lines of a file, which are pairs of number and text."""
    columns = _of_format(columns, path)
    # Lines with # at the beginning of a sentence are judged later, by what the other lines have.
    # They do not say how many columns there are, unless there are no other lines.
    words, comments, is_first = [], [], True
    for line, text in lines:
        is_word = bool(text.strip()) and not _is_boundary(text)
        if is_word:
            (comments if is_first and text.startswith("#") else words).append((line, text))
        is_first = not is_word or (is_first and text.startswith("#"))
    words = words or comments
    line, first = words[0] if words else (0, "")
    separator = "\t" if "\t" in first else " "
    number = len(_split(first, separator))
    rows = [_split(text, separator) for _, text in words]
    tag_column = columns.tags if columns.tags in range(number) else number - 1
    tags = collections.Counter(row[tag_column] for row in rows if len(row) == number)
    return _Layout(line, number, separator, columns.words or 0, tag_column, tags, _is_conll_u(path))


def _cells_of(lines, layout):
    """Yields (line, text, cells): cells is None between sentences, and empty for lines within a
    sentence that CoNLL-U does not count as words."""
    sentence: list[tuple[int, str, list[str]]] = []
    for line, text in lines:
        cells = _split(text, layout.separator)
        is_word = bool(text.strip()) and not _is_boundary(text)
        if is_word and not (not sentence and _is_comment(cells, layout)):
            sentence.append((line, text, cells))
            continue
        yield from _counted(sentence, layout)
        sentence = []
        yield line, text, None
    yield from _counted(sentence, layout)


def _counted(sentence, layout):
    """Yields (line, text, cells) of the lines of a sentence, as `_cells_of` does."""
    ranges = [bool(layout.word_column and _RANGE.fullmatch(cells[0])) for _, _, cells in sentence]
    # Without .conllu in its name, a file is taken for CoNLL-U if the words of the sentence are
    # numbered from 1.
    firsts = [
        cells[0] for (_, _, cells), is_range in zip(sentence, ranges, strict=True) if not is_range
    ]
    are_numbers = bool(firsts) and firsts == [str(number) for number in range(1, len(firsts) + 1)]
    for (line, text, cells), is_range in zip(sentence, ranges, strict=True):
        yield line, text, [] if is_range and (are_numbers or layout.is_conll_u) else cells


def _is_boundary(text):
    return text.split(None, 1)[:1] == [_DOCUMENT_START]


def _is_comment(cells, layout):
    """Returns whether a line before the first word of a sentence is a comment."""
    if not cells[0].startswith("#"):
        return False
    # `# id 7` and `#begin document` have another number of columns than words. `# newdoc` may have
    # as many, but then what stands beside its # is not a tag of other words.
    if len(cells) != layout.number:
        return True
    return len(cells) > 1 and cells[0] == "#" and cells[layout.tag_column] not in layout.tags


def _split(text, separator):
    text = text.rstrip() if separator == "\t" else text.strip(" ")
    return [cell for cell in text.split(separator) if cell or separator == "\t"]


def _filled(value, path, line, what):
    """Returns a cell that is not empty; a space of another kind is a word."""
    if not value.strip(" "):
        raise TableError(f"{path}:{line}: the {what} is empty")
    return value


def _check_words(path, row, layout, columns):
    """Raises TableError if the words of a sentence are a header, or the numbers of words."""
    tag = row.tags[0] if row.tags and row.lines[0] == layout.line else ""
    # A tag may be called "label", too: the tag of a header is used once, or stands beside the
    # name of the column of words.
    is_alone = layout.tags[tag] == 1 < len(layout.tags)
    if tag.lower() in _HEADER_OF_TAGS and (is_alone or row.words[0].lower() in _HEADER):
        raise TableError(
            f"{path}:{layout.line}: names the columns, which a file of tagged words does not do; "
            "remove this line"
        )
    numbers = list(map(str, range(1, len(row.words) + 1)))
    if columns.words is None and layout.number > 2 and len(numbers) > 1 and row.words == numbers:
        raise TableError(
            f"{path}:{row.lines[0]}: the first column numbers the words of this sentence; give the "
            "number of the column of the words, from 1 (--text_a_column), and of the tags "
            "(--label_column)"
        )


def _check_columns(path, layout, columns, with_tags):
    """Raises TableError if a file does not have the columns of words and tags."""
    numbers = [columns.words, columns.tags if with_tags else None]
    numbers = [number for number in numbers if number is not None]
    if any(number < 0 for number in numbers):
        raise TableError(f"{path}: columns are numbered from 1")
    least = max([2 if with_tags else 1, *(number + 1 for number in numbers)])
    if layout.number < least:
        raise TableError(
            f"{path}:{layout.line}: has {layout.number} columns; it must have {least} or more, "
            "with tabs or spaces between them: the word first, and its tag last"
        )


def _objects(path, columns, with_tags):
    """Yields the sentences of a JSON file."""
    for name in ("words", "tags"):
        if isinstance(getattr(columns, name), int):
            raise TableError(
                f"{path}: give the key of the {name}, since JSON has no column numbers"
            )
    rows = read_rows(path, encoding=columns.encoding)
    if with_tags:
        # Annotators refuse tags; to predict, the words are as good as others.
        rows = annotations.without_refused(rows, path, (columns.words, columns.tags))
    for line, row in rows:
        place = f"{path}:{line}"
        if columns.words is None and annotations.is_text(row, WORDS_NAMES):
            words, tags = annotations.words_and_tags(row, place, with_tags)
            yield _Row([line] * len(words), words, tags)
            continue
        words_key = _key(place, row, columns.words, WORDS_NAMES, "words")
        words = row[words_key]
        if not isinstance(words, list) or not words:
            shown = json_files.shown(words)
            raise TableError(f"{place}: {words_key!r} is {shown}; it must be a list of words")
        for word in words:
            if not isinstance(word, str) or not word.strip():
                shown = json_files.shown(word)
                raise TableError(f"{place}: a word of {words_key!r} is {shown}; it must be a text")
        tags = None
        if with_tags:
            tags = _tags_of(place, row[_key(place, row, columns.tags, TAGS_NAMES, "tags")])
            if len(tags) != len(words):
                raise TableError(
                    f"{place}: has {len(words)} words, but {len(tags)} tags; each word needs a tag"
                )
        yield _Row([line] * len(words), words, tags)


def _tags_of(place: str, values: Any) -> list[str]:
    if not isinstance(values, list):
        raise TableError(f"{place}: the tags are {json_files.shown(values)}; they must be a list")
    tags = [labels.name_of(value, place) for value in values]
    if not all(tags):
        raise TableError(f"{place}: a tag is empty")
    return tags


def _key(place, row, key, usual, what):
    if key is None:
        key = next((name for name in usual if name in row), None)
        if key is None:
            raise TableError(
                f"{place}: its keys are {', '.join(map(str, row))}, which do not include any of "
                f"{', '.join(usual)}. Name the key of the {what}"
            )
    if key not in row:
        raise TableError(f"{place}: has no key {key!r}; it has {', '.join(map(str, row))}")
    return key


# What a word of a tagged sentence is: what stands between spaces, or a single character. Chinese is
# usually tagged character by character. A text for such a model does not have spaces, and is split
# as the sentences of its training were.

# Chinese characters and kana, with their marks.
_EASTERN = "\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
_HAS_EASTERN = re.compile(f"[{_EASTERN}]")
_MOST_OTHERS = 0.01  # a share of slips

SPACES = "spaces"
WORD_FORMS = {
    SPACES: re.compile(r"\S+"),
    "characters": re.compile(r"\S"),
    "ideographs": re.compile(rf"[^\W{_EASTERN}]+|\S"),
}
"""What words are (single characters are all, or the Chinese ones) -> an expression of a word."""


def form_of_words(sentences: Sequence[Sequence[str]]) -> str:
    """Returns what the words of sentences are, one of `WORD_FORMS`."""
    words = list(itertools.chain.from_iterable(sentences))
    eastern = list(filter(_HAS_EASTERN.search, words))
    if not _are_single(eastern):
        return SPACES
    return "characters" if _are_single(words) else "ideographs"


def _are_single(words):
    return bool(words) and sum(len(word) > 1 for word in words) <= _MOST_OTHERS * len(words)


def recorded_form(task: Mapping[str, Any], path: str) -> str:
    """Returns what words are by the values of task.json, one of `WORD_FORMS`."""
    form = json_files.field(task, "words", str, path, default=SPACES)
    if form not in WORD_FORMS:
        raise ValueError(f"{path}: words must be one of {', '.join(WORD_FORMS)}, not {form!r}")
    return form


def words_of(text: str, form: str) -> list[str]:
    """Returns the words of a text, which are of one of `WORD_FORMS`."""
    return WORD_FORMS[form].findall(text)
