"""Hugging Face's tokenizer.json: its tokens, and how it cuts text; reading and writing it.

Of its tokenizers, the tokenizer of BERT is known here, and what `written` returns. What the file
says is compared with what `bert_estimator.tokenization` does: with anything else, text would be cut
into other tokens than the model knows.

The tokenizers package has a normalizer and a pre-tokenizer of BERT's, but with its own tables of
characters. Their categories are of Unicode 8, and Python's of Unicode 13 or later. It drops
private-use characters, and does not know the final sigma (docs/tokens.md lists the differences). So
a file that is written here holds the classes of characters of the Python that writes it, and says
with the package's general parts what is done to them.

The package would take an entry of the vocabulary that stands for a whole word alone for the
beginning of other words, too. So in the file such an entry begins with a character that no text
has, since it is dropped, and the last thing that is done to a text puts it before these words.
"""

import functools
import itertools
import os
import re
import unicodedata
from typing import Any

from bert_estimator.system import json_files
from bert_estimator.tokenization import CLS, SEP, SPECIAL_TOKENS, UNK, Casing, FullTokenizer
from bert_estimator.tokenization.casing import case_beside_sigma
from bert_estimator.tokenization.wordpiece import (
    CONTINUATION,
    cleaned,
    is_cjk,
    is_punctuation,
    whole_words,
)

FILE = "tokenizer.json"
WORDPIECE = "WordPiece"
_NORMALIZER = "BertNormalizer"

# What becomes of a text and of a pair of texts: (token or text, segment).
_SINGLE = [(CLS, 0), ("A", 0), (SEP, 0)]
_PAIR = [*_SINGLE, ("B", 1), (SEP, 1)]

# Why tokenizers that truncate or pad on the left are refused.
OTHER_END = "long texts would lose their end instead of their beginning"
OTHER_POSITIONS = "tokens would have other position ids: this project pads after the text"

_CASES = {"c": "cased", "i": "ignored"}
# The classes of characters, in the shape of a file.
_BLANK = dict.fromkeys(("dropped", "space", "cased", "ignored", "accent", "sign", "inner"), "[]")
# The package decomposes with tables that are older than this character.
_NEW_DECOMPOSITIONS = "\U00011938"
_WHOLE = "\u2060"  # before a whole word


def read(folder: str) -> dict[str, Any] | None:
    """Returns the object in a directory's tokenizer.json; None if there is no such file."""
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
    """Returns (token, id) of the tokens that are taken out of a text before it is cut."""
    added = json_files.field(values, "added_tokens", list, path, default=[])
    tokens_and_ids = []
    for token in json_files.items(added, dict, f"{path}: added_tokens"):
        content = json_files.field(token, "content", str, path)
        number = json_files.check(token.get("id"), int, f"{path}: the id of {content!r}")
        tokens_and_ids.append((content, number))
    return tokens_and_ids


def tokens(values: dict[str, Any], path: str) -> list[str]:
    """Returns the tokens of a WordPiece model, added tokens included, in the order of their ids."""
    ids = dict(json_files.field(values["model"], "vocab", dict, path))
    ids.update(added_tokens(values, path))
    ids = _without_marks(ids, f"{path}: ")
    token_of = {json_files.check(i, int, f"{path}: the id of {t!r}"): t for t, i in ids.items()}
    for number in range(len(ids)):
        if number not in token_of:
            raise ValueError(f"{path}: of its {len(ids)} tokens, none has the id {number}")
        # vocab.txt has a token a line.
        if "\n" in token_of[number]:
            raise ValueError(f"{path}: the token {token_of[number]!r} holds a line end")
    return [token_of[number] for number in range(len(ids))]


def _without_marks(ids, place=""):
    """Returns token -> id without what marks whole words in the file."""
    plain = {token.removeprefix(_WHOLE) or token: number for token, number in ids.items()}
    return plain if whole_words(plain, place) else ids


def lower_cases(values: dict[str, Any]) -> bool | None:
    """Returns whether the normalizer of `read`'s object lower-cases text; None if `check` refuses
    it."""
    if (exact := casing_of(values)) is not None:
        return exact.do_lower_case
    # Neither BERT's normalizer nor what `written` writes.
    normalizer = values.get("normalizer")
    if not isinstance(normalizer, dict) or normalizer.get("type") != _NORMALIZER:
        return None
    return normalizer.get("lowercase", True) is not False


def strips_accents(values: dict[str, Any]) -> bool | None:
    """Returns whether the normalizer of `read`'s object strips accents; None if it does so if it
    lower-cases, or if `check` refuses it."""
    if (exact := casing_of(values)) is not None:
        return exact.do_lower_case if exact.strip_accents is None else exact.strip_accents
    if lower_cases(values) is None:
        return None
    strips = values["normalizer"].get("strip_accents")
    return strips if isinstance(strips, bool) else None


