"""The interface of tokenizers, and which one a pair of flags means."""

from collections.abc import Iterable
from typing import Protocol

from bert_estimator.tokenization.sentencepiece_tokenizer import SentencePieceTokenizer
from bert_estimator.tokenization.wordpiece import FullTokenizer

# Published uncased vocabularies hold next to no capitals, cased ones in a third of their words.
_MOST_STRAY_CAPITALS = 0.05
_FEW_WORDS = 1000


class Tokenizer(Protocol):
    """Text to tokens to ids. `FullTokenizer` and `SentencePieceTokenizer` are such.

    Attributes:
      vocab_size: number of ids.
      do_lower_case: whether text is lower-cased.
      cls_id, sep_id, mask_id, pad_id: ids of the special tokens.
    """

    vocab_size: int
    do_lower_case: bool
    cls_id: int
    sep_id: int
    mask_id: int
    pad_id: int

    def tokenize(self, text: str) -> list[str]: ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text's tokens, without special tokens."""

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]: ...

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]: ...

    def is_continuation(self, token: str) -> bool:
        """True for a token that continues a word; whole-word masking keeps words together by it."""


def open_tokenizer(vocab_file: str, do_lower_case: bool = True) -> Tokenizer:
    """Opens a vocabulary: SentencePiece if the file's name ends in `.model`, else WordPiece.

    Raises:
      ValueError: the file is none such, or was made with the other casing; the message says why.
      OSError: it cannot be read.
    """
    if vocab_file.endswith(".model"):
        tokenizer: Tokenizer = SentencePieceTokenizer(vocab_file, do_lower_case)
    else:
        tokenizer = FullTokenizer(vocab_file, do_lower_case)
    _check_casing(vocab_file, tokenizer)
    return tokenizer


def is_cased(tokens: Iterable[str]) -> bool:
    """Whether a vocabulary was made of text in its own case: more of its tokens have capitals than
    the few that stray into one of lower-cased text. Special tokens do not count."""
    capitals, letters = _count_capitals(tokens)
    return capitals > _MOST_STRAY_CAPITALS * letters


def _count_capitals(tokens: Iterable[str]) -> tuple[int, int]:
    """Returns the number of tokens with capitals, and of those with letters that have a case."""
    words = [token for token in tokens if not token.startswith(("[", "<"))]
    capitals = sum(word != word.lower() for word in words)
    return capitals, sum(word.upper() != word.lower() for word in words)


def _check_casing(vocab_file: str, tokenizer: Tokenizer) -> None:
    """Capitals in a vocabulary say that its text kept them; small letters alone that it did not.

    A text prepared in the other way would still be tokenized, into other pieces than those that the
    network has learnt. A vocabulary of few letters, such as a Chinese one, says nothing.
    """
    tokens = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    capitals, letters = _count_capitals(tokens)
    if tokenizer.do_lower_case and is_cased(tokens):
        raise ValueError(
            f"{vocab_file}: {capitals} of its tokens have capitals: it was made of text in its own "
            "case. Give do_lower_case=False"
        )
    if not tokenizer.do_lower_case and not capitals and letters > _FEW_WORDS:
        raise ValueError(
            f"{vocab_file}: none of its tokens has a capital: it was made of lower-cased text. "
            "Give do_lower_case=True"
        )
