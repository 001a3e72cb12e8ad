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
    path: str, vocabulary: Vocabulary, casing: Casing, known: Casing | None, place: str | None
) -> None:
    """Warns of a casing, without None, with which text would not reach the tokens of a vocabulary;
    raises ValueError if only a flag, and not what is `known` of the network from the file `place`,
    lower-cases text for a vocabulary with capitals."""
    (lower, strips), accented = casing, vocabulary.accented

    def said(tokens, what, flag):
        key = flag.removeprefix("no")
        is_of_files = known is not None and getattr(known, key) == getattr(casing, key)
        correct = f"correct {key} in {place}, if that is not how the network was trained"
        return f"{path}: {tokens}. To {what}, {correct if is_of_files else f'give --{flag}'}."

    if lower and vocabulary.is_cased:
        tokens = f"{vocabulary.capitals} of its tokens have capitals, which lower-cased text lacks"
        if known is None or not known.do_lower_case:
            raise ValueError(said(tokens, "keep capitals", "nodo_lower_case"))
        _log.warning("%s", said(tokens, "keep capitals", "nodo_lower_case"))
    if not lower and vocabulary.is_lower_cased:
        tokens = "its tokens do not have capitals, so words with capitals become [UNK]"
        _log.warning("%s", said(tokens, "lower-case text", "do_lower_case"))
    if strips and accented:
        examples = ", ".join(map(repr, accented[:_EXAMPLES]))
        tokens = (
            f"{len(accented)} of its {vocabulary.words} tokens have accents or other combining "
            f"marks (such as {examples}), which text loses"
        )
        _log.warning("%s", said(tokens, "keep accents", "nostrip_accents"))
    if lower and not strips and not accented and vocabulary.letters > _FEW_WORDS:
        tokens = "its tokens do not have accents, so words with accents become [UNK]"
        _log.warning("%s", said(tokens, "strip accents", "strip_accents"))


def case_beside_sigma(character: str) -> str:
    """Returns how `str.lower` takes a character beside a sigma, whose lower case depends on it: "c"
    if it has a case, "i" if it is ignored, or "o" for another one."""
    if (character + "Σ").lower().endswith("ς"):
        return "c"
    return "i" if ("a" + character + "Σ").lower().endswith("ς") else "o"
