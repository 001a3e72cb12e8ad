"""Hugging Face's tokenizer.json: its tokens, and how it cuts text.

Of its tokenizers, the tokenizer of BERT is known here. What the file says of it is compared with
what `bert_estimator.tokenization` does: with anything else, text would be cut into other tokens
than the model knows.
"""

import os
from typing import Any

from bert_estimator.interchange.hugging_face import exact_tokenizer
from bert_estimator.system import json_files
from bert_estimator.tokenization import CLS, SEP, UNK

FILE = "tokenizer.json"
WORDPIECE = "WordPiece"
_NORMALIZER = "BertNormalizer"

# What becomes of a text and of a pair of texts: (token or text, segment).
_SINGLE = [(CLS, 0), ("A", 0), (SEP, 0)]
_PAIR = [*_SINGLE, ("B", 1), (SEP, 1)]

# Why tokenizers that truncate or pad on the left are refused.
OTHER_END = "long texts would lose their end instead of their beginning"
OTHER_POSITIONS = "tokens would have other position ids: this project pads after the text"


def read(folder: str) -> dict[str, Any] | None:
    """Returns the object in a directory's tokenizer.json; None if there is no such file.

    Raises:
      ValueError: the file is damaged.
    """
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        return None
    values = json_files.read(path)
    json_files.field(values, "model", dict, path)
    return values


def is_wordpiece(values: dict[str, Any]) -> bool:
    """Returns whether the model of `read`'s object is WordPiece."""
    return values["model"].get("type") == WORDPIECE


def added_tokens(values: dict[str, Any], path: str) -> list[tuple[str, int]]:
    """Returns (token, id) of the tokens that are taken out of a text before it is cut.

    Args:
      values: what `read` returned.
      path: the file, for errors.

    Raises:
      ValueError: they are not tokens with ids.
    """
    added = json_files.field(values, "added_tokens", list, path, default=[])
    found = []
    for token in json_files.items(added, dict, f"{path}: added_tokens"):
        content = json_files.field(token, "content", str, path)
        number = json_files.check(token.get("id"), int, f"{path}: the id of {content!r}")
        found.append((content, number))
    return found


def tokens(values: dict[str, Any], path: str) -> list[str]:
    """Returns the tokens of a WordPiece model, added tokens included, in the order of their ids.

    Args:
      values: what `read` returned.
      path: the file, for errors.

    Raises:
      ValueError: the file is damaged.
    """
    ids = dict(json_files.field(values["model"], "vocab", dict, path))
    ids.update(added_tokens(values, path))
    found = {json_files.check(i, int, f"{path}: the id of {t!r}"): t for t, i in ids.items()}
    for number in range(len(ids)):
        if number not in found:
            raise ValueError(f"{path}: of its {len(ids)} tokens, none has the id {number}")
        if "\n" in found[number]:
            raise ValueError(f"{path}: the token {found[number]!r} holds a line end")
    return [found[number] for number in range(len(ids))]


def lower_cases(values: dict[str, Any]) -> bool | None:
    """Returns whether the normalizer of `read`'s object lower-cases text; None if it is neither
    BERT's nor `exact_tokenizer`'s, which `check` refuses."""
    if (exact := exact_tokenizer.casing_of(values)) is not None:
        return exact.do_lower_case
    normalizer = values.get("normalizer")
    if not isinstance(normalizer, dict) or normalizer.get("type") != _NORMALIZER:
        return None
    return normalizer.get("lowercase", True) is not False


def strips_accents(values: dict[str, Any]) -> bool | None:
    """Returns whether the normalizer of `read`'s object strips accents; None if it does so if it
    lower-cases, or if `check` refuses it."""
    if (exact := exact_tokenizer.casing_of(values)) is not None:
        return exact.do_lower_case if exact.strip_accents is None else exact.strip_accents
    if lower_cases(values) is None:
        return None
    given = values["normalizer"].get("strip_accents")
    return given if isinstance(given, bool) else None


def check(values: dict[str, Any], path: str, do_lower_case: bool) -> None:
    """Checks that a WordPiece model cuts text as `bert_estimator.tokenization` does.

    Args:
      values: what `read` returned.
      path: the file, for errors.
      do_lower_case: whether text is lower-cased.

    Raises:
      ValueError: it cuts text in another way.
    """
    parts = [
        ("normalizer", "type", [_NORMALIZER]),
        ("normalizer", "clean_text", [True]),
        ("normalizer", "handle_chinese_chars", [True]),
        ("pre_tokenizer", "type", ["BertPreTokenizer"]),
    ]
    for part, key, allowed in (
        *(parts if exact_tokenizer.casing_of(values) is None else ()),
        ("model", "unk_token", [UNK]),
        ("model", "continuing_subword_prefix", ["##"]),
        # Of words between 100 and 200 characters, docs/tokens.md tells.
        ("model", "max_input_chars_per_word", [100, 200]),
        ("truncation", "direction", ["Right"]),
        ("padding", "direction", ["Right"]),
    ):
        given = values.get(part)
        given = given if isinstance(given, dict) else {"type": None}
        found = given.get(key, None if key == "type" else allowed[0])
        if found not in allowed:
            reason = (
                f" with do_lower_case={json_files.shown(do_lower_case)}: text would be cut into "
                "other tokens than the model knows"
            )
            if key == "direction":
                reason = f": {OTHER_END if part == 'truncation' else OTHER_POSITIONS}"
            raise ValueError(
                f"{path}: {part}: {key}={json_files.shown(found)} is not supported{reason}. "
                f"Allowed is {_either(allowed)}. To use it all the same, write this there"
            )
    if not _adds_special_tokens(values.get("post_processor")):
        raise ValueError(
            f"{path}: post_processor: makes of a text, or of a pair of texts, something else than "
            f"{CLS} A {SEP} and {CLS} A {SEP} B {SEP} with the segment 1 from B on, which alone is "
            "allowed. To use it all the same, write a TemplateProcessing for this there"
        )


def _either(allowed):
    return " or ".join(map(json_files.shown, allowed))


def _adds_special_tokens(processor):
    """Returns whether a post_processor makes of texts what BERT reads."""
    if not isinstance(processor, dict):
        return False
    if processor.get("type") == "BertProcessing":
        ends = [processor.get("cls"), processor.get("sep")]
        return [end[:1] if isinstance(end, list) else end for end in ends] == [[CLS], [SEP]]
    parts = [_parts(processor.get(key)) for key in ("single", "pair")]
    return processor.get("type") == "TemplateProcessing" and parts == [_SINGLE, _PAIR]


def _parts(template):
    """Returns the (token or text, segment) of a template; None if it is another object."""
    if not isinstance(template, list):
        return None
    found = []
    for part in template:
        values = list(part.values()) if isinstance(part, dict) else []
        if len(values) != 1 or not isinstance(values[0], dict):
            return None
        found.append((values[0].get("id"), values[0].get("type_id")))
    return found
