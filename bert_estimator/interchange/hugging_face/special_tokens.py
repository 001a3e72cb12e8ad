"""The names of the special tokens in Hugging Face's files of a tokenizer.

There they are settings. The tokenizers here have fixed names.
"""

import os
from typing import Any

from bert_estimator.system import json_files
from bert_estimator.tokenization import CLS, MASK, PAD, SEP, UNK

TOKENIZER, SPECIAL_TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"

# What ALBERT's SentencePiece models call two of the special tokens.
PIECES = {PAD: "<pad>", UNK: "<unk>"}
# Keys of both files -> the token that each names.
_NAMES = {
    "unk_token": UNK,
    "sep_token": SEP,
    "pad_token": PAD,
    "cls_token": CLS,
    "mask_token": MASK,
}


def names(is_sentencepiece: bool) -> dict[str, str]:
    """Returns key -> name of the special tokens of a vocabulary, as tokenizer_config.json has it.

    Args:
      is_sentencepiece: whether the vocabulary is an ALBERT's SentencePiece model.
    """
    own = PIECES if is_sentencepiece else {}
    return {key: own.get(token, token) for key, token in _NAMES.items()}


def check(folder: str, vocab_file: str | None) -> None:
    """Checks that the files of a directory give the special tokens their usual names.

    Args:
      folder: the directory.
      vocab_file: its vocabulary; None if it does not have one.

    Raises:
      ValueError: a special token has another name, or a file is damaged.
    """
    for path, values in read(folder):
        for key, usual in _NAMES.items():
            given = values.get(key)
            allowed = _allowed(usual, vocab_file)
            if given is not None and content(given, f"{path}: {key}") not in allowed:
                raise ValueError(
                    f"{path}: {key}={json_files.shown(given)} is not supported: the model would "
                    f"get {' or '.join(allowed)} instead. If the model was trained with "
                    f"{' or '.join(allowed)}, write that in the file"
                )


def read(folder: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns (path, values) of tokenizer_config.json and special_tokens_map.json, if there.

    Raises:
      ValueError: a file is damaged.
    """
    found = [os.path.join(folder, name) for name in (TOKENIZER, SPECIAL_TOKENS_MAP)]
    return [(path, json_files.read(path)) for path in filter(os.path.exists, found)]


def content(token: Any, place: str) -> str:
    """Returns a token that is written as a string, or as an object that tells more about it.

    Args:
      token: what the file has.
      place: file and key, for errors.

    Raises:
      ValueError: it is neither.
    """
    if isinstance(token, dict):
        return json_files.field(token, "content", str, place)
    return json_files.check(token, str, place)


def _allowed(token, vocab_file):
    """Returns what a special token may be called in a vocabulary, or in any if that is missing."""
    if vocab_file is not None and not vocab_file.endswith(".model"):
        return (token,)
    if token == PAD or (token == UNK and vocab_file is None):
        return (PIECES[token], token)
    return (PIECES.get(token, token),)
