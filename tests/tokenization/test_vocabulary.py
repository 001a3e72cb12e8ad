import io
import pathlib

import pytest
import sentencepiece

from bert_estimator.tokenization import (
    FullTokenizer,
    train_sentencepiece,
    train_vocabulary,
    write_vocab,
)
from bert_estimator.tokenization.sentencepiece_tokenizer import preprocess

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


def test_same_texts_same_vocabulary():
    assert train_vocabulary(TEXTS, 55) == train_vocabulary(iter(TEXTS), 55)


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


def test_casing():
    vocab = train_vocabulary(["Apple apple \u00e9tude"] * 5, 40, False, character_coverage=1.0)
    assert {"A", "a", "\u00e9"} <= set(vocab)
    lower = train_vocabulary(["Apple apple \u00e9tude"] * 5, 30, character_coverage=1.0)
    assert not {"A", "\u00e9"} & set(lower)


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
def test_a_model_of_no_text(tmp_path, kind):
    with pytest.raises(ValueError, match=r"vocab_size=45: SentencePiece cannot make such a model"):
        train_sentencepiece(iter(["", " "]), str(tmp_path / "spm.model"), 45, kind)
