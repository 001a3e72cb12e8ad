"""Texts as tools for annotation write them: spans of characters, and what annotators refused.

A text has words: its tokens, as prodigy gives them, or what stands between spaces and punctuation.
Spans of characters become tags of IOB2. Prodigy also writes the rows that annotators rejected or
ignored, whose labels are not true.
"""

import functools
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from bert_estimator.system import json_files
from bert_estimator.tokenization import entities
from input_pipelines.tasks import labels
from input_pipelines.tasks.table_files import Row, TableError

SPANS_NAMES = ("spans", "entities", "label", "labels")
_ANSWER = "answer"
_REFUSED = ("reject", "ignore")
_BREAK = "\u200b"  # a space without width, which separates words of Khmer and Thai


def without_refused(
    rows: Iterable[tuple[int, Row]], path: str, columns: Collection[Any]
) -> Iterator[tuple[int, Row]]:
    """Yields the rows whose labels annotators did not refuse, or all if `answer` is a column in
    use; says once in a process how many it leaves out."""
    refused = 0
    for line, row in rows:
        answer = None if _ANSWER in columns else row.get(_ANSWER)
        if isinstance(answer, str) and answer in _REFUSED:
            refused += 1
        else:
            yield line, row
    if refused:
        _say_refused(path, refused)


@functools.cache  # a file is read for its labels, and again for its texts
def _say_refused(path, number):
    print(
        f"{path}: left out {number} rows whose {_ANSWER!r} is {' or '.join(_REFUSED)}: annotators "
        "refused their labels"
    )


def is_text(row: Row, words_names: Sequence[str]) -> bool:
    """Returns whether a row has a text, whose words may be tagged by spans, and not only words."""
    has_words = any(
        isinstance(row.get(name), list) and row[name] and isinstance(row[name][0], str)
        for name in words_names
    )
    return isinstance(row.get("text"), str) and not has_words


def _word_spans(row, place):
    """Returns (start, end) in characters of the words of a row's text."""
    text, tokens = row["text"], row.get("tokens")
    if not (isinstance(tokens, list) and tokens and all(isinstance(t, dict) for t in tokens)):
        return list(_words_of(text))
    for token in tokens:
        start, end = token.get("start"), token.get("end")
        if not (type(start) is type(end) is int and 0 <= start < end <= len(text)):
            shown = json_files.shown(token)
            raise TableError(
                f"{place}: the token {shown} needs the start and end of a part of 'text'"
            )
    return [(token["start"], token["end"]) for token in tokens]


def _words_of(text):
    """Yields (start, end) of what stands between spaces and punctuation, and of each sign."""
    start = end = 0
    is_word = False
    for place, character in enumerate(text):
        # Joiners and other characters that nobody can see are within words, or of no word.
        if _is_unseen(character) and character != _BREAK:
            continue
        # Accents and vowel signs, which are characters of their own in many scripts, belong to the
        # letter before them.
        is_mark = unicodedata.category(character).startswith("M")
        is_letter = character.isalnum() or character == "_"
        if not (start < end and (is_mark or (is_letter and is_word))):
            if start < end:
                yield start, end
            start, is_word = place, is_letter or is_mark
        end = place if character.isspace() or character == _BREAK else place + 1
    if start < end:
        yield start, end


def _seen(text, start, end):
    """Returns the start and end of a part of a text without unseen characters around it."""
    while start < end <= len(text) and _is_unseen(text[end - 1]):
        end -= 1
    while 0 <= start < end and _is_unseen(text[start]):
        start += 1
    return start, end


def _is_unseen(character):
    return unicodedata.category(character) == "Cf"


def words_and_tags(
    row: Row, place: str, with_tags: bool = True
) -> tuple[list[str], list[str] | None]:
    """Returns the words of the text of a row for which `is_text` holds, and their tags, as its
    spans say them; None without `with_tags`."""
    words = _word_spans(row, place)
    texts = [row["text"][start:end] for start, end in words]
    if not words:
        raise TableError(f"{place}: 'text' is {json_files.shown(row['text'])}; it must have words")
    if not with_tags:
        return texts, None
    spans = next((row[name] for name in SPANS_NAMES if isinstance(row.get(name), list)), None)
    if spans is None:
        raise TableError(
            f"{place}: has a 'text', but not a list of spans under {' or '.join(SPANS_NAMES)}; "
            "give spans, or lists of words and tags"
        )
    tags = [entities.OUTSIDE] * len(words)
    for span in spans:
        start, end, label = _span(span, place)
        # A person who marks a span on a screen does not see which of these characters are in it.
        start, end = _seen(row["text"], start, end)
        inside = [i for i, (first, last) in enumerate(words) if first < end and last > start]
        if not inside or (start, end) != _seen(
            row["text"], words[inside[0]][0], words[inside[-1]][1]
        ):
            shown, of_words = map(json_files.shown, (span, [texts[number] for number in inside]))
            rule = f"must begin and end where words do; it overlaps the words {of_words}"
            raise TableError(f"{place}: the span {shown} {rule}")
        # A word has one tag, so spans within spans cannot be kept.
        if any(tags[number] != entities.OUTSIDE for number in inside):
            raise TableError(f"{place}: the span {json_files.shown(span)} overlaps another span")
        for number in inside:
            tags[number] = ("B-" if number == inside[0] else "I-") + label
    return texts, tags


def _span(span, place):
    """Returns (start, end, label) of a span, an object or a list, by the names that tools for
    annotation give them."""
    values = span
    if isinstance(span, dict):
        names = ("start", "start_offset"), ("end", "end_offset"), ("label", "labels")
        values = [next((span[key] for key in keys if key in span), None) for keys in names]
    if not isinstance(values, list) or len(values) != 3 or {*map(type, values[:2])} != {int}:
        raise TableError(
            f"{place}: a span is {json_files.shown(span)}; it must have a start, an end and a label"
        )
    return *values[:2], labels.name_of(labels.alone(values[2]), place)
