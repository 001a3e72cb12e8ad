# ruff: noqa: RUF001

import collections
import io
import pathlib
import re

import numpy as np
import pytest
import sentencepiece

from bert_estimator.tokenization import (
    BasicTokenizer,
    FullTokenizer,
    open_tokenizer,
    train_sentencepiece,
    train_vocabulary,
    vocabulary,
    write_vocab,
)
from bert_estimator.tokenization.sentencepiece_tokenizer import preprocess
from bert_estimator.tokenization.vocabulary import WordCounts, sample
from bert_estimator.tokenization.wordpiece import stands_alone

TEXTS = [
    "the lower the cat, the newer the newest cat",
    "lowest and newest; widest and lowest",
    "the widest cat is the newest",
] * 3


# By hand: "es" occurs most (7 of the words end in "est"), then come "est", "he" and "the", ...
PINNED_MERGES = [
    *("##es", "##est", "##he", "the", "##west", "##ne", "ne", "##at"),
    *("##lo", "lo", "cat", "newest", "##an", "##er", "##id"),
]


def test_pinned_vocabulary():
    vocab = train_vocabulary(TEXTS, 50, character_coverage=1.0)
    assert len(vocab) == len(set(vocab)) == 50
    assert vocab[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    alphabet = sorted(set("".join(TEXTS)) - {" "})
    assert vocab[5 : 5 + 2 * len(alphabet)] == alphabet + ["##" + char for char in alphabet]
    assert vocab[5 + 2 * len(alphabet) :] == PINNED_MERGES


def test_a_smaller_vocabulary_is_a_prefix():
    assert train_vocabulary(TEXTS, 48) == train_vocabulary(TEXTS, 55)[:48]


def test_seen_text_has_no_unknown_words(tmp_path):
    texts = [*TEXTS, "R\u00e9sum\u00e9 \u535a\u63a8 x_1 \u2581odd"]
    path = str(tmp_path / "vocab.txt")
    write_vocab(train_vocabulary(texts, 70, character_coverage=1.0), path)
    tokenizer = FullTokenizer(path)
    for text in texts:
        assert "[UNK]" not in tokenizer.tokenize(text)
    assert "[UNK]" not in tokenizer.tokenize("tact")


def test_rare_characters_are_left_out():
    texts = ["ab ba"] * 5000 + ["\u535a"]
    assert "\u535a" not in train_vocabulary(texts, 11)
    assert "\u535a" in train_vocabulary(texts, 12, character_coverage=1.0)


CHINESE = "今天天气很好，我们去公园。你想来吗？\U00020000\uf900 AI技术3.14版本（版）"
SCRIPTS = {
    "Chinese": CHINESE,
    "Japanese": "今日はいい天気です。カレーを食べよう！「はい」と言う",
    "Korean": "그는 갔다, 그리고 왔다. (정말?) 韓國",
    "Russian": "Это дом, а там сад. «Да»!",
    "Hindi": "यह घर है, वह बाग। (हाँ?)",
    "Arabic": "هذا بيت، وذلك؟",
    "English and Chinese": "the lower, the 今天. It's",
}


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("strip_accents", [None, True, False])
@pytest.mark.parametrize("script", SCRIPTS)
def test_characters_that_stand_alone_do_not_continue_words(
    tmp_path, script, do_lower_case, strip_accents
):
    casing = {"do_lower_case": do_lower_case, "strip_accents": strip_accents}
    texts = [SCRIPTS[script]] * 3
    counted = vocabulary.count_words(texts, **casing)
    with pytest.raises(ValueError, match=r"gives only (\d+) tokens") as error:
        vocabulary.vocabulary_of(counted, 1000, 1.0)
    size = int(re.search(r"only (\d+) tokens", str(error.value))[1])
    whole = vocabulary.vocabulary_of(counted, size, 1.0)
    for piece in whole:
        # A text reaches the piece: its character does not stand alone behind a letter.
        char = piece.removeprefix("##")
        if piece.startswith("##") and len(char) == 1:
            assert len(BasicTokenizer(**casing).tokenize(f"a{char}a")) == 1, ascii(piece)
    path = str(tmp_path / "vocab.txt")
    write_vocab(whole, path)
    tokenizer = open_tokenizer(path, **casing)
    assert "[UNK]" not in tokenizer.tokenize(texts[0])


@pytest.mark.parametrize(
    "text",
    [
        "the lower, the newer; it's!",
        "\u201cCaf\u00e9\u201d \u2013 5 \u00b5m, 1\u00aa",
        "Ti\u1ebfng Vi\u1ec7t.",
    ],
)
def test_ids_of_latin_vocabularies_stay(text):
    counted = vocabulary.count_words([text], False, None)
    alphabet = sorted(set(text) - {" "})
    vocab = vocabulary.vocabulary_of(counted, 5 + 2 * len(alphabet), 1.0)
    assert vocab[5:] == alphabet + [f"##{char}" for char in alphabet]


@pytest.mark.parametrize("strip_accents", [True, False])
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_which_characters_stand_alone(do_lower_case, strip_accents):
    """For all characters that are not changed, since a vocabulary has what they have become."""
    tokenizer = BasicTokenizer(do_lower_case, strip_accents)
    for code in range(0x32000):
        char = chr(code)
        tokens = [] if 0xD800 <= code < 0xE000 else tokenizer.tokenize(f"a{char}a")
        if char in "".join(tokens[:2]) and char != "a":
            assert stands_alone(char) == (tokens == ["a", char, "a"]), hex(code)


@pytest.mark.parametrize(
    ("texts", "vocab_size", "message"),
    [
        (TEXTS, 20, r"vocab_size=20: the special .*15 characters already need 35\. Ask for more"),
        (TEXTS, 500, r"vocab_size=500: the text \(11 distinct words\) gives only \d+ tokens\. Ask"),
        ([" ", ""], 50, r"does not have words\. Give more text"),
    ],
)
def test_errors(texts, vocab_size, message):
    with pytest.raises(ValueError, match=message):
        train_vocabulary(texts, vocab_size, character_coverage=1.0)


def test_write_vocab(tmp_path):
    path = tmp_path / "vocab.txt"
    write_vocab(["[PAD]", "\u535a", "##x"], str(path))
    assert path.read_bytes() == "[PAD]\n\u535a\n##x\n".encode()
    assert [entry.name for entry in tmp_path.iterdir()] == ["vocab.txt"]


def test_counted_words_give_the_byte_pairs_of_the_sentences(tmp_path):
    texts = [f"{text} No {i % 7} caf\u00e9s" for i, text in enumerate(TEXTS)]
    path = str(tmp_path / "spm.model")
    assert train_sentencepiece(iter(texts), path, 45, "bpe") == 1.0
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([preprocess(text) for text in texts]),
        model_writer=model,
        model_type="bpe",
        vocab_size=45,
        character_coverage=0.9999,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        num_threads=1,
        minloglevel=2,
    )
    expected, found = (
        sentencepiece.SentencePieceProcessor(model_proto=content)
        for content in (model.getvalue(), pathlib.Path(path).read_bytes())
    )
    pieces = [(p.id_to_piece(i), p.get_score(i)) for p in (expected, found) for i in range(45)]
    assert pieces[:45] == pieces[45:]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(
    "long",
    [
        "\u5929\u5730\u7384\u9ec4\u5b87\u5b99" * 400,  # without spaces, in 3 bytes each
        "\U00020000\U00020001\U00020002" * 700,  # in 4 bytes each
        "qux zyzzyx jub " * 400,
        "qux \u2585 jub",  # SentencePiece reserves this character.
    ],
)
def test_long_lines_are_trained_from(tmp_path, kind, long):
    path = str(tmp_path / "spm.model")
    assert train_sentencepiece(iter([*TEXTS, long]), path, 30, kind) == 1.0
    tokenizer = open_tokenizer(path)
    characters = {*"".join(tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size)))}
    assert set(long) - {" ", "\u2585"} <= characters


