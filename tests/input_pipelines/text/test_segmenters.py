import itertools
import random
import sys

import numpy as np
import pytest
import word_cutters

from bert_estimator.tokenization import (
    SPECIAL_TOKENS,
    FullTokenizer,
    SentencePieceTokenizer,
    train_sentencepiece,
    write_vocab,
)
from input_pipelines.text import segmenters
from input_pipelines.text.segmenters import Words, open_segmenter, unmarked

CHARACTERS = sorted(set("".join(word_cutters.LEXICON)))
PIECES = [*CHARACTERS, "un", "##aff", "##able", "cafe", "caf", "##e", "。", "!"]


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("vocabulary") / "vocab.txt")
    write_vocab([*SPECIAL_TOKENS, *PIECES], path)
    return FullTokenizer(path)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("model") / "spm.model")
    text = [sentence for document in word_cutters.documents(80) for sentence in document]
    train_sentencepiece(text, path, 90)
    return SentencePieceTokenizer(path)


def cut(monkeypatch, tokenizer, text, words):
    """Returns the tokens of a text, and as text which of them continue a word."""
    monkeypatch.setattr(word_cutters, "chosen", lambda _: words, raising=False)
    open_segmenter.cache_clear()
    ids, continues = unmarked(
        np.array(Words(tokenizer, "word_cutters:chosen").encode(text), np.int64)
    )
    assert ids.tolist() == tokenizer.encode(text)
    return " ".join(tokenizer.convert_ids_to_tokens(ids)), "".join(map(str, continues.astype(int)))


@pytest.mark.parametrize(
    ("text", "words", "tokens", "continues"),
    [
        ("使用语言模型", ["使用", "语言", "模型"], "使 用 语 言 模 型", "010101"),
        ("使用 语言", ["使用", " ", "语言"], "使 用 语 言", "0101"),
        ("使用 语言", ["使用", "语言"], "使 用 语 言", "0101"),
        ("使用 语言", ["使用 语", "言"], "使 用 语 言", "0110"),
        ("使用。", ["使用", "", "。"], "使 用 。", "010"),
        ("Unaffable模型!", ["Unaffable", "模型", "!"], "un ##aff ##able 模 型 !", "011010"),
        # A word ends within what spaces cut, between two pieces or inside of one.
        ("unaffable", ["un", "affable"], "un ##aff ##able", "001"),
        ("unaffable", ["una", "ffable"], "un ##aff ##able", "011"),
        # Accents and capitals go after the words are cut; a decomposed accent is of its letter.
        ("CAFÉ模型", ["CAFÉ", "模型"], "cafe 模 型", "001"),
        ("cafe\u0301模型", ["caf", "e\u0301", "模型"], "cafe 模 型", "001"),
        ("龘龘使用", ["龘龘", "使用"], "[UNK] [UNK] 使 用", "0101"),
        ("", [], "", ""),
        (" \u200b ", ["\u200b"], "", ""),
    ],
)
def test_marks_of_tokens(monkeypatch, wordpiece, text, words, tokens, continues):
    assert cut(monkeypatch, wordpiece, text, words) == (tokens, continues)


def test_both_ways_to_find_the_words_of_tokens_agree(wordpiece):
    words = Words(wordpiece, "word_cutters:known")
    rng = random.Random(0)
    for _ in range(300):
        text = "".join(rng.choices([*CHARACTERS, " ", "unaffable", "cafe\u0301", "。", "龘"], k=9))
        firsts, lasts = words._places(text, word_cutters.known(text))
        continues = unmarked(np.array(words.encode(text)))[1]
        assert (firsts[1:] == lasts[:-1]).tolist() == continues[1:].tolist(), text


def test_pieces_of_sentencepiece(sentencepiece):
    words = Words(sentencepiece, "word_cutters:known")
    kinds = set()
    for sentence in itertools.chain(*word_cutters.documents(30, seed=1)):
        lengths = map(len, word_cutters.known(sentence))
        begins = {0, *itertools.accumulate(lengths)}
        ids, continues = unmarked(np.array(words.encode(sentence), np.int64))
        pieces = sentencepiece.convert_ids_to_tokens(ids)
        assert pieces == sentencepiece.tokenize(sentence)
        place, before = 0, "."
        for piece, is_inside in zip(pieces, continues.tolist(), strict=True):
            piece = piece.removeprefix("\u2581")
            # The mark of the space before a sentence is a part of the word after it.
            assert is_inside == (place not in begins or not before), (pieces, continues)
            kinds.add((len(piece), is_inside))
            place, before = place + len(piece), piece
        assert place == len(sentence)
    assert {(0, False), (1, False), (1, True), (2, False)} <= kinds


