"""Which characters of a text its tokens come from, through cleaning, casing and decomposition.

A `Piece` is a string that stands for a part of a text. Characters are pieces at first, tokens in
the end. The functions here do to a list of characters what `str` and `unicodedata` do to a string.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """Holds a string, and the range of the characters of the text that it comes from."""

    string: str
    start: int
    end: int


def characters(text: str) -> list[Piece]:
    """Returns the characters of a text, each a piece that stands for itself."""
    return [Piece(char, number, number + 1) for number, char in enumerate(text)]


def joined(pieces: Iterable[Piece]) -> str:
    """Returns the strings of pieces as one string."""
    return "".join(piece.string for piece in pieces)


def lowered(chars: Sequence[Piece]) -> list[Piece]:
    """Returns the characters of `joined(chars).lower()`."""
    sources = [char for char in chars for _ in char.string.lower()]
    # A sigma's lower case depends on the characters around it, but its length does not.
    lower = joined(chars).lower()
    return [source._replace(string=c) for c, source in zip(lower, sources, strict=True)]


def normalized(form: str, chars: Iterable[Piece]) -> list[Piece]:
    """Returns the characters of `unicodedata.normalize(form, joined(chars))`, for NFD and NFKD."""
    result: list[Piece] = []
    marks: list[Piece] = []
    # These forms replace each character by itself, and then sort runs of combining marks by their
    # class (The Unicode Standard, section 3.11).
    for char in chars:
        for part in unicodedata.normalize(form, char.string):
            if unicodedata.combining(part):
                marks.append(char._replace(string=part))
                continue
            if marks:
                result += sorted(marks, key=_combining_class)
                marks = []
            result.append(char._replace(string=part))
    return result + sorted(marks, key=_combining_class)


def words(chars: Iterable[Piece]) -> list[list[Piece]]:
    """Returns the words of `joined(chars).split()`, each a list of characters."""
    result: list[list[Piece]] = [[]]
    for char in chars:
        if not char.string.isspace():
            result[-1].append(char)
        elif result[-1]:
            result.append([])
    return result if result[-1] else result[:-1]


def merged(token: str, chars: Sequence[Piece]) -> Piece:
    """Returns the piece of a token that comes from characters, at least one."""
    return Piece(token, min(char.start for char in chars), max(char.end for char in chars))


def with_marks(text: str, tokens: Sequence[Piece]) -> list[Piece]:
    """Extends tokens over the combining marks that follow them and that no token comes from."""
    limits = [*(token.start for token in tokens), len(text)][1:]
    result = []
    for token, limit in zip(tokens, limits, strict=True):
        end = token.end
        # Tokenizers strip accents. The accent of a decomposed letter is a character of its own, and
        # belongs to what the token stands for.
        while end < limit and unicodedata.category(text[end]).startswith("M"):
            end += 1
        result.append(token._replace(end=end))
    return result


def _combining_class(char: Piece) -> int:
    return unicodedata.combining(char.string)
