"""The interface of tokenizers, and the one way to open a tokenizer."""

import functools
import sys
from collections.abc import Iterable
from typing import Protocol

from bert_estimator.storage import remote
from bert_estimator.tokenization import casing
from bert_estimator.tokenization.casing import Casing
from bert_estimator.tokenization.offsets import Piece
from bert_estimator.tokenization.sentencepiece_tokenizer import SentencePieceTokenizer
from bert_estimator.tokenization.wordpiece import FullTokenizer


class Tokenizer(Protocol):
    """Turns text into tokens and ids; `FullTokenizer` and `SentencePieceTokenizer` implement it."""

    vocab_size: int  # number of ids
    do_lower_case: bool
    strips_accents: bool
    # Both, with None for what is usual, for records.
    casing: Casing
    cls_id: int
    sep_id: int
    mask_id: int
    pad_id: int
    unk_id: int

    def tokenize(self, text: str) -> list[str]:
        """Splits a text into tokens."""

    def tokenize_with_offsets(self, text: str) -> list[Piece]:
        """Splits a text into the tokens of `tokenize`, each with the characters that it comes from.

        The accent of a decomposed letter belongs to the token of the letter; whitespace does not
        belong to any token. A token that only stands for a space comes from an empty range.
        """

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text's tokens, without special tokens."""

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]: ...

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]: ...

    def is_continuation(self, token: str) -> bool:
        """Returns True for a token that continues a word; whole-word masking masks it, too."""

    def without_accents(self, text: str) -> str:
        """Returns a text without its accents, as the tokenizer strips them."""


def open_tokenizer(
    vocab_file: str,
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
    known: Casing | None = None,
    place: str | None = None,
) -> Tokenizer:
    """Opens a vocabulary: SentencePiece if the file's name ends in `.model`, else WordPiece. What
    the arguments leave open is as `known` of the network that reads the tokens, by the file `place`
    or, without one, its run's own record; if nothing is known, the vocabulary tells it."""
    tokenizer = reopen_tokenizer(vocab_file, known or Casing(True))
    before = known and Casing(tokenizer.do_lower_case, tokenizer.strips_accents)
    tokens = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    vocabulary = casing.counted(tokens, tokenizer.without_accents)
    told = known
    if known is None:
        lower = not vocabulary.is_cased if do_lower_case is None else do_lower_case
        told = Casing(lower, False if vocabulary.has_accents else None)
    asked = (do_lower_case, strip_accents)
    chosen = Casing(*(t if a is None else a for a, t in zip(asked, told, strict=True)))
    tokenizer = reopen_tokenizer(vocab_file, chosen)
    if (asked != (None, None)) if known is None else (place is not None):
        does = Casing(tokenizer.do_lower_case, tokenizer.strips_accents)
        casing.check(vocab_file, vocabulary, does, before, place)
    parts = "capitals", "accents (--strip_accents strips them)"
    for flag, does, part in zip(asked, tokenizer.casing, parts, strict=True):
        if known is None and flag is None and does is False:
            said = f"{remote.shown(vocab_file)}: text keeps its {part}, as the vocabulary tells."
            print(said, file=sys.stderr)
    return tokenizer


def reopen_tokenizer(vocab_file: str, casing: Casing) -> Tokenizer:
    """Opens a vocabulary with the casing that something was made with, whatever its tokens tell."""
    make = SentencePieceTokenizer if vocab_file.endswith(".model") else FullTokenizer
    return make(vocab_file, *casing)


def check_rows(vocab_file: str, num_tokens: int, num_rows: int) -> None:
    """Raises ValueError if a vocabulary has more tokens than a network has rows of embeddings; says
    on stderr, once in a process, if it has fewer."""
    if num_tokens > num_rows:
        raise ValueError(
            f"{vocab_file}: has {num_tokens} tokens, but the network only {num_rows}; give the "
            "vocabulary that it was trained with"
        )
    if num_tokens < num_rows:
        _say_unused_rows(vocab_file, num_tokens, num_rows)


@functools.cache
def _say_unused_rows(vocab_file, num_tokens, num_rows):
    print(
        f"{remote.shown(vocab_file)} has {num_tokens} tokens, so that {num_rows - num_tokens} of "
        f"the network's {num_rows} rows of embeddings are of no use. If they are not padding, the "
        "file is not complete.",
        file=sys.stderr,
    )


_MOST_UNKNOWN = 0.2  # share of the tokens; published vocabularies have far below 1 % on their text


def unknown_warning(share: float, what: str) -> str:
    """Returns a warning if too large a share of the tokens of `what` is unknown; else ""."""
    if share <= _MOST_UNKNOWN:
        return ""
    return (
        f"WARNING: {100 * share:.0f} % of {what} are [UNK], of which nothing can be learnt. A word "
        "is [UNK] if it has a character that the vocabulary lacks, or more than 200 characters, as "
        "in scripts without spaces. Use another vocabulary, such as a SentencePiece model, or put "
        "spaces between words."
    )
