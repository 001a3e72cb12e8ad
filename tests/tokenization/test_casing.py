"""Which casing a vocabulary was made with, and what is said of a casing that does not reach it."""

import logging
import re

import pytest

from bert_estimator.tokenization import (
    SPECIAL_TOKENS,
    SentencePieceTokenizer,
    open_tokenizer,
    reopen_tokenizer,
    train_sentencepiece,
    train_vocabulary,
    write_vocab,
)
from bert_estimator.tokenization.casing import Casing

# More than a thousand words of letters that have a case, and none of them a capital.
_MANY = [a + b + c for a in "abcdefghij" for b in "klmnopqrst" for c in "uvwxyzabcde"]

VOCABULARIES = {
    "uncased": _MANY,
    "cased": [*_MANY, *(word.title() for word in _MANY)],
    # Lower-cased, with the accents of the language.
    "German": [*_MANY, *(f"f\u00fcr{word}" for word in _MANY[:150])],
    "Russian": [f"{a}{b}\u0439" for a in "абвгдежзик" for b in "лмнопрстуфхцчшщъыьэюя"],
    "Vietnamese": ["ti\u1ebfng", "vi\u1ec7t", "n\u01b0\u1edbc", "kh\u00f4ng"],
    "Devanagari": ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u0915\u0941\u091b", "\u0939\u0948"],
    "Thai": ["\u0e01\u0e34\u0e19", "\u0e19\u0e49\u0e33", "\u0e21\u0e32"],
    "Korean": ["\ud55c\uad6d", "##\uc5b4"],
    "Chinese": [chr(code) for code in range(0x4E00, 0x5200)],
    # Capitals and accents, as most cased vocabularies of Europe have them.
    "cased German": [*_MANY, *(f"F\u00fcr{word}" for word in _MANY[:300])],
}
STRIPPED = (
    "{path}: {number} of its {words} tokens have accents or other combining marks (such as "
    "{examples}), which text loses by default, so it was made of text that keeps them. Give "
    "strip_accents=False (--nostrip_accents); or strip_accents=True (--strip_accents), if a "
    "network was trained with this vocabulary and without them"
)
NO_CAPITALS = "{path}: its tokens do not have capitals, so it was made of lower-cased text. Give "
CAPITALS = (
    "{path}: {capitals} of its tokens have capitals, so it was made of text that was not "
    "lower-cased. Give do_lower_case=False (--nodo_lower_case)"
)
LOWER = "do_lower_case=True (--do_lower_case)"
LOWER_WITH_ACCENTS = (
    "do_lower_case=True and strip_accents=False (--do_lower_case --nostrip_accents)"
)

# (vocabulary, do_lower_case, strip_accents) -> what is wrong; everything else opens in silence.
REFUSED = {
    ("uncased", False, None): NO_CAPITALS + LOWER,
    ("uncased", False, True): NO_CAPITALS + LOWER,
    ("cased", True, None): CAPITALS,
    ("cased", True, False): CAPITALS,
    ("German", True, None): STRIPPED,
    ("German", False, None): NO_CAPITALS + LOWER_WITH_ACCENTS,
    ("Russian", True, None): STRIPPED,
    ("Vietnamese", True, None): STRIPPED,
    ("Devanagari", True, None): STRIPPED,
    ("Thai", True, None): STRIPPED,
    ("Korean", True, None): STRIPPED,
    ("cased German", True, None): CAPITALS,
}
TOLD = {
    "uncased": (True, None),
    "cased": (False, None),
    "German": (True, False),
    "Russian": (True, False),
    "Vietnamese": (True, False),
    "Devanagari": (True, False),
    "Thai": (True, False),
    "Korean": (True, False),
    "Chinese": (True, None),
    "cased German": (False, None),
}
OPENED = [
    *((name, *casing) for name, casing in TOLD.items()),
    ("uncased", True, True),
    ("Russian", False, None),  # too few words to tell that they were lower-cased
    ("Devanagari", False, None),
    ("Chinese", True, False),
    ("Chinese", False, None),
]


def vocabulary(folder, name):
    path = str(folder / "vocab.txt")
    write_vocab([*SPECIAL_TOKENS, *VOCABULARIES[name]], path)
    return path


