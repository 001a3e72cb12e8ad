"""Tokens with the characters that they come from, by every tokenizer, on nasty strings."""

import random
import unicodedata

import pytest

from bert_estimator.tokenization import (
    FullTokenizer,
    Piece,
    SentencePieceTokenizer,
    offsets,
    write_vocab,
)
from bert_estimator.tokenization import sentencepiece_tokenizer as of_pieces
from tests.tokenization.test_goldens import DIRECTORY, GOLDENS


@pytest.fixture(scope="module", params=GOLDENS["tokens"])
def tokenizer(request, tmp_path_factory):
    kind, casing = request.param.split("_")
    if kind != "wordpiece":
        return SentencePieceTokenizer(f"{DIRECTORY}/{kind}.model", casing == "uncased")
    vocab_file = str(tmp_path_factory.mktemp("vocabulary") / "vocab.txt")
    write_vocab(GOLDENS["vocab"], vocab_file)
    return FullTokenizer(vocab_file, casing == "uncased")


# Characters that cleaning, casing, Unicode's normal forms or WordPiece treat in their own way.
NASTY = (
    " \t\n\r\x0b\x0c\x1c\x85\u00a0\u2028\u202f\u3000\u200b\u200d\ufeff\x00\ufffd\u00ad"
    "aAzZ09,.,'`\"-_()$^"
    "\u0301\u0308\u0327\u0323\u302e\u093e\u20dd\u0345\u1d165\U0001d165"
    "\u00e9\u00c9\u0130\u03a3\u03c2\u00df\ufb01\u00bd\u2126\u212b\u01c5\u1e9b\u0958\u0344"
    "\u6771\u4eac\uac00\u1100\u1161\u30ac\u306f\u0e33\u0ec0\U0001f389\U0001f468\u2211\uff21\u3392"
)


def texts():
    yield from GOLDENS["strings"]
    generator = random.Random(0)
    for _ in range(600):
        yield "".join(generator.choices(NASTY, k=generator.randrange(12)))
    for _ in range(200):
        codes = (generator.randrange(0x110000) for _ in range(8))
        yield "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


def test_the_tokens_are_the_same(tokenizer):
    for text in texts():
        found = [piece.string for piece in tokenizer.tokenize_with_offsets(text)]
        assert found == tokenizer.tokenize(text), repr(text)


def test_the_ranges_are_inside_of_the_text_and_hold_no_space_at_their_ends(tokenizer):
    for text in texts():
        previous = 0
        for token, start, end in tokenizer.tokenize_with_offsets(text):
            assert 0 <= start <= end <= len(text), repr(text)
            assert start >= previous, repr(text)
            assert text[start:end] == text[start:end].strip(" \t\n\r"), (text, token)
            previous = start
            if isinstance(tokenizer, FullTokenizer):
                assert end > start, (text, token)


def test_characters_that_no_token_comes_from_are_those_that_tokenizers_drop(tokenizer):
    for text in texts():
        covered = set()
        for _, start, end in tokenizer.tokenize_with_offsets(text):
            covered.update(range(start, end))
        for number, char in enumerate(text):
            if number not in covered:
                dropped = (
                    char.isspace() or char == "\ufffd" or unicodedata.category(char)[0] in "CMZ"
                )
                assert dropped or not tokenizer.tokenize(char), (text, number)


def spans(tokenizer, text):
    return [text[start:end] for _, start, end in tokenizer.tokenize_with_offsets(text)]


def test_ranges_by_hand(tmp_path):
    words = ["cafe", "str", "##asse", "tokyo", ".", "-", "i", "##x", "\u6771", "e"]
    write_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words], str(tmp_path / "v.txt"))
    wordpiece = FullTokenizer(str(tmp_path / "v.txt"))
    # A mark of its own belongs to its letter, and so does an accent inside of a letter.
    assert spans(wordpiece, "Cafe\u0301. CAF\u00c9-") == ["Cafe\u0301", ".", "CAF\u00c9", "-"]
    # One letter becomes two, of which one is a mark; zero-width characters vanish.
    assert spans(wordpiece, "\u0130x to\u200bkyo\u200b.") == ["\u0130", "x", "to\u200bkyo", "."]
    assert wordpiece.tokenize_with_offsets("\tunknown\u6771") == [
        Piece("[UNK]", 1, 8),
        Piece("\u6771", 8, 9),
    ]
    assert wordpiece.tokenize_with_offsets(" \t ") == []


def test_the_characters_of_preprocessing():
    for text in texts():
        for do_lower_case in (True, False):
            chars = of_pieces._preprocessed(text, do_lower_case)
            assert offsets.joined(chars) == of_pieces.preprocess(text, do_lower_case), repr(text)
    chars = of_pieces._preprocessed("a ``b'' '''", True)
    assert chars[2] == Piece('"', 2, 4) and chars[4] == Piece('"', 5, 7)


def test_normal_forms():
    for text in texts():
        chars = offsets.characters(text)
        for form in ("NFD", "NFKD"):
            expected = unicodedata.normalize(form, text)
            assert offsets.joined(offsets.normalized(form, chars)) == expected
        assert offsets.joined(offsets.lowered(chars)) == text.lower()
        words = [offsets.joined(word) for word in offsets.words(chars)]
        assert words == text.split()
