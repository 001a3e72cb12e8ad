"""The words of a text, in scripts with and without spaces between words.

Spaces separate words. Each ideograph is a word, as for the tokenizer (`wordpiece.is_cjk`). In other
scripts that are written without spaces (Thai, Lao, Burmese, Khmer, Tibetan, Hiragana and Katakana),
each letter is a word together with the signs on it, since where their words end is not known
without a dictionary.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from bert_estimator.tokenization.wordpiece import CJK_BLOCKS

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
    """Returns the share of the characters, without whitespace, that are letters or signs on them.

    Signs are Unicode's marks, such as accents and the vowels of Indian scripts.
    """
    numbers = Counter("".join("".join(document).split()))
    letters = sum(
        number for char, number in numbers.items() if unicodedata.category(char)[0] in "LM"
    )
    return letters / max(1, numbers.total())