@pytest.mark.parametrize(("name", "lower", "strips"), REFUSED)
def test_another_casing_is_refused(tmp_path, name, lower, strips):
    path, words = vocabulary(tmp_path, name), VOCABULARIES[name]
    strip = open_tokenizer(path, None).without_accents
    marked = [word for word in words if strip(word) != word]
    sentence = REFUSED[name, lower, strips].format(
        path=path,
        number=len(marked),
        words=len(words),
        examples=", ".join(map(repr, marked[:3])),
        capitals=sum(word != word.lower() for word in words),
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        open_tokenizer(path, lower, strips)


@pytest.mark.parametrize(("name", "lower", "strip"), OPENED)
def test_its_own_casing_reaches_its_tokens(tmp_path, caplog, name, lower, strip):
    path = vocabulary(tmp_path, name)
    tokenizer = open_tokenizer(path, lower, strip)
    usual = strip is None or strip == lower
    assert tokenizer.casing == (lower, None if usual else strip)
    assert tokenizer.strips_accents == (lower if strip is None else strip)
    for word in VOCABULARIES[name][-20:]:
        if not word.startswith("##"):
            assert tokenizer.tokenize(word) == [word]
            assert tokenizer.tokenize_with_offsets(word) == [(word, 0, len(word))]
    lost = [r for r in caplog.records if "does not reach" in r.getMessage()]
    assert lost == []


@pytest.mark.parametrize("name", TOLD)
def test_the_casing_that_a_vocabulary_tells(tmp_path, name):
    path = vocabulary(tmp_path, name)
    assert open_tokenizer(path, None).casing == TOLD[name]
    assert open_tokenizer(path, None, strip_accents=True).strips_accents


def warning(caplog):
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    return record.getMessage()


def test_accents_that_are_stripped_as_someone_says_are_warned_of(tmp_path, caplog):
    path = vocabulary(tmp_path, "Thai")
    tokenizer = open_tokenizer(path, True, True)
    assert warning(caplog) == (
        f"{path}: 2 of its 3 tokens have accents or other combining marks (such as "
        "'\u0e01\u0e34\u0e19', '\u0e19\u0e49\u0e33'), which text loses: it does not reach these "
        "tokens. strip_accents=False (--nostrip_accents) keeps them."
    )
    # What was made so is opened again in silence.
    assert reopen_tokenizer(path, tokenizer.casing).tokenize("\u0e01\u0e34\u0e19") == ["[UNK]"]
    assert len(caplog.records) == 1


def test_few_accents_are_warned_of(tmp_path, caplog):
    """As in BERT-Base, Chinese, which has kana with sound marks."""
    path = str(tmp_path / "vocab.txt")
    write_vocab([*SPECIAL_TOKENS, *VOCABULARIES["Chinese"], "\u304c", "##\u304c"], path)
    assert open_tokenizer(path).strips_accents
    assert "2 of its 1026 tokens have accents" in warning(caplog)


def test_a_vocabulary_without_accents_for_text_with_accents_is_warned_of(tmp_path, caplog):
    path = vocabulary(tmp_path, "uncased")
    open_tokenizer(path, True, False)
    assert warning(caplog) == (
        f"{path}: its tokens do not have accents, so text with accents becomes other pieces or "
        "[UNK]. If it was made of text without them, give strip_accents=True (--strip_accents)."
    )


@pytest.mark.parametrize(
    ("casing", "text", "tokens"),
    [
        (Casing(True), "F\u00fcr \u00c9T\u00c9", ["fur", "ete"]),
        (Casing(True, True), "F\u00fcr \u00c9T\u00c9", ["fur", "ete"]),
        (Casing(True, False), "F\u00fcr \u00c9T\u00c9", ["f\u00fcr", "\u00e9t\u00e9"]),
        (Casing(False), "F\u00fcr \u00c9T\u00c9", ["F\u00fcr", "\u00c9T\u00c9"]),
        (Casing(False, True), "F\u00fcr \u00c9T\u00c9", ["Fur", "ETE"]),
        # What is decomposed stays so.
        (Casing(True, False), "E\u0301", ["e\u0301"]),
        (Casing(False, True), "E\u0301", ["E"]),
    ],
)
def test_a_vocabulary_is_trained_with_its_casing(tmp_path, casing, text, tokens):
    path = str(tmp_path / "vocab.txt")
    size = 5 + 2 * len({char for token in tokens for char in token})
    write_vocab(
        train_vocabulary([text] * 3, size, casing.do_lower_case, 1.0, casing.strip_accents), path
    )
    tokenizer = reopen_tokenizer(path, casing)
    pieces = tokenizer.tokenize_with_offsets(text)
    assert [piece.string for piece in pieces] == tokenizer.tokenize(text)
    assert "".join(piece.removeprefix("##") for piece in tokenizer.tokenize(text)) == "".join(
        tokens
    )
    assert (pieces[0].start, pieces[-1].end) == (0, len(text))


@pytest.mark.parametrize("strip", [None, True, False])
def test_the_accents_of_sentencepiece(tmp_path, caplog, strip):
    path = str(tmp_path / "a.model")
    texts = ["f\u00fcr \u00e9t\u00e9 h\u00e4user und b\u00e4ume"] * 9
    train_sentencepiece(texts, path, 20, strip_accents=strip)
    tokenizer = open_tokenizer(path, True, strip)
    assert tokenizer.casing == (True, False if strip is False else None)
    text = "".join(tokenizer.tokenize("F\u00dcR")).replace("\u2581", "")
    assert text == ("f\u00fcr" if strip is False else "fur")
    offsets = tokenizer.tokenize_with_offsets("F\u00dcR")
    assert [piece.string for piece in offsets] == tokenizer.tokenize("F\u00dcR")
    assert caplog.records == []
    if strip is False:
        with pytest.raises(ValueError, match=r"which text loses by default.*--nostrip_accents"):
            open_tokenizer(path)
        assert open_tokenizer(path, None).casing == (True, False)
        assert isinstance(open_tokenizer(path, True, True), SentencePieceTokenizer)
