"""The interface of tokenizers, and the one way to open a tokenizer."""

from collections.abc import Iterable
from typing import Protocol

from bert_estimator.tokenization.offsets import Piece
from bert_estimator.tokenization.sentencepiece_tokenizer import SentencePieceTokenizer
from bert_estimator.tokenization.wordpiece import FullTokenizer

# Published uncased vocabularies have hardly any capitals; cased ones have them in a third of words.
_MOST_STRAY_CAPITALS = 0.05
_FEW_WORDS = 1000


class Tokenizer(Protocol):
    """Turns text into tokens and ids; `FullTokenizer` and `SentencePieceTokenizer` implement it.

    Attributes:
      vocab_size: number of ids.
      do_lower_case: whether text is lower-cased.
      cls_id, sep_id, mask_id, pad_id, unk_id: ids of the special tokens.
    """

    vocab_size: int
    do_lower_case: bool
    cls_id: int
    sep_id: int
    mask_id: int
    pad_id: int
    unk_id: int

    def tokenize(self, text: str) -> list[str]:
        """Splits a text into tokens."""

    def tokenize_with_offsets(self, text: str) -> list[Piece]:
        """Splits a text into tokens, each with the characters of the text that it comes from.

        The tokens are the tokens of `tokenize`, in the same order. The accent of a decomposed
        letter belongs to the token of the letter; whitespace does not belong to any token. A token
        that only stands for a space comes from an empty range.
        """

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text's tokens, without special tokens."""

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]: ...

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]: ...

    def is_continuation(self, token: str) -> bool:
        """Returns True for a token that continues a word, False for a token that starts a word.

        Whole-word masking masks a token with the tokens that continue it.
        """


def open_tokenizer(vocab_file: str, do_lower_case: bool | None = True) -> Tokenizer:
    """Opens a vocabulary: SentencePiece if the file's name ends in `.model`, else WordPiece.

    Args:
      vocab_file: the file.
      do_lower_case: whether text is lower-cased; None to tell it by the vocabulary's capitals.

    Raises:
      ValueError: the file is not a vocabulary, or was made with the other casing; the message says
        why.
      OSError: it cannot be read.
    """
    make = SentencePieceTokenizer if vocab_file.endswith(".model") else FullTokenizer
    tokenizer: Tokenizer = make(vocab_file, do_lower_case is not False)
    if do_lower_case is not None:
        _check_casing(vocab_file, tokenizer)
    elif is_cased(_tokens(tokenizer)):
        tokenizer = make(vocab_file, False)
    return tokenizer


def _tokens(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))


def is_cased(tokens: Iterable[str]) -> bool:
    """Returns whether a vocabulary was made of text that was not lower-cased.

    Such a vocabulary has capitals in many tokens; a few capitals stray into vocabularies of
    lower-cased text too. Special tokens do not count.
    """
    capitals, letters = _count_capitals(tokens)
    return capitals > _MOST_STRAY_CAPITALS * letters


def _count_capitals(tokens: Iterable[str]) -> tuple[int, int]:
    """Returns (number of tokens with capitals, number of tokens whose letters have a case)."""
    words = [token for token in tokens if not token.startswith(("[", "<"))]
    capitals = sum(word != word.lower() for word in words)
    return capitals, sum(word.upper() != word.lower() for word in words)


def _check_casing(vocab_file: str, tokenizer: Tokenizer) -> None:
    """Refuses a tokenizer whose casing is not the casing that its vocabulary was made with.

    The tokenizer would still work, but would make other pieces than the network has learnt. The
    check relies on capitals in the vocabulary. A vocabulary without many cased letters, such as a
    Chinese vocabulary, passes.
    """
    tokens = _tokens(tokenizer)
    capitals, letters = _count_capitals(tokens)
    if tokenizer.do_lower_case and is_cased(tokens):
        raise ValueError(
            f"{vocab_file}: {capitals} of its tokens have capitals, so it was made of text that "
            "was not lower-cased. Give do_lower_case=False (--nodo_lower_case)"
        )
    if not tokenizer.do_lower_case and not capitals and letters > _FEW_WORDS:
        raise ValueError(
            f"{vocab_file}: its tokens do not have capitals, so it was made of lower-cased text. "
            "Give do_lower_case=True (--do_lower_case)"
        )
