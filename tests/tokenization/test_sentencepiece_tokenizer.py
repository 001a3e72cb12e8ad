"""Tests SentencePiece as ALBERT uses it; `test_goldens.py` has more strings."""

import pathlib

import pytest
import sentencepiece

from bert_estimator.tokenization import (
    SentencePieceTokenizer,
    train_sentencepiece,
)
from bert_estimator.tokenization.sentencepiece_tokenizer import preprocess

GOLDENS = pathlib.Path(__file__).parent / "goldens"
TEXTS = ["the cat sat on the mat in 2,019 or 1,000 days", "a dog and the cats, 3,5, and 9,"] * 20


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def tokenizer(request, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("model") / "spm.model")
    train_sentencepiece(TEXTS, path, 40 if request.param == "bpe" else 32, request.param)
    return SentencePieceTokenizer(path)


def test_a_trained_model_has_alberts_special_tokens(tokenizer):
    special = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    assert special == (0, 2, 3, 4)
    assert tokenizer.convert_ids_to_tokens([0, 1]) == ["<pad>", "<unk>"]


def test_training_is_the_same_every_time(tmp_path):
    for name in ("a.model", "b.model"):
        train_sentencepiece(iter(TEXTS), str(tmp_path / name), 32)
    assert (tmp_path / "a.model").read_bytes() == (tmp_path / "b.model").read_bytes()


def test_a_size_that_the_text_does_not_give(tmp_path):
    with pytest.raises(ValueError, match="vocab_size=5000: SentencePiece cannot make such a model"):
        train_sentencepiece(TEXTS, str(tmp_path / "a.model"), 5000)
    assert not list(tmp_path.iterdir())


def test_a_model_without_special_tokens_is_refused(tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_prefix=str(tmp_path / "plain"),
        vocab_size=30,
        minloglevel=2,
    )
    with pytest.raises(
        ValueError, match=r"plain\.model: does not have the piece \[CLS\]\. Train the"
    ):
        SentencePieceTokenizer(str(tmp_path / "plain.model"))


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_a_text_cannot_spell_a_special_token(tmp_path, do_lower_case):
    """A model of another script does not know the letters of the special tokens' names."""
    texts = [f"мама мыла раму {number}" for number in range(10)] * 5
    path = str(tmp_path / "spm.model")
    train_sentencepiece(texts, path, 24, do_lower_case=do_lower_case)
    tokenizer = SentencePieceTokenizer(path, do_lower_case)
    for text in ("[CLS]", "мама [MASK] раму", "мама<pad>", "[SEP] <unk>", "<s>"):
        pieces, ids = tokenizer.tokenize(text), tokenizer.encode(text)
        assert not {tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, 0} & set(ids)
        assert tokenizer.unk_id in ids
        assert [piece.string for piece in tokenizer.tokenize_with_offsets(text)] == pieces


def test_unknown_characters_are_not_split_again(tmp_path):
    path = str(tmp_path / "spm.model")
    train_sentencepiece(["abc abd bca"] * 20, path, 12)  # without digits and commas
    tokenizer = SentencePieceTokenizer(path)
    assert tokenizer.tokenize("ab 9,9,")[-1] == "9,9,"
    assert tokenizer.encode("a9,")[-1] == tokenizer.unk_id


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_pieces_that_are_split_again(kind):
    tokenizer = SentencePieceTokenizer(str(GOLDENS / f"{kind}.model"))
    pieces = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    again = {p: tokenizer._without_comma(p) for p in pieces if tokenizer._is_number_with_comma(p)}
    expected = {
        "unigram": ("\u25812019,", ["\u2581", *"2019,"]),
        "bpe": ("2019,", ["201", "9", ","]),
    }
    assert expected[kind] in again.items()
    assert len(again) > 3
    for piece in again:
        if piece[0] == "\u2581":
            assert tokenizer.tokenize(piece[1:]) == again[piece]


def test_clean_up():
    assert preprocess("  Ein\t``Café''\n ") == 'ein "cafe"'
    assert preprocess("ÉCOLE", do_lower_case=False) == "ECOLE"


def test_what_continues_a_word(tokenizer):
    starts = ["\u2581the", "\u2581", ",", ".", "'", "<unk>", "<pad>", "[CLS]", "[MASK]", "\u732b"]
    continues = ["t", "ing", "5", "\u044f", "\u3042"]
    assert not [piece for piece in starts if tokenizer.is_continuation(piece)]
    assert [piece for piece in continues if tokenizer.is_continuation(piece)] == continues
