"""The special tokens of Hugging Face's files, and other tokens that these add to a vocabulary.

In these files the names of the special tokens are settings. The tokenizers here have fixed names.
transformers takes added tokens out of a text before it cuts the text. The tokenizers here do not do
so.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from bert_estimator.interchange.hugging_face import tokenizer_json
from bert_estimator.system import json_files
from bert_estimator.tokenization import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK

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
_ADDED = "added_tokens.json"
# Keys of tokenizer_config.json and special_tokens_map.json that list tokens without their ids.
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def names(is_sentencepiece: bool) -> dict[str, str]:
    """Returns key -> name of the special tokens of a WordPiece vocabulary or an ALBERT's
    SentencePiece model, as tokenizer_config.json has it."""
    own = PIECES if is_sentencepiece else {}
    return {key: own.get(token, token) for key, token in _NAMES.items()}


def check(folder: str, vocab_file: str | None, tokens: Sequence[str] | None) -> None:
    """Checks that a directory names special tokens as usual, and adds no token to its vocabulary;
    `tokens` are in the order of their ids, and None if there is no vocabulary."""
    _check_names(folder, vocab_file)
    # Files list the special tokens as added tokens, too; the vocabulary has them.
    allowed = list(SPECIAL_TOKENS)
    if vocab_file is None or vocab_file.endswith(".model"):
        allowed += PIECES.values()
    for place, token, number in _added_tokens(folder):
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
        of_vocabulary = tokens[number] if 0 <= number < len(tokens) else None
        if of_vocabulary != token:
            has = f"this is the id of {json_files.shown(of_vocabulary)}"
            raise ValueError(
                f"{place}: {token} has the id {number}, but in {vocab_file} "
                f"{has if of_vocabulary else 'no token has it'}"
                ". The two must agree. Correct the file that the model was not trained with"
            )


def _check_names(folder, vocab_file):
    """Raises ValueError if a file gives a special token another name than the usual one."""
    for path, values in read(folder):
        for key, usual in _NAMES.items():
            name = values.get(key)
            allowed = _allowed_names(usual, vocab_file)
            if name is not None and content(name, f"{path}: {key}") not in allowed:
                raise ValueError(
                    f"{path}: {key}={json_files.shown(name)} is not supported: the model would "
                    f"get {' or '.join(allowed)} instead. If the model was trained with "
                    f"{' or '.join(allowed)}, write that in the file"
                )


def _allowed_names(token, vocab_file):
    """Returns what a special token may be called in a vocabulary, or in any if that is missing."""
    if vocab_file is not None and not vocab_file.endswith(".model"):
        return (token,)
    if token == PAD or (token == UNK and vocab_file is None):
        return (PIECES[token], token)
    return (PIECES.get(token, token),)


def read(folder: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns (path, values) of tokenizer_config.json and special_tokens_map.json, if there."""
    paths = [os.path.join(folder, name) for name in (TOKENIZER, SPECIAL_TOKENS_MAP)]
    return [(path, json_files.read(path)) for path in filter(os.path.exists, paths)]


def content(token: Any, place: str) -> str:
    """Returns a token that is written as a string, or as an object that tells more about it."""
    if isinstance(token, dict):
        return json_files.field(token, "content", str, place)
    return json_files.check(token, str, place)


def _added_tokens(folder: str) -> Iterator[tuple[str, str, int | None]]:
    """Yields (file and key, token, id or None) of all files that add tokens."""
    # Versions of transformers differ in the place where they write them.
    path = os.path.join(folder, _ADDED)
    values = json_files.read(path) if os.path.exists(path) else {}
    for token, number in values.items():
        yield path, token, json_files.check(number, int, f"{path}: {token}")
    for path, values in read(folder):
        # Only tokenizer_config.json has it.
        decoder = json_files.field(values, "added_tokens_decoder", dict, path, default={})
        place = f"{path}: added_tokens_decoder"
        for number, token in decoder.items():
            if not (number.isascii() and number.isdecimal() and len(number) < 10):
                shown = json_files.shown(number)
                raise ValueError(f"{place}: the key {shown} must be a token's id")
            yield place, content(token, f"{place}: {number}"), int(number)
        for key in _LISTS:
            place = f"{path}: {key}"
            listed = values.get(key) or []
            if isinstance(listed, dict):
                listed = list(listed.values())
            for token in json_files.check(listed, list, place):
                yield place, content(token, place), None
    values = tokenizer_json.read(folder) or {}
    path = os.path.join(folder, tokenizer_json.FILE)
    for token, number in tokenizer_json.added_tokens(values, path):
        yield f"{path}: added_tokens", token, number
