"""Leaves out short documents, documents of few letters, and documents in other languages.

`py3langid` detects languages, from the beginning of a document. It errs now and then, mostly in
texts of a few words.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

from bert_estimator.tokenization.wordpiece import CJK_BLOCKS

# Spaces separate words. Each ideograph is a word, as for the tokenizer (`wordpiece.is_cjk`). In
# these scripts, which are written without spaces, each letter is a word together with the signs on
# it, since where their words end is not known without a dictionary.
_WITHOUT_SPACES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x0F00, 0x0FFF),  # Tibetan
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),
    (0xFF66, 0xFF9D),
)


def _classes():
    """Returns regular expressions of a letter that is a word, and of the signs on such a letter."""
    letters, signs = [f"{chr(first)}-{chr(last)}" for first, last in CJK_BLOCKS], []
    for first, last in _WITHOUT_SPACES:
        for char in map(chr, range(first, last + 1)):
            of_category = {"L": letters, "M": signs}.get(unicodedata.category(char)[0])
            if of_category is not None:
                of_category.append(char)
    return f"[{''.join(letters)}]", f"[{''.join(signs)}]"


_WORD = re.compile("({}{}*)".format(*_classes()))


def words_of(document: Sequence[str]) -> list[str]:
    """Returns the words of a document, a sequence of sentences."""
    text = " ".join(document)
    return (text if text.isascii() else _WORD.sub(r" \1 ", text)).split()


def share_of_letters(document: Sequence[str]) -> float:
    """Returns the share of the characters but whitespace that are letters or signs on them."""
    numbers = Counter("".join("".join(document).split()))
    # Signs are Unicode's marks, such as accents and the vowels of Indian scripts.
    letters = sum(
        number for char, number in numbers.items() if unicodedata.category(char)[0] in "LM"
    )
    return letters / max(1, numbers.total())


_CHARACTERS = 2000
"""The number of characters that a language is detected from: quicker than tokenizing a document."""

_SHORT, _FEW_LETTERS, _OTHER_LANGUAGES = "short", "of too few letters", "in other languages"


class DocumentFilter:
    """Leaves out documents that have fewer words, or a smaller share of letters, or another
    language than these, and counts them by reason; a language of "" is any."""

    def __init__(self, min_words: int, min_letters: float, language: str):
        self._min_words, self._min_letters, self._language = min_words, min_letters, language
        if language:
            check_language(language)
        # A reason that is looked for is counted, also if it is 0; the others are not in the report.
        looked_for = {_SHORT: min_words, _FEW_LETTERS: min_letters, _OTHER_LANGUAGES: language}
        self.left_out = Counter({reason: 0 for reason, value in looked_for.items() if value})

    def keeps(self, document: Sequence[str]) -> bool:
        """Returns whether a document, a sequence of sentences, is not left out."""
        reason = self._reason(document) if self.left_out else None
        if reason:
            self.left_out[reason] += 1
        return reason is None

    def _reason(self, document: Sequence[str]) -> str | None:
        # A document is counted once, for the first reason that holds.
        if self._min_words and len(words_of(document)) < self._min_words:
            return _SHORT
        if self._min_letters and share_of_letters(document) < self._min_letters:
            return _FEW_LETTERS
        if self._language and language_of(document) != self._language:
            return _OTHER_LANGUAGES
        return None


def in_words(left_out: Mapping[str, int]) -> str:
    """Returns how many documents were left out for which reasons; "" without reasons."""
    return ", ".join(f"{number} {reason}" for reason, number in left_out.items())


def language_of(document: Sequence[str]) -> str:
    """Returns the code of the language of a document, a sequence of sentences."""
    beginning: list[str] = []
    size = 0
    for sentence in document:
        beginning.append(sentence)
        size += len(sentence) + 1
        if size >= _CHARACTERS:
            break
    return _identifier().classify(" ".join(beginning)[:_CHARACTERS])[0]


def check_language(language: str) -> None:
    """Raises ValueError if a language is not known, or if py3langid is not installed."""
    known = sorted(set(map(str, _identifier().nb_classes)))
    if language not in known:
        raise ValueError(f"language is {language!r}; it must be one of {', '.join(known)}.")


@functools.cache
def _identifier():
    """Returns the detector of languages; it takes a tenth of a gigabyte."""
    try:
        # The package is optional, and its model is loaded only if a language is asked for.
        from py3langid import langid
    except ImportError:
        raise ValueError(
            "language needs py3langid, which is not installed. Install it: pip install "
            "'bert-estimator[language]'"
        ) from None
    langid.set_languages(None)  # loads the model
    return langid.IDENTIFIER