def test_long_texts_are_broken_at_spaces_and_not_before_marks():
    def parts(text):
        found = list(vocabulary._parts(text, 6))
        assert "".join(found) == text
        return found

    assert parts("one two three fourteen") == ["one", " two", " three", " fourt", "een"]
    assert parts("x" * 6) == ["x" * 6] and parts("x" * 13) == ["x" * 6, "x" * 6, "x"]
    assert parts("\u0e01\u0e49\u0e33" * 3 + "\u0e01\u0e49") == [
        "\u0e01\u0e49\u0e33" * 2,
        "\u0e01\u0e49\u0e33\u0e01\u0e49",
    ]
    assert parts("aaaaa" + "\u0e49" * 2 + "b") == ["aaaa", "a\u0e49\u0e49b"]
    assert parts("\u0e49" * 13)[0] == "\u0e49" * 6


COUNTED = [
    "The cat, the mat.  And a\tcat\u3000of \u535a\u63a8!",
    "",
    " Caf\u00e9\x0bau\u00a0lait \x00\ufffd ",
    "\u03a3\u039f\u03a6\u039f\u03a3 \u0301x \u2028y",
] * 3


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("most_chunks", [1 << 20, 2])
def test_counts_are_of_the_words_of_the_tokenizer(monkeypatch, do_lower_case, most_chunks):
    monkeypatch.setattr(vocabulary, "_MOST_CHUNKS", most_chunks)
    monkeypatch.setattr(vocabulary, "_CHARACTERS_AT_ONCE", 40)
    tokenizer = BasicTokenizer(do_lower_case)
    counted = WordCounts(tokenizer.tokenize)
    counted.add(iter(COUNTED))
    expected = collections.Counter()
    for text in COUNTED:
        expected.update(tokenizer.tokenize(text))
    assert counted.words == expected
    assert not counted.characters_forgotten and counted.least == 0


