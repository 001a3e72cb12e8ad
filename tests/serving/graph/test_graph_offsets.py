"""Tokens in a graph, with the characters that they come from, on nasty strings."""

import random
import re

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.serving.graph import graph_characters, graph_sentencepiece, graph_tokenizer
from bert_estimator.tokenization import (
    FullTokenizer,
    SentencePieceTokenizer,
    sentencepiece_tokenizer,
    write_vocab,
)
from tests.serving.graph.test_graph_sentencepiece import OTHER_FEATURES, golden, needs_text, trained
from tests.serving.graph.test_graph_wordpiece import NASTY

# Characters that cleaning, casing, Unicode's normal forms or WordPiece treat in their own way.
STRANGE = (
    " \t\n\r\x0b\x0c\x1c\x85\u00a0\u2028\u202f\u3000\u200b\u200d\ufeff\x00\ufffd\u00ad"
    "aAzZ09,.,'`\"-_()$^"
    "\u0301\u0308\u0327\u0323\u093e\u20dd\u0345\U0001d165"
    "\u00e9\u00c9\u0130\u03a3\u03c2\u00df\ufb01\u00bd\u2126\u212b\u01c5\u1e9b\u0958\u0344\u00a8"
    "\u6771\u4eac\uac00\u1100\u1161\u30ac\u306f\u0e33\u0ec0\U0001f389\U0001f468\u2211\uff21\u3392"
)


def texts():
    """Returns strings of the goldens, strange strings, and long strings."""
    strings = NASTY["strings"]
    generator = random.Random(0)
    strange = ["".join(generator.choices(STRANGE, k=generator.randrange(14))) for _ in range(600)]
    joined = [" ".join(strings[first : first + 9]) for first in range(0, len(strings), 9)]
    numbers = ["2019, 1,000,000, 3,500,000", "9,9,9, 2,", "``a'' '''b ''''"]
    return [*strings, *strange, *joined, *numbers, "", " "]


def tokens_in_graph(tokenizer, strings):
    """Returns (id, start, end) of the tokens of each string, and the characters it consists of."""
    with tf.Graph().as_default(), tf.Session() as session:
        encoded = tf.constant(strings, tf.string, [len(strings)])
        characters = graph_characters.characters(encoded)
        tokens = graph_tokenizer.of(tokenizer).with_offsets(characters.codes)
        *tokens, places = session.run([*tokens, characters.bytes])
    tokens = [list(zip(*row, strict=True)) for row in zip(*map(rows, tokens), strict=True)]
    return tokens, places.to_list()


def rows(ragged):
    return ragged.to_list()


def assert_same(tokenizer, strings):
    found, places = tokens_in_graph(tokenizer, [text.encode() for text in strings])
    different = {}
    for text, tokens, bounds in zip(strings, found, places, strict=True):
        pieces = tokenizer.tokenize_with_offsets(text)
        ids = tokenizer.convert_tokens_to_ids([piece.string for piece in pieces])
        expected = [(i, piece.start, piece.end) for i, piece in zip(ids, pieces, strict=True)]
        if tokens != expected:
            different[text] = tokens, expected
        assert bounds == [len(text[:number].encode()) for number in range(len(text) + 1)]
    assert different == {}


@pytest.mark.parametrize("casing", ["uncased", pytest.param("cased", marks=pytest.mark.slow)])
def test_wordpiece(tmp_path, casing):
    write_vocab(NASTY["vocab"], str(tmp_path / "vocab.txt"))
    assert_same(FullTokenizer(str(tmp_path / "vocab.txt"), casing == "uncased"), texts())


@needs_text
@pytest.mark.parametrize("casing", ["uncased", "cased"])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece(kind, casing):
    assert_same(golden(kind, casing), texts())


@pytest.mark.slow
@needs_text
@pytest.mark.parametrize("options", OTHER_FEATURES, ids=str)
def test_models_with_other_features(tmp_path, options):
    tokenizer = trained(tmp_path, **options)
    assert_same(tokenizer, [*texts(), *graph_tokenizer.probes(tokenizer)])


def test_a_model_whose_pieces_have_other_characters(tmp_path):
    """It cannot be told where its pieces come from: this is said, and not guessed."""
    assert graph_tokenizer.why_not_offsets(golden("unigram")) == ""
    assert graph_tokenizer.why_not_offsets(golden("bpe")) == ""
    model = sentencepiece_tokenizer.parsed_model(golden("unigram").serialized_model())
    piece = next(piece for piece in model.pieces if piece.piece == "w")
    piece.piece = "wwwwww"
    (tmp_path / "model.model").write_bytes(model.SerializeToString())
    tokenizer = SentencePieceTokenizer(str(tmp_path / "model.model"))
    why_not = graph_tokenizer.why_not_offsets(tokenizer)
    assert (
        why_not.startswith("the vocabulary has the piece '") and " without the piece 'w'" in why_not
    )
    if not graph_sentencepiece.load_operations():
        with (
            tf.Graph().as_default(),
            pytest.raises(ValueError, match=re.escape(why_not)),
        ):
            graph_tokenizer.of(tokenizer).with_offsets(tf.ragged.constant([[119]], tf.int32))