def test_without_a_segmenter_the_vocabulary_tells(wordpiece):
    words = Words(wordpiece, None)
    ids = words.encode("Unaffable模型")
    assert ids == wordpiece.encode("Unaffable模型")
    assert words.begin(np.array(ids)).tolist() == [True, False, False, True, True]


def test_an_iterator_will_do(wordpiece):
    text = "使用语言模型。"
    lazy, known = (Words(wordpiece, f"word_cutters:{name}") for name in ("lazily", "known"))
    assert lazy.encode(text) == known.encode(text)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("as_text", ": TypeError: returned a text, not a list of words"),
        ("with_a_loss", r" is \['使用'\]; it must be a list of the text's words, with all char"),
        ("as_numbers", ": TypeError: .*expected str instance, int found"),
        ("as_nothing", ": TypeError: 'NoneType' object is not iterable"),
        ("failing", ": KeyError: 'a word that is not known'"),
    ],
)
def test_functions_that_do_not_cut(wordpiece, name, message):
    words = Words(wordpiece, f"word_cutters:{name}")
    said = f"^--word_segmenter=word_cutters:{name} of the text '使用模型'"
    with pytest.raises(ValueError, match=said + message):
        words.encode("使用模型")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("spaces", "'spaces' must be jieba, or a function as module:function"),
        ("word_cutters:", "'word_cutters:' must be jieba, or"),
        ("no_such_module:cut", "no_such_module:cut cannot be imported: ModuleNotFoundError: No"),
        ("word_cutters:no_function", "cannot be imported: AttributeError: module 'word_cutters' "),
        ("word_cutters:NOT_A_FUNCTION", "^word_cutters:NOT_A_FUNCTION is not a function, but 3; n"),
        ("os:sep", "^os:sep is not a function, but '/'; name a function of texts"),
        ("os:environ", r"^os:environ is not a function, but environ.{53}; name"),
    ],
)
def test_names_of_nothing(name, message):
    with pytest.raises(ValueError, match=message):
        open_segmenter(name)


def test_a_module_of_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "cutter_of_mine.py").write_text("cut = list\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert open_segmenter("cutter_of_mine:cut") is list
    assert segmenters.source_files("cutter_of_mine:cut") == [str(tmp_path / "cutter_of_mine.py")]
    del sys.modules["cutter_of_mine"]
    assert segmenters.source_files("builtins:list") == []


def test_a_function_of_another_module(tmp_path, monkeypatch):
    """Records must not mix what the two modules said at different times."""
    package = tmp_path / "cutters_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import cut\n")
    (package / "inner.py").write_text("def cut(text):\n    return [text]\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    files = [str(package / name) for name in ("__init__.py", "inner.py")]
    assert segmenters.source_files("cutters_of_mine:cut") == files
    assert segmenters.source_files("cutters_of_mine.inner:cut") == files[1:]
    for name in ("cutters_of_mine.inner", "cutters_of_mine"):
        del sys.modules[name]


def test_what_jieba_cuts_too_much_is_joined():
    def characters(text):
        return [text[:2], *text[2:]]

    assert segmenters._cut(characters, "使用café 模Ё1。x") == [
        *("使用", "café", " ", "模", "Ё1", "。", "x")
    ]
    assert segmenters._cut(characters, "cafés") == ["cafés"]


def test_jieba_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    open_segmenter.cache_clear()
    with pytest.raises(ValueError, match=r"jieba is not installed.*pip install 'bert-est.*\[jieb"):
        open_segmenter("jieba")


def test_jieba(wordpiece, capfd):
    pytest.importorskip("jieba", reason="jieba is not installed")
    open_segmenter.cache_clear()
    ids, continues = unmarked(
        np.array(Words(wordpiece, "jieba").encode("使用语言模型的café。"), np.int64)
    )
    assert " ".join(wordpiece.convert_ids_to_tokens(ids)) == "使 用 语 言 模 型 的 cafe 。"
    assert continues.astype(int).tolist() == [0, 1, 0, 1, 0, 1, 0, 0, 0]
    assert capfd.readouterr() == ("", "")  # it is silent