def test_the_rarest_words_are_forgotten(monkeypatch):
    monkeypatch.setattr(vocabulary, "_MOST_CHUNKS", 50)
    monkeypatch.setattr(vocabulary, "_CHARACTERS_AT_ONCE", 100)
    generator = np.random.default_rng(1)
    numbers = generator.zipf(1.3, size=20000) % 3000
    words = [f"{number}x" for number in numbers.tolist()]
    exact = collections.Counter(words)
    counted = WordCounts(str.split, most_words=400)
    for start in range(0, len(words), 5000):
        counted.add(words[start : start + 5000])
    assert len(counted.words) <= 400
    assert counted.least > 1
    for word, count in exact.most_common(50):  # what is frequent is hardly ever forgotten
        assert count - 5 * counted.least <= counted.words[word] <= count
    # No character is lost.
    characters = collections.Counter("".join(words))
    found = collections.Counter(counted.characters_forgotten)
    for word, count in counted.words.items():
        for char in word:
            found[char] += count
    assert found == characters


def test_a_sample_is_the_text_if_it_is_small():
    texts = [f"text {i}" for i in range(100)]
    assert sample(iter(texts)) == (texts, 1.0)
    assert sample([]) == ([], 0.0)
    assert sample(["long" * 9], most_characters=3) == (["long" * 9], 1.0)


def test_a_sample_is_bounded_in_order_and_spread_evenly():
    texts = [f"text {i:06d}" for i in range(20000)]
    drawn, share = sample(iter(texts), most_characters=36000)
    assert drawn == sorted(set(drawn)) == sample(texts, most_characters=36000)[0]
    assert 17000 < sum(map(len, drawn)) <= 36000
    assert share == len(drawn) / len(texts)
    firsts = sum(text < "text 010000" for text in drawn)
    assert firsts / len(drawn) == pytest.approx(0.5, abs=0.05)
