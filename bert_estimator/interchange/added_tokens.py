"""Tokens that Hugging Face's files of a tokenizer add to its vocabulary; names of special tokens.

transformers takes added tokens out of a text before it cuts the text. The tokenizers here do not do
so. The names of the special tokens are settings there; here they are fixed.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from bert_estimator import json_files
from bert_estimator.interchange import tokenizer_json
from bert_estimator.tokenization import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK

_ADDED, _CONFIG, _SPECIAL = "added_tokens.json", "tokenizer_config.json", "special_tokens_map.json"
# Keys of tokenizer_config.json and special_tokens_map.json that list tokens without their ids.
_LISTS = ("additional_special_tokens", "extra_special_tokens")
# What ALBERT's SentencePiece models call two of the special tokens.
_PIECES = {PAD: "<pad>", UNK: "<unk>"}
# Keys of tokenizer_config.json and special_tokens_map.json that name a special token.
_NAMES = {
    "pad_token": PAD,
    "unk_token": UNK,
    "cls_token": CLS,
    "sep_token": SEP,
    "mask_token": MASK,
}


def check(folder: str, vocab_file: str | None, tokens: Sequence[str] | None) -> None:
    """Checks that a directory adds no tokens but the special tokens of its vocabulary, and that
    these have their usual names.

    Args:
      folder: the directory.
      vocab_file: its vocabulary, for errors; None if it does not have one.
      tokens: the tokens of the vocabulary in the order of their ids; None without a vocabulary.

    Raises:
      ValueError: it adds another token, or one of them with another id; a special token has
        another name; or a file is damaged.
    """
    _check_names(folder, vocab_file)
    allowed = list(SPECIAL_TOKENS)
    if vocab_file is None or vocab_file.endswith(".model"):
        allowed += _PIECES.values()
    for place, token, number in _listed(folder):
        if token not in allowed:
            known = "" if tokens is None or token in tokens else f", which {vocab_file} lacks,"
            raise ValueError(
                f"{place}: the added token {json_files.shown(token)}{known} is not supported: "
                "transformers takes it out of a text as a whole, but here it would be cut into "
                f"pieces. Allowed are {', '.join(allowed)}. To use the model for texts without "
                "this token all the same, take it out of the file"
            )
        if tokens is None or number is None:
            continue
        found = tokens[number] if 0 <= number < len(tokens) else None
        if found != token:
            raise ValueError(
                f"{place}: {token} has the id {number}, but in {vocab_file} "
                + (f"this is the id of {json_files.shown(found)}" if found else "no token has it")
                + ". The two must agree. Correct the file that the model was not trained with"
            )


def _check_names(folder: str, vocab_file: str | None) -> None:
    """Raises ValueError if a special token has another name than the tokenizers here give it."""
    for name in (_CONFIG, _SPECIAL):
        path, values = _read(folder, name)
        for key, usual in _NAMES.items():
            given = values.get(key)
            allowed = _names_of(usual, vocab_file)
            if given is not None and _content(given, f"{path}: {key}") not in allowed:
                raise ValueError(
                    f"{path}: {key}={json_files.shown(given)} is not supported: the model would "
                    f"get {' or '.join(allowed)} instead. If the model was trained with "
                    f"{' or '.join(allowed)}, write that in the file"
                )


def _names_of(token, vocab_file):
    """Returns what a special token may be called in a vocabulary, or in any if that is missing."""
    if vocab_file is not None and not vocab_file.endswith(".model"):
        return (token,)
    if token == PAD or (token == UNK and vocab_file is None):
        return (_PIECES[token], token)
    return (_PIECES.get(token, token),)


def _listed(folder: str) -> Iterator[tuple[str, str, int | None]]:
    """Yields (file and key, token, id or None) of all files that add tokens."""
    path, values = _read(folder, _ADDED)
    for token, number in values.items():
        yield path, token, json_files.check(number, int, f"{path}: {token}")
    path, values = _read(folder, _CONFIG)
    decoder = json_files.field(values, "added_tokens_decoder", dict, path, default={})
    place = f"{path}: added_tokens_decoder"
    for number, token in decoder.items():
        if not (number.isascii() and number.isdecimal() and len(number) < 10):
            raise ValueError(f"{place}: the key {json_files.shown(number)} must be a token's id")
        yield place, _content(token, f"{place}: {number}"), int(number)
    for name in (_CONFIG, _SPECIAL):
        path, values = _read(folder, name)
        for key in _LISTS:
            place = f"{path}: {key}"
            listed = values.get(key) or []
            if isinstance(listed, dict):
                listed = list(listed.values())
            for token in json_files.check(listed, list, place):
                yield place, _content(token, place), None
    values = tokenizer_json.read(folder) or {}
    path = os.path.join(folder, tokenizer_json.FILE)
    for token, number in tokenizer_json.added_tokens(values, path):
        yield f"{path}: added_tokens", token, number


def _read(folder, name) -> tuple[str, dict[str, Any]]:
    path = os.path.join(folder, name)
    return path, json_files.read(path) if os.path.exists(path) else {}


def _content(token, place):
    """Returns a token that is written as a string, or as an object that tells more about it."""
    if isinstance(token, dict):
        return json_files.field(token, "content", str, place)
    return json_files.check(token, str, place)
