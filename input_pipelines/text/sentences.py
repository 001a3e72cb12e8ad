"""Splits prose into sentences, by rules for languages that end sentences with . ! ? or 。.

A sentence ends after one of these marks, and after the quotes and brackets that close behind it, if
whitespace and a capital, a digit or a letter without case follow. It does not end after
abbreviations, initials and numbers of lists. A line ends a sentence, too, unless the text is broken
into lines of about the same length.
"""

# ruff: noqa: RUF001, SIM905

import re
from collections.abc import Iterator

_CLOSING = "\"'”’)\\]»"
# The marks of a run match together or not at all, so that a run is looked at once.
_END = re.compile(rf"(?<![.!?…])[.!?…]+[{_CLOSING}]*(?=\s)|[。！？]+[」』”）]*")
_NEXT = re.compile(r"\s*[\"'“‘«(\[¿¡„—–-]*\s?(\S)")
_BEFORE_WORD = re.compile(r"[\s(\[\"'“‘«—]")
# Names and titles follow these, and never a sentence.
_BEFORE_NAMES = frozenset(
    (
        "mr mrs ms dr prof rev hon st sr jr gen col capt lt sgt maj cmdr adm gov sen rep pres "
        "supt messrs mme mlle hr fr bros e.g i.e cf vs viz al approx ca u.s u.k "
    ).split()
)
# Numbers follow these. Without a number they end a sentence.
_BEFORE_NUMBERS = frozenset(
    (
        "no nos nr fig figs eq eqs sec sect ch chap vol vols p pp art cl par para op ed jan feb "
        "mar apr jun jul aug sep sept oct nov dec "
    ).split()
)
_INITIAL = re.compile(r"(?:[A-Z]\.)*[A-Z]\.$")
_NUMBER_OF_A_LIST = re.compile(r"\(?(?:\d{1,3}|[ivx]{1,4}|[a-z])[.)]")
_LONGEST_NUMBER = len("(viii.")
# A shorter line is a heading, or the last line of a paragraph.
_SHORTEST_BROKEN_LINE = 40


def split_text(text: str) -> Iterator[str]:
    """Yields the sentences of a text, without empty ones; whitespace becomes single spaces."""
    for paragraph in _paragraphs(text.splitlines()):
        yield from split(paragraph)


def split(paragraph: str) -> list[str]:
    """Splits a paragraph, which does not have line breaks, into sentences."""
    paragraph = " ".join(paragraph.split())
    sentences = []
    start = 0
    for match in _END.finditer(paragraph):
        end = match.end()
        if end < len(paragraph) and _ends_sentence(paragraph, start, match):
            sentences.append(paragraph[start:end].strip())
            start = end
    if rest := paragraph[start:].strip():
        sentences.append(rest)
    return sentences


def _ends_sentence(paragraph, start, match):
    """Returns whether a sentence that begins at `start` ends with the mark of a match."""
    mark = match.group()
    if mark[0] in "。！？":
        return True
    following = _NEXT.match(paragraph, match.end())
    if following is None or following[1].islower():
        return False
    if mark != ".":
        return following[1].isalnum() or mark[0] != "."
    if not following[1].isalnum():
        return False
    # Only what is near is looked at, since a sentence may have any number of full stops.
    end = match.start() + 1
    word = paragraph[max(start, paragraph.rfind(" ", start, end) + 1) : end]
    word = _BEFORE_WORD.split(word)[-1]
    # "I" is an initial less often than it is a word.
    if _INITIAL.match(word) and word != "I.":
        return False
    is_short = end - start <= len(" ") + _LONGEST_NUMBER
    if is_short and _NUMBER_OF_A_LIST.fullmatch(paragraph[start:end].strip()):
        return False
    name = word.removesuffix(".").lower()
    return not (name in _BEFORE_NAMES or (name in _BEFORE_NUMBERS and following[1].isdigit()))


def _paragraphs(lines) -> Iterator[str]:
    """Joins lines that were broken within a sentence; an empty line ends a paragraph."""
    paragraph: list[str] = []
    for line in lines:
        line = line.strip()
        if line:
            paragraph.append(line)
        if paragraph and (not line or not _continues(line)):
            yield " ".join(paragraph)
            paragraph = []
    if paragraph:
        yield " ".join(paragraph)


def _continues(line):
    """Returns whether a sentence may go on in the next line."""
    if len(line) < _SHORTEST_BROKEN_LINE:
        return False
    word = line.rsplit(maxsplit=1)[-1].strip("(\"'“‘")
    is_short = word.removesuffix(".").lower() in _BEFORE_NAMES | _BEFORE_NUMBERS
    return is_short or line.rstrip("\"'”’)]»")[-1:] not in tuple(".!?:…。！？")
