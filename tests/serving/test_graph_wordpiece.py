"""The tokenizer in a graph against the tokenizer in Python: nasty strings, and every character."""

import json
import os
import pathlib
import random

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.serving.graph_wordpiece import GraphWordPiece
from bert_estimator.tokenization import SPECIAL_TOKENS, FullTokenizer, write_vocab

GOLDENS = pathlib.Path(__file__).parent.parent / "tokenization" / "goldens" / "tokens.json"
NASTY = json.loads(GOLDENS.read_text(encoding="ascii"))


CASINGS = {
    "uncased": (True, None),
    "cased": (False, None),
    "uncased with accents": (True, False),
    "cased without accents": (False, True),
}


@pytest.fixture(scope="module", params=CASINGS.values(), ids=CASINGS)
def tokenizer(request, tmp_path_factory):
    vocab_file = str(tmp_path_factory.mktemp("vocabulary") / "vocab.txt")
    write_vocab(NASTY["vocab"], vocab_file)
    return FullTokenizer(vocab_file, *request.param)


def in_graph(tokenizer, texts, **options):
    """Returns the ids of texts, as lists."""
    with tf.Graph().as_default(), tf.Session() as session:
        ids = GraphWordPiece(tokenizer)(tf.constant(texts, tf.string, [len(texts)]), **options)
        return session.run(ids).to_list()


def assert_same(tokenizer, texts):
    found = in_graph(tokenizer, [text.encode() for text in texts])
    different = {
        text: (tokenizer.convert_ids_to_tokens(ids), tokenizer.tokenize(text))
        for text, ids in zip(texts, found, strict=True)
        if ids != tokenizer.encode(text)
    }
    assert different == {}


def test_nasty_strings(tokenizer):
    assert len(NASTY["strings"]) >= 200
    assert_same(tokenizer, NASTY["strings"])


def test_sigmas(tokenizer):
    words = ["ΔΣ", "Σ", "ΔΣΣ", "ΔΣ.", "ΔΣ.Σ", "ΔΣ'Δ", "ΔΣ́", "Δ\xadΣ", "1Σ", "ΔΣ1", "ΔΣ中Σ", "ΣΔΣ"]
    words += ["Δ:Σ", "ΔΣ:", "aΣb", "aΣ-b", "ǅΣ", "ʰΣ", "ΔΣ\u200bΔ"]
    assert_same(tokenizer, [*words, " ".join(words), "ΟΔΥΣΣΕΥΣ ΟΔΥΣΣΕΥΣ! ΣΔΣ"])


def test_random_strings(tokenizer):
    generator = random.Random(3)
    characters = (
        "".join(NASTY["strings"])
        + " \t\n.,!?##[]ΣσςİıẞßÅΔΩ가힣中豈\u0301\u0345\u00ad\u200d\ufeff\U0001f600"
    )
    texts = [
        "".join(generator.choices(characters, k=generator.randint(0, 30))) for _ in range(1500)
    ]
    assert_same(tokenizer, texts)


def test_long_words_and_texts(tokenizer):
    word = next(token for token in NASTY["vocab"] if token.isalpha() and len(token) == 1)
    assert_same(tokenizer, [word * n for n in (199, 200, 201, 5000)] + [f"{word} " * 5000, ""])


def test_no_texts_and_no_words(tokenizer):
    assert in_graph(tokenizer, []) == []
    assert in_graph(tokenizer, [b"", b" \n"]) == [[], []]


def test_bytes_that_are_not_utf_8_are_left_out(tokenizer):
    (expected,) = in_graph(tokenizer, [b"a b"])
    assert in_graph(tokenizer, [b"a\xff b\xc3"]) == [expected]


def test_the_first_words(tokenizer):
    (ids,) = in_graph(tokenizer, [b"a b c d"], most_words=2)
    assert ids == tokenizer.encode("a b")


@pytest.mark.slow
@pytest.mark.parametrize("casing", CASINGS.values(), ids=CASINGS)
def test_every_character(tmp_path, casing):
    """Each between letters, so that it is seen whether it is kept, dropped or splits the word."""
    codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    letters = sorted({c for code in range(0x3000) for c in chr(code).lower() if c.isalnum()})
    vocab_file = os.fspath(tmp_path / "vocab.txt")
    write_vocab(
        [*SPECIAL_TOKENS, *letters, *("##" + c for c in letters), "!", "`", ";"], vocab_file
    )
    tokenizer = FullTokenizer(vocab_file, *casing)
    texts = [f"a{chr(code)}b" for code in codes]
    for first in range(0, len(texts), 100_000):
        assert_same(tokenizer, texts[first : first + 100_000])