def check(values: dict[str, Any], path: str, do_lower_case: bool) -> None:
    """Raises ValueError if a WordPiece model does not cut text as `bert_estimator.tokenization`
    does."""
    parts = [
        ("normalizer", "type", [_NORMALIZER]),
        ("normalizer", "clean_text", [True]),
        ("normalizer", "handle_chinese_chars", [True]),
        ("pre_tokenizer", "type", ["BertPreTokenizer"]),
    ]
    for part, key, allowed in (
        *(parts if casing_of(values) is None else ()),
        ("model", "unk_token", [UNK]),
        ("model", "continuing_subword_prefix", ["##"]),
        # Of words between 100 and 200 characters, docs/tokens.md tells.
        ("model", "max_input_chars_per_word", [100, 200]),
        ("truncation", "direction", ["Right"]),
        ("padding", "direction", ["Right"]),
    ):
        settings = values.get(part)
        settings = settings if isinstance(settings, dict) else {"type": None}
        # A setting that is missing is allowed, except for a type.
        setting = settings.get(key, None if key == "type" else allowed[0])
        if setting not in allowed:
            reason = (
                f" with do_lower_case={json_files.shown(do_lower_case)}: text would be cut into "
                "other tokens than the model knows"
            )
            if key == "direction":
                reason = f": {OTHER_END if part == 'truncation' else OTHER_POSITIONS}"
            choices = " or ".join(map(json_files.shown, allowed))
            raise ValueError(
                f"{path}: {part}: {key}={json_files.shown(setting)} is not supported{reason}. "
                f"Allowed is {choices}. To use it all the same, write this there"
            )
    if not _adds_special_tokens(values.get("post_processor")):
        raise ValueError(
            f"{path}: post_processor: makes of a text, or of a pair of texts, something else than "
            f"{CLS} A {SEP} and {CLS} A {SEP} B {SEP} with the segment 1 from B on, which alone is "
            "allowed. To use it all the same, write a TemplateProcessing for this there"
        )


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
    parts = []
    for part in template:
        values = list(part.values()) if isinstance(part, dict) else []
        if len(values) != 1 or not isinstance(values[0], dict):
            return None
        parts.append((values[0].get("id"), values[0].get("type_id")))
    return parts


def written(tokenizer: FullTokenizer) -> dict[str, Any]:
    """Returns the object to write into tokenizer.json."""
    single = [_template_token("[CLS]"), _template_text("A", 0), _template_token("[SEP]")]
    pair = [*single, _template_text("B", 1), _template_token("[SEP]", 1)]
    numbers = {token: tokenizer.vocab[token] for token in SPECIAL_TOKENS}
    casing = tokenizer.do_lower_case, tokenizer.strips_accents
    words = tokenizer.wordpiece_tokenizer.whole_words
    decoder = {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True}
    if words:
        unmarked = {"type": "Replace", "pattern": {"String": _WHOLE}, "content": ""}
        decoder = {"type": "Sequence", "decoders": [unmarked, decoder]}
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
        "normalizer": _normalizer(*casing, _classes(), words),
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
        "decoder": decoder,
        "model": {
            "type": "WordPiece",
            "unk_token": UNK,
            "continuing_subword_prefix": CONTINUATION,
            "max_input_chars_per_word": tokenizer.wordpiece_tokenizer.max_input_chars_per_word,
            "vocab": {_WHOLE * (t in words) + t: number for t, number in tokenizer.vocab.items()},
        },
    }


def _normalizer(do_lower_case, strips_accents, classes, words):
    """Returns the part that cleans text up, cases it, and marks the words that it has."""
    parts = [_replace(classes["dropped"], ""), _replace(classes["space"], " ")]
    if do_lower_case:
        # Python, and so `tokenization`, makes a capital sigma at the end of a word a final one. The
        # package makes it a plain one everywhere.
        cased, ignored = classes["cased"], classes["ignored"]
        final = f"(?<={cased}{ignored}*)Σ(?!{ignored}*{cased})"
        parts += [_replace(final, "ς"), {"type": "Lowercase"}]
    if strips_accents:
        # Before NFD, which does not know these characters.
        for char in _NEW_DECOMPOSITIONS:
            parts.append(_replace(_code(ord(char)), unicodedata.normalize("NFD", char)))
        parts += [{"type": "NFD"}, _replace(classes["accent"], "")]
    if words:
        # Words are tried by their first characters.
        groups = itertools.groupby(sorted(words), lambda word: word[0])
        ends = (first + "(?:" + "|".join(w[1:] for w in group) + ")" for first, group in groups)
        inner = classes["inner"]
        parts.append(_replace(f"(?<!{inner})(?=(?:{'|'.join(ends)})(?!{inner}))", _WHOLE))
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
    """Returns the casing with which `written` made a tokenizer.json; None if it did not."""
    # The classes of characters do not count, since a Python with another Unicode has other ones.
    if _shape(whole.get("pre_tokenizer")) != _pre_tokenizer(_BLANK):
        return None
    normalizer = _shape(whole.get("normalizer"))
    vocab = whole["model"].get("vocab")
    words = whole_words(_without_marks(vocab)) if isinstance(vocab, dict) else {}
    for lower, strips in itertools.product((False, True), repeat=2):
        if normalizer == _normalizer(lower, strips, _BLANK, words):
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
    # More than a million code points: hence the cache.
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
    classes = {name: _class(codes[name]) for name in codes}
    # What is within words: neither a space nor a sign.
    return {**classes, "inner": "[^ " + classes["sign"].removeprefix("[")}


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
