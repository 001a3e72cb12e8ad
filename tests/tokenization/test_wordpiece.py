import pathlib
import random
import re
import subprocess
import sys

import pytest

from bert_estimator.tokenization import wordpiece
from bert_estimator.tokenization.wordpiece import (
    SPECIAL_TOKENS,
    BasicTokenizer,
    FullTokenizer,
    WordpieceTokenizer,
    load_vocab,
)


def vocab_file(tmp_path, tokens, name="vocab.txt"):
    path = tmp_path / name
    path.write_bytes("".join(token + "\n" for token in tokens).encode())
    return str(path)


def test_wordpiece_takes_the_longest_match_first():
    vocab = {
        token: i
        for i, token in enumerate(["[UNK]", "un", "una", "##ffa", "##ff", "##able", "##ble", "a"])
    }
    tokenizer = WordpieceTokenizer(vocab)
    assert tokenizer.tokenize("unaffable") == ["una", "##ffa", "##ble"]
    # "una" is taken although "un" and "##able" would do.
    assert tokenizer.tokenize("unable a") == ["una", "##ble", "a"]
    # No piece matches after "una", so the whole word is unknown, not only its rest.
    assert tokenizer.tokenize("unax a") == ["[UNK]", "a"]
    assert tokenizer.tokenize("") == []


def test_wordpiece_gives_up_on_words_over_200_characters():
    tokenizer = WordpieceTokenizer({"[UNK]": 0, "a": 1, "##a": 2})
    assert tokenizer.tokenize("a" * 200) == ["a"] + ["##a"] * 199
    assert tokenizer.tokenize("a" * 201) == ["[UNK]"]


def test_full_tokenizer_and_ids(tmp_path):
    tokens = [*SPECIAL_TOKENS, "un", "##aff", "##able", "runn", "##ing", ",", "\u535a"]
    tokenizer = FullTokenizer(vocab_file(tmp_path, tokens))
    pieces = tokenizer.tokenize("UNaff\u00e1ble,\u535arunning?")
    assert pieces == ["un", "##aff", "##able", ",", "\u535a", "runn", "##ing", "[UNK]"]
    ids = tokenizer.convert_tokens_to_ids(pieces)
    assert ids == [5, 6, 7, 10, 11, 8, 9, 1]
    assert tokenizer.convert_ids_to_tokens(ids) == pieces
    assert [tokenizer.is_continuation(piece) for piece in pieces[:3]] == [False, True, True]


def test_load_vocab_numbers_lines(tmp_path):
    path = vocab_file(tmp_path, [*SPECIAL_TOKENS, "a", "##a"])
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a"]
    assert list(load_vocab(path).items()) == list(zip(tokens, range(7), strict=True))


def test_a_line_may_be_a_single_line_separator(tmp_path):
    # As in the vocabulary of BERT-Base, Chinese.
    path = vocab_file(tmp_path, [*SPECIAL_TOKENS, "a", "\u2028", " b "])
    assert list(load_vocab(path))[5:] == ["a", "\u2028", "b"]
    tokenizer = FullTokenizer(path)
    assert tokenizer.tokenize("a\u2028b \u2028") == ["a", "b"]


def test_long_words_are_not_cached(tmp_path):
    tokenizer = FullTokenizer(vocab_file(tmp_path, [*SPECIAL_TOKENS, "a", ",", "b"]))
    words = tokenizer.basic_tokenizer.split_word.__self__
    pieces = tokenizer.wordpiece_tokenizer.pieces.__self__
    long, word = "a," * 101, "a," * 100
    assert tokenizer.encode(long) == [5, 6] * 101
    assert tokenizer.tokenize(f"{long} {'b' * 201}") == ["a", ","] * 101 + ["[UNK]"]
    assert len(tokenizer.tokenize_with_offsets(long)) == 202
    assert not (tokenizer._ids or tokenizer._tokens_of_chunk or words)
    assert set(pieces) == {"a", ","}
    assert tokenizer.encode(word) == [5, 6] * 100
    assert list(tokenizer._ids) == list(words) == [word]


def test_tokenization_needs_no_tensorflow():
    program = "import sys, bert_estimator.tokenization; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize("most", [3, 1 << 18])
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_encode_gives_the_ids_of_the_tokens(tmp_path, monkeypatch, most, do_lower_case):
    monkeypatch.setattr(wordpiece, "_CACHED_WORDS", most)
    letters = ["a", "b", "A", "\u00e9", "\u0130", "\u535a", "\u3053", ",", "$", "\u2014", "5", "e"]
    vocab = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters), "ab", "##ba"]
    path = vocab_file(tmp_path, vocab)
    tokenizer = FullTokenizer(path, do_lower_case)
    rng = random.Random(0)
    others = ["  ", *" \t\r\u00a0\x1c\x85\u2028\u0000\u200b\u0301"]
    for _ in range(500):
        text = "".join(rng.choices(letters + others + ["q"], k=rng.randrange(12)))
        basic = BasicTokenizer(do_lower_case).tokenize(text)
        pieces = WordpieceTokenizer(tokenizer.vocab).tokenize(" ".join(basic))
        assert tokenizer.tokenize(text) == pieces
        assert tokenizer.encode(text) == [tokenizer.vocab[piece] for piece in pieces]
    assert len(tokenizer._ids) <= most


def test_the_documented_losses_of_languages():
    """docs/tokens.md has a table of what the default does to words, by language."""
    text = (pathlib.Path(__file__).parents[2] / "docs/tokens.md").read_text(encoding="utf-8")
    pairs = re.findall(r"`([^` ]+)` → `([^` ]+)`", text.split("## Sentences")[0])
    assert len(pairs) > 15
    for word, stripped in pairs:
        assert BasicTokenizer().tokenize(word) == [stripped]
        assert BasicTokenizer(strip_accents=False).tokenize(word) == [word]
    assert BasicTokenizer().tokenize("ł đ ß का") == ["ł", "đ", "ß", "का"]
