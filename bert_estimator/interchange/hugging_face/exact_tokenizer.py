"""A tokenizer.json with which Hugging Face's tokenizers cut text as `FullTokenizer` does.

The tokenizers package has a normalizer and a pre-tokenizer of BERT's, but with its own tables of
characters. Their categories are of Unicode 8, and Python's of Unicode 13 or later. It drops
private-use characters, and does not know the final sigma (docs/tokens.md lists the differences). So
the file holds the classes of characters of the Python that writes it, and says with the package's
general parts what is done to them.
"""

import functools
import itertools
import re
import unicodedata
from typing import Any

from bert_estimator.tokenization import SPECIAL_TOKENS, UNK, Casing, FullTokenizer
from bert_estimator.tokenization.casing import case_beside_sigma
from bert_estimator.tokenization.wordpiece import CONTINUATION, cleaned, is_cjk, is_punctuation

_CASES = {"c": "cased", "i": "ignored"}
# The classes of characters, in the shape of a file.
_BLANK = dict.fromkeys(("dropped", "space", "cased", "ignored", "accent", "sign"), "[]")
# The package decomposes with tables that are older than this character.
_NEW_DECOMPOSITIONS = "\U00011938"


def written(tokenizer: FullTokenizer) -> dict[str, Any]:
    """Returns the object to write into tokenizer.json."""
    single = [_template_token("[CLS]"), _template_text("A", 0), _template_token("[SEP]")]
    pair = [*single, _template_text("B", 1), _template_token("[SEP]", 1)]
    numbers = {token: tokenizer.vocab[token] for token in SPECIAL_TOKENS}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token, number in sorted(numbers.items(), key=lambda item: item[1])
        ],
        "normalizer": _normalizer(tokenizer.do_lower_case, tokenizer.strips_accents, _classes()),
        "pre_tokenizer": _pre_tokenizer(_classes()),
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": {
                token: {"id": token, "ids": [numbers[token]], "tokens": [token]}
                for token in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": UNK,
            "continuing_subword_prefix": CONTINUATION,
            "max_input_chars_per_word": tokenizer.wordpiece_tokenizer.max_input_chars_per_word,
            "vocab": tokenizer.vocab,
        },
    }


def _normalizer(do_lower_case, strips_accents, classes):
    """Returns the part that cleans text up and cases it."""
    parts = [_replace(classes["dropped"], ""), _replace(classes["space"], " ")]
    if do_lower_case:
        cased, ignored = classes["cased"], classes["ignored"]
        final = f"(?<={cased}{ignored}*)Σ(?!{ignored}*{cased})"
        parts += [_replace(final, "ς"), {"type": "Lowercase"}]
    if strips_accents:
        for char in _NEW_DECOMPOSITIONS:
            parts.append(_replace(_code(ord(char)), unicodedata.normalize("NFD", char)))
        parts += [{"type": "NFD"}, _replace(classes["accent"], "")]
    return {"type": "Sequence", "normalizers": parts}


def _pre_tokenizer(classes):
    """Returns the part that splits text into words and signs."""
    splits = (" +", "Removed"), (classes["sign"], "Isolated")
    return {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": what, "invert": False}
            for pattern, what in splits
        ],
    }


def casing_of(whole: dict[str, Any]) -> Casing | None:
    """Returns the casing with which `values` made a tokenizer.json; None if it did not.

    Classes of characters do not count, since a Python with another Unicode has other ones.
    """
    if _shape(whole.get("pre_tokenizer")) != _pre_tokenizer(_BLANK):
        return None
    found = _shape(whole.get("normalizer"))
    for lower, strips in itertools.product((False, True), repeat=2):
        if found == _normalizer(lower, strips, _BLANK):
            return Casing(lower, None if strips == lower else strips)
    return None


def _shape(part):
    """Returns a part of the file without what its classes of characters hold."""
    if isinstance(part, dict):
        return {name: _shape(value) for name, value in part.items()}
    if isinstance(part, list):
        return [_shape(value) for value in part]
    return re.sub(r"\[[^\]]*\]", "[]", part) if isinstance(part, str) else part


def _replace(pattern, content):
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _template_token(token, segment=0):
    return {"SpecialToken": {"id": token, "type_id": segment}}


def _template_text(name, segment):
    return {"Sequence": {"id": name, "type_id": segment}}


@functools.cache
def _classes() -> dict[str, str]:
    """Returns name -> class of characters, as a regular expression has it."""
    codes: dict[str, list[int]] = {name: [] for name in _BLANK}
    for code in range(0x110000):
        char = chr(code)
        category = unicodedata.category(char)
        if is_cjk(char) or is_punctuation(char):
            codes["sign"].append(code)
        if category in ("Cn", "Co", "Cs"):
            continue
        if category == "Mn":
            codes["accent"].append(code)
        text = cleaned(code)
        if not text:
            codes["dropped"].append(code)
        elif not text.strip() or char.isspace():
            codes["space"].append(code)
        if (case := case_beside_sigma(char)) in _CASES:
            codes[_CASES[case]].append(code)
    return {name: _class(codes[name]) for name in codes}


def _class(codes):
    ranges = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(_code(a) if a == b else f"{_code(a)}-{_code(b)}" for a, b in ranges) + "]"


def _code(code):
    return f"\\x{{{code:X}}}"
