"""Tokens that Hugging Face's files of a tokenizer add to its vocabulary.

transformers takes added tokens out of a text before it cuts the text. The tokenizers here do not do
so.
"""

import os
from collections.abc import Iterator, Sequence

from bert_estimator.interchange.hugging_face import special_tokens, tokenizer_json
from bert_estimator.system import json_files
from bert_estimator.tokenization import SPECIAL_TOKENS

_ADDED = "added_tokens.json"
# Keys of tokenizer_config.json and special_tokens_map.json that list tokens without their ids.
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def check(folder: str, vocab_file: str | None, tokens: Sequence[str] | None) -> None:
    """Checks that a directory adds no tokens but the special tokens of its vocabulary.

    Args:
      folder: the directory.
      vocab_file: its vocabulary, for errors; None if it does not have one.
      tokens: the tokens of the vocabulary in the order of their ids; None without a vocabulary.

    Raises:
      ValueError: it adds another token, or one of them with another id; or a file is damaged.
    """
    allowed = list(SPECIAL_TOKENS)
    if vocab_file is None or vocab_file.endswith(".model"):
        allowed += special_tokens.PIECES.values()
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


def _listed(folder: str) -> Iterator[tuple[str, str, int | None]]:
    """Yields (file and key, token, id or None) of all files that add tokens."""
    path = os.path.join(folder, _ADDED)
    values = json_files.read(path) if os.path.exists(path) else {}
    for token, number in values.items():
        yield path, token, json_files.check(number, int, f"{path}: {token}")
    for path, values in special_tokens.read(folder):
        # Only tokenizer_config.json has it.
        decoder = json_files.field(values, "added_tokens_decoder", dict, path, default={})
        place = f"{path}: added_tokens_decoder"
        for number, token in decoder.items():
            if not (number.isascii() and number.isdecimal() and len(number) < 10):
                shown = json_files.shown(number)
                raise ValueError(f"{place}: the key {shown} must be a token's id")
            yield place, special_tokens.content(token, f"{place}: {number}"), int(number)
        for key in _LISTS:
            place = f"{path}: {key}"
            listed = values.get(key) or []
            if isinstance(listed, dict):
                listed = list(listed.values())
            for token in json_files.check(listed, list, place):
                yield place, special_tokens.content(token, place), None
    values = tokenizer_json.read(folder) or {}
    path = os.path.join(folder, tokenizer_json.FILE)
    for token, number in tokenizer_json.added_tokens(values, path):
        yield f"{path}: added_tokens", token, number
