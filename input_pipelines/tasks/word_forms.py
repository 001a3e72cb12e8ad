"""What a word of a tagged sentence is: what stands between spaces, or a single character.

Chinese is usually tagged character by character. A text for such a model does not have spaces, and
is split as the sentences of its training were.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bert_estimator.system import json_files

# Chinese characters and kana, with their marks.
_EASTERN = "\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
_HAS_EASTERN = re.compile(f"[{_EASTERN}]")
_MOST_OTHERS = 0.01  # a share of slips

SPACES = "spaces"
FORMS = {
    SPACES: re.compile(r"\S+"),
    "characters": re.compile(r"\S"),
    "ideographs": re.compile(rf"[^\W{_EASTERN}]+|\S"),
}
"""What words are (single characters are all, or the Chinese ones) -> an expression of a word."""


def of_words(sentences: Sequence[Sequence[str]]) -> str:
    """Returns what the words of sentences are, one of `FORMS`."""
    words = list(itertools.chain.from_iterable(sentences))
    eastern = list(filter(_HAS_EASTERN.search, words))
    if not _are_single(eastern):
        return SPACES
    return "characters" if _are_single(words) else "ideographs"


def _are_single(words):
    return bool(words) and sum(len(word) > 1 for word in words) <= _MOST_OTHERS * len(words)


def recorded(task: Mapping[str, Any], path: str) -> str:
    """Returns what words are by the values of task.json; ValueError if it is not one of `FORMS`."""
    form = json_files.field(task, "words", str, path, default=SPACES)
    if form not in FORMS:
        raise ValueError(f"{path}: words must be one of {', '.join(FORMS)}, not {form!r}")
    return form


def split(text: str, form: str) -> list[str]:
    """Returns the words of a text, which are of one of `FORMS`."""
    return FORMS[form].findall(text)
