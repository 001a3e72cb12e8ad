"""Tokenizers, which turn text into tokens and ids, and the training of vocabularies."""

from bert_estimator.tokenization.casing import Casing, is_cased
from bert_estimator.tokenization.offsets import Piece
from bert_estimator.tokenization.sentencepiece_tokenizer import SentencePieceTokenizer
from bert_estimator.tokenization.tokenizer import (
    Tokenizer,
    check_rows,
    open_tokenizer,
    reopen_tokenizer,
    unknown_warning,
)
from bert_estimator.tokenization.vocabulary import (
    count_words,
    train_sentencepiece,
    train_vocabulary,
    unknown_words_share,
    vocabulary_of,
    write_vocab,
)
from bert_estimator.tokenization.wordpiece import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL_TOKENS,
    UNK,
    BasicTokenizer,
    FullTokenizer,
    WordpieceTokenizer,
    load_vocab,
)

__all__ = [
    "CLS",
    "MASK",
    "PAD",
    "SEP",
    "SPECIAL_TOKENS",
    "UNK",
    "BasicTokenizer",
    "Casing",
    "FullTokenizer",
    "Piece",
    "SentencePieceTokenizer",
    "Tokenizer",
    "WordpieceTokenizer",
    "check_rows",
    "count_words",
    "is_cased",
    "load_vocab",
    "open_tokenizer",
    "reopen_tokenizer",
    "train_sentencepiece",
    "train_vocabulary",
    "unknown_warning",
    "unknown_words_share",
    "vocabulary_of",
    "write_vocab",
]
