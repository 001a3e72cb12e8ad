"""Texts as tools for annotation write them, with spans of characters, which become tags of IOB2."""

import re
from collections.abc import Sequence

from bert_estimator.system import json_files
from bert_estimator.tokenization import entities
from input_pipelines.tasks import labels
from input_pipelines.tasks.table_files import Row, TableError

_SPANS_NAMES = ("spans", "entities", "label", "labels")
_WORD = re.compile(r"\w+|[^\w\s]")


def is_text(row: Row, words_names: Sequence[str]) -> bool:
    """Returns whether a row has a text, whose words may be tagged by spans, and not only words."""
    has_words = any(
        isinstance(row.get(name), list) and row[name] and isinstance(row[name][0], str)
        for name in words_names
    )
    return isinstance(row.get("text"), str) and not has_words


def word_spans(row: Row, place: str) -> list[tuple[int, int]]:
    """Returns (start, end) in characters of the words of a row's text: of its tokens, as prodigy
    gives them, or of what stands between spaces and punctuation."""
    text, tokens = row["text"], row.get("tokens")
    if not (isinstance(tokens, list) and tokens and all(isinstance(t, dict) for t in tokens)):
        return [match.span() for match in _WORD.finditer(text)]
    for token in tokens:
        start, end = token.get("start"), token.get("end")
        if not (type(start) is type(end) is int and 0 <= start < end <= len(text)):
            shown = json_files.shown(token)
            raise TableError(
                f"{place}: the token {shown} needs the start and end of a part of 'text'"
            )
    return [(token["start"], token["end"]) for token in tokens]


def words_and_tags(
    row: Row, place: str, with_tags: bool = True
) -> tuple[list[str], list[str] | None]:
    """Returns the words of a row's text, and their tags, as its spans say them.

    A span is an object or a list: of its start and end in characters, and of its label.
    """
    words = word_spans(row, place)
    texts = [row["text"][start:end] for start, end in words]
    if not words:
        raise TableError(f"{place}: 'text' is {json_files.shown(row['text'])}; it must have words")
    if not with_tags:
        return texts, None
    spans = next((row[name] for name in _SPANS_NAMES if isinstance(row.get(name), list)), None)
    if spans is None:
        raise TableError(
            f"{place}: has a 'text', but not a list of spans under {' or '.join(_SPANS_NAMES)}; "
            "give spans, or lists of words and tags"
        )
    tags = [entities.OUTSIDE] * len(words)
    for span in spans:
        start, end, label = _span(span, place)
        inside = [i for i, (first, last) in enumerate(words) if first < end and last > start]
        if not inside or (words[inside[0]][0], words[inside[-1]][1]) != (start, end):
            shown, of_words = map(json_files.shown, (span, [texts[number] for number in inside]))
            rule = f"must begin and end where words do; it overlaps the words {of_words}"
            raise TableError(f"{place}: the span {shown} {rule}")
        if any(tags[number] != entities.OUTSIDE for number in inside):
            raise TableError(f"{place}: the span {json_files.shown(span)} overlaps another span")
        for number in inside:
            tags[number] = ("B-" if number == inside[0] else "I-") + label
    return texts, tags


def _span(span, place):
    """Returns (start, end, label) of a span, by the names that tools for annotation give them."""
    values = span
    if isinstance(span, dict):
        names = ("start", "start_offset"), ("end", "end_offset"), ("label", "labels")
        values = [next((span[key] for key in keys if key in span), None) for keys in names]
    if not isinstance(values, list) or len(values) != 3 or {*map(type, values[:2])} != {int}:
        raise TableError(
            f"{place}: a span is {json_files.shown(span)}; it must have a start, an end and a label"
        )
    return *values[:2], labels.name_of(labels.alone(values[2]), place)
