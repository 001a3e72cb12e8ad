"""How text is cased before it meets a vocabulary, and with which casing a vocabulary was made.

A tokenizer with the wrong casing still works, but text never reaches the tokens that it cannot
make, and becomes other pieces than the network has learned, or [UNK].
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

_log = logging.getLogger(__name__)

# Published uncased vocabularies have hardly any capitals; cased ones have them in a third of words.
_MOST_STRAY_CAPITALS = 0.05
# The word pieces of BERT-Base, Uncased, do not have accents. A vocabulary with a few kana, whose
# sound marks are stripped, is to pass. Languages that are written with accents are far above.
_MOST_STRAY_ACCENTS = 0.03
_FEW_WORDS = 1000
_EXAMPLES = 3


class Casing(NamedTuple):
    """Says what happens to capitals and accents; the keys of records and task.json."""

    do_lower_case: bool
    # None for what is usual: WordPiece strips the accents of text that it lower-cases, and
    # SentencePiece, as ALBERT uses it, of all text.
    strip_accents: bool | None = None


class Vocabulary(NamedTuple):
    """Counts what a vocabulary's tokens, without special tokens, tell of the text it was made
    of."""

    words: int
    letters: int  # tokens whose letters have a case
    capitals: int  # tokens with capitals
    accented: list[str]  # the tokens that no text reaches if accents are stripped

    @property
    def is_cased(self) -> bool:
        """Returns whether it was made of text that was not lower-cased."""
        # A few capitals stray into vocabularies of lower-cased text, too.
        return self.capitals > _MOST_STRAY_CAPITALS * self.letters

    @property
    def is_lower_cased(self) -> bool:
        """Returns whether it was made of lower-cased text, as many letters with a case can tell."""
        return not self.capitals and self.letters > _FEW_WORDS

    @property
    def has_accents(self) -> bool:
        """Returns whether it was made of text whose accents were not stripped."""
        return len(self.accented) > _MOST_STRAY_ACCENTS * self.words


def counted(tokens: Sequence[str], strip: Callable[[str], str]) -> Vocabulary:
    """Returns what the tokens of a vocabulary tell; `strip` takes the accents of a token away."""
    words = [token for token in tokens if not token.startswith(("[", "<"))]
    return Vocabulary(
        len(words),
        sum(word.upper() != word.lower() for word in words),
        sum(word != word.lower() for word in words),
        [word for word in words if not word.isascii() and strip(word) != word],
    )


def is_cased(tokens: Sequence[str]) -> bool:
    """Returns whether a vocabulary was made of text that was not lower-cased."""
    return counted(tokens, str).is_cased


def check(
    path: str, vocabulary: Vocabulary, casing: Casing, strips: bool, usual: Callable[[bool], bool]
) -> None:
    """Refuses a casing with which text would not reach the tokens of a vocabulary."""
    lower = casing.do_lower_case
    if lower and vocabulary.is_cased:
        raise ValueError(
            f"{path}: {vocabulary.capitals} of its tokens have capitals, so it was made of text "
            f"that was not lower-cased. Give {_advice(vocabulary, False, usual)}"
        )
    if not lower and vocabulary.is_lower_cased:
        raise ValueError(
            f"{path}: its tokens do not have capitals, so it was made of lower-cased text. "
            f"Give {_advice(vocabulary, True, usual)}"
        )
    accented = vocabulary.accented
    if strips and accented:
        examples = ", ".join(map(repr, accented[:_EXAMPLES]))
        lost = (
            f"{path}: {len(accented)} of its {vocabulary.words} tokens have accents or other "
            f"combining marks (such as {examples}), which"
        )
        # A few such tokens, or many if a flag asks for stripped text, lead to a warning only.
        if vocabulary.has_accents and casing.strip_accents is None:
            raise ValueError(
                f"{lost} text loses by default, so it was made of text that keeps them. Give "
                "strip_accents=False (--nostrip_accents); or strip_accents=True (--strip_accents), "
                "if a network was trained with this vocabulary and without them"
            )
        _log.warning(
            "%s text loses: it does not reach these tokens. strip_accents=False "
            "(--nostrip_accents) keeps them.",
            lost,
        )
    if lower and not strips and not accented and vocabulary.letters > _FEW_WORDS:
        _log.warning(
            "%s: its tokens do not have accents, so text with accents becomes other pieces or "
            "[UNK]. If it was made of text without them, give strip_accents=True "
            "(--strip_accents).",
            path,
        )


def _advice(vocabulary, lower, usual):
    """Returns the arguments and flags of the casing that a vocabulary was made with."""
    arguments, flag = f"do_lower_case={lower}", "--do_lower_case" if lower else "--nodo_lower_case"
    if usual(lower) and vocabulary.has_accents:
        return f"{arguments} and strip_accents=False ({flag} --nostrip_accents)"
    return f"{arguments} ({flag})"


def case_beside_sigma(character: str) -> str:
    """Returns how `str.lower` takes a character beside a sigma, whose lower case depends on it: "c"
    if it has a case, "i" if it is ignored, or "o" for another one."""
    if (character + "Σ").lower().endswith("ς"):
        return "c"
    return "i" if ("a" + character + "Σ").lower().endswith("ς") else "o"
