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
# What is said of a casing that does not reach the vocabulary: all name the one way out.
CAPITALS = (
    "{capitals} of its tokens have capitals, which lower-cased text lacks. To keep capitals, "
)
NO_CAPITALS = (
    "its tokens do not have capitals, so words with capitals become [UNK]. To lower-case text, "
)
MARKS = (
    "{number} of its {words} tokens have accents or other combining marks (such as {examples}), "
    "which text loses. To keep accents, "
)
NO_MARKS = "its tokens do not have accents, so words with accents become [UNK]. To strip accents, "
FLAGS = {
    CAPITALS: "nodo_lower_case",
    NO_CAPITALS: "do_lower_case",
    MARKS: "nostrip_accents",
    NO_MARKS: "strip_accents",
}
ERROR = "error"

# (vocabulary, what the network's files say, the flags) -> the casing, or ERROR, and what is said.
NOTHING = (None, None)
OPENED = [
    # Nobody says it: the vocabulary does.
    ("uncased", None, NOTHING, (True, None), []),
    ("cased", None, NOTHING, (False, None), []),
    ("German", None, NOTHING, (True, False), []),
    ("Russian", None, NOTHING, (True, False), []),
    ("Vietnamese", None, NOTHING, (True, False), []),
    ("Devanagari", None, NOTHING, (True, False), []),
    ("Thai", None, NOTHING, (True, False), []),
    ("Korean", None, NOTHING, (True, False), []),
    ("Chinese", None, NOTHING, (True, None), []),
    ("cased German", None, NOTHING, (False, None), []),
    # A flag that agrees, alone or with another one.
    ("uncased", None, (True, None), (True, None), []),
    ("uncased", None, (True, True), (True, None), []),
    ("cased", None, (False, None), (False, None), []),
    ("German", None, (True, None), (True, False), []),
    ("German", None, (True, False), (True, False), []),
    ("German", None, (None, False), (True, False), []),
    ("Russian", None, (False, None), (False, None), []),  # too few words to tell their case
    ("Chinese", None, (False, None), (False, None), []),
    ("Chinese", None, (True, False), (True, False), []),
    # A flag that does not: texts may be lower-cased, or have lost their marks, before.
    ("uncased", None, (False, None), (False, None), [NO_CAPITALS]),
    ("uncased", None, (False, True), (False, True), [NO_CAPITALS]),
    ("uncased", None, (True, False), (True, False), [NO_MARKS]),
    ("German", None, (False, None), (False, None), [NO_CAPITALS]),
    ("German", None, (None, True), (True, None), [MARKS]),
    ("Thai", None, (True, True), (True, None), [MARKS]),
    ("cased", None, (True, None), ERROR, [CAPITALS]),
    ("cased German", None, (True, False), ERROR, [CAPITALS]),
    # What the files say holds, as in transformers.
    ("uncased", (True, None), NOTHING, (True, None), []),
    ("uncased", (False, None), NOTHING, (False, None), [NO_CAPITALS]),
    ("cased", (False, None), NOTHING, (False, None), []),
    ("cased", (True, None), NOTHING, (True, None), [CAPITALS]),
    ("German", (True, None), NOTHING, (True, None), [MARKS]),
    ("German", (True, False), NOTHING, (True, False), []),
    # A flag replaces it.
    ("uncased", (False, None), (True, None), (True, None), []),
    ("cased", (True, None), (False, None), (False, None), []),
    ("cased", (True, None), (True, None), (True, None), [CAPITALS]),
    ("cased", (False, None), (True, None), ERROR, [CAPITALS]),
    ("German", (True, None), (None, False), (True, False), []),
    # Of a flag that changes nothing, the file is to be corrected; else, the flag.
    ("German", (True, None), (None, True), (True, None), [MARKS]),
    ("German", (True, True), NOTHING, (True, None), [MARKS]),
    ("German", (False, None), (True, None), (True, None), [MARKS]),
]


def names_the_file(known, asked):
    """Returns whether what the flags ask for is as the files say."""
    return known is not None and asked in (NOTHING, known, (None, True))


def vocabulary(folder, name):
    path = str(folder / "vocab.txt")
    write_vocab([*SPECIAL_TOKENS, *VOCABULARIES[name]], path)
    return path


@pytest.mark.parametrize(("name", "known", "asked", "casing", "kinds"), OPENED)
def test_flags_come_first_then_files_then_the_vocabulary(
    tmp_path, caplog, name, known, asked, casing, kinds
):
    path, words = vocabulary(tmp_path, name), VOCABULARIES[name]
    strip = open_tokenizer(path).without_accents
    marked = [word for word in words if strip(word) != word]
    sentences = [
        f"{path}: {kind}correct {FLAGS[kind].removeprefix('no')} in task.json, if that is not how "
        "the network was trained."
        if names_the_file(known, asked)
        else f"{path}: {kind}give --{FLAGS[kind]}."
        for kind in kinds
    ]
    sentences = [
        sentence.format(
            number=len(marked),
            words=len(words),
            examples=", ".join(map(repr, marked[:3])),
            capitals=sum(word != word.lower() for word in words),
        )
        for sentence in sentences
    ]
    known = known and Casing(*known)
    if casing == ERROR:
        with pytest.raises(ValueError, match=f"^{re.escape(sentences[0])}$"):
            open_tokenizer(path, *asked, known, known and "task.json")
    else:
        tokenizer = open_tokenizer(path, *asked, known, known and "task.json")
        assert tokenizer.casing == casing
        assert [record.getMessage() for record in caplog.records] == sentences
    if not kinds:
        for word in words[-20:]:
            if not word.startswith("##"):
                assert tokenizer.tokenize(word) == [word]
                assert tokenizer.tokenize_with_offsets(word) == [(word, 0, len(word))]


def test_what_a_sentence_advises_is_followed_in_silence(tmp_path, caplog):
    """Each flag that a sentence names works, whatever else is said."""
    for name, known, asked, _, kinds in OPENED:
        for kind in kinds:
            lower, strip = asked
            on = not FLAGS[kind].startswith("no")
            is_lower = FLAGS[kind].endswith("lower_case")
            caplog.clear()
            followed = (on, strip) if is_lower else (lower, on)
            if names_the_file(known, asked):
                known, followed = ((on, known[1]) if is_lower else (known[0], on)), NOTHING
            known = known and Casing(*known)
            place = known and "task.json"
            open_tokenizer(vocabulary(tmp_path, name), *followed, known, place)
            said = [record.getMessage() for record in caplog.records]
            assert not any(kind.rpartition(". ")[2] in sentence for sentence in said)


@pytest.mark.parametrize(
    ("name", "asked", "kept"),
    [
        ("uncased", NOTHING, None),
        ("cased", NOTHING, "capitals"),
        ("cased", (False, None), None),
        ("cased German", NOTHING, "capitals"),
        ("German", NOTHING, "accents (--strip_accents strips them)"),
        ("German", (True, None), "accents (--strip_accents strips them)"),
        ("German", (None, False), None),
        ("German", (None, True), None),
    ],
)
def test_what_only_the_vocabulary_tells_is_said(tmp_path, capsys, name, asked, kept):
    path = vocabulary(tmp_path, name)
    open_tokenizer(path, *asked)
    said = f"{path}: text keeps its {kept}, as the vocabulary tells.\n"
    assert capsys.readouterr().err == (said if kept else "")


@pytest.mark.parametrize("asked", [NOTHING, (True, None), (None, True)])
def test_the_record_of_a_run_is_not_questioned(tmp_path, caplog, capsys, asked):
    tokenizer = open_tokenizer(vocabulary(tmp_path, "cased German"), *asked, Casing(True))
    assert tokenizer.casing == (True, None)
    assert (caplog.records, capsys.readouterr().err) == ([], "")


def warning(caplog):
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    return record.getMessage()


def test_accents_that_are_stripped_as_someone_says_are_warned_of(tmp_path, caplog):
    path = vocabulary(tmp_path, "Thai")
    tokenizer = open_tokenizer(path, True, True)
    assert "2 of its 3 tokens have accents" in warning(caplog)
    # What was made so is opened again in silence.
    assert reopen_tokenizer(path, tokenizer.casing).tokenize("\u0e01\u0e34\u0e19") == ["[UNK]"]
    assert len(caplog.records) == 1


def test_few_accents_are_warned_of(tmp_path, caplog):
    """As in BERT-Base, Chinese, which has kana with sound marks."""
    path = str(tmp_path / "vocab.txt")
    write_vocab([*SPECIAL_TOKENS, *VOCABULARIES["Chinese"], "\u304c", "##\u304c"], path)
    assert open_tokenizer(path, place="task.json").strips_accents  # which does not say it
    assert caplog.records == []
    assert open_tokenizer(path, True).strips_accents
    assert "2 of its 1026 tokens have accents" in warning(caplog)


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
        assert open_tokenizer(path).casing == open_tokenizer(path, True).casing == (True, False)
        assert isinstance(open_tokenizer(path, True, True), SentencePieceTokenizer)
