"""Features: the layout of google-research/bert's convert_single_example, on words that are ids."""

import numpy as np
import pytest
from number_features import features_of

from bert_estimator.tokenization import train_sentencepiece
from bert_estimator.tokenization.sentencepiece_tokenizer import SentencePieceTokenizer
from input_pipelines.tasks.features import TagFeatures
from input_pipelines.tasks.tag_files import Sentence


def test_a_text_and_a_pair():
    features = features_of(("7 8", None, 0), ("7 8", "9", 1))
    batch = features.batch(np.array([1, 0]))
    assert batch["input_ids"].tolist() == [
        [101, 7, 8, 102, 9, 102, 0, 0],
        [101, 7, 8, 102, 0, 0, 0, 0],
    ]
    assert batch["input_mask"].tolist() == [[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]]
    assert batch["segment_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 0, 0], [0] * 8]
    assert batch["label_ids"].tolist() == [1, 0]
    assert batch["is_real_example"].tolist() == [1, 1]
    assert {value.dtype for value in batch.values()} == {np.dtype(np.int32)}
    assert features.num_cut == 0


def test_the_longer_text_is_cut_token_by_token():
    features = features_of(("1 2 3 4 5 6", "7 8", 0), ("1 2", "5 6 7 8 9", 0), ("1 " * 7, None, 0))
    ids = features.batch(np.arange(3))["input_ids"].tolist()
    assert ids[0] == [101, 1, 2, 3, 102, 7, 8, 102]
    assert ids[1] == [101, 1, 2, 102, 5, 6, 7, 102]
    assert ids[2] == [101, 1, 1, 1, 1, 1, 1, 102]
    assert features.num_cut == 3


def test_examples_that_fill_up_a_batch_are_zeros():
    batch = features_of(("1", "2", 3.5), ("4", "5", 1.5)).batch(np.array([1, -1]))
    assert batch["is_real_example"].tolist() == [1, 0]
    assert batch["label_ids"].tolist() == [1.5, 0.0]
    assert batch["label_ids"].dtype == np.float32
    for name in ("input_ids", "input_mask", "segment_ids"):
        assert not batch[name][1].any() and batch[name][0].any() == (name != "none")


@pytest.mark.parametrize(
    ("label", "shape", "dtype"), [(1, (2,), np.int32), ((0, 1, 1), (2, 3), np.int32)]
)
def test_labels_by_kind(label, shape, dtype):
    batch = features_of(("1", None, label)).batch(np.array([0, -1]))
    assert batch["label_ids"].shape == shape and batch["label_ids"].dtype == dtype
    assert not batch["label_ids"][1].any()


def test_without_labels():
    assert "label_ids" not in features_of(("1", None, None)).batch(np.array([0]))


def test_a_digest_tells_data_apart():
    base = features_of(("1 2", "3", 0)).digest()
    assert base == features_of(("1 2", "3", 0)).digest()
    others = [("1", "2 3", 0), ("1 2", "3", 1), ("1 2", "4", 0)]
    assert base not in [features_of(other).digest() for other in others]
    assert base != features_of(("1 2", "3", 0), length=9).digest()


def test_bag_of_words():
    owners, words = features_of(("7 8", "7", 0), ("9", None, 0)).bag_of_words(200)
    assert owners.tolist() == [0] * 6 + [1] * 3
    assert words.tolist() == [101, 7, 8, 102, 207, 302, 101, 9, 102]


def test_first_pieces_have_the_tags(tokenizer):
    features = TagFeatures([Sentence(("w0", "w1ab", "w2"), (1, 2, 3))], tokenizer, 8)
    batch = features.batch(np.array([0, -1]))
    cls_id, sep_id, a, b = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]", "##a", "##b"])
    assert batch["input_ids"].tolist() == [[cls_id, 5, 6, a, b, 7, sep_id, 0], [0] * 8]
    assert batch["input_mask"].tolist() == [[1] * 7 + [0], [0] * 8]
    assert batch["label_mask"].tolist() == [[0, 1, 1, 0, 0, 1, 0, 0], [0] * 8]
    assert batch["label_ids"].tolist() == [[0, 1, 2, 0, 0, 3, 0, 0], [0] * 8]
    assert batch["is_real_example"].tolist() == [1, 0]
    assert {value.dtype for value in batch.values()} == {np.dtype(np.int32)}
    assert (len(features), features.num_split, features.describe_cuts()) == (1, 0, "")


@pytest.mark.parametrize("length", [5, 6, 7, 9, 30])
def test_every_word_is_in_exactly_one_window(tokenizer, length):
    generator = np.random.default_rng(length)
    sentences = []
    for _ in range(20):
        numbers = generator.integers(40, size=generator.integers(1, 30))
        words = tuple(f"w{n}" + "ab"[: generator.integers(3)] for n in numbers)
        sentences.append(Sentence(words, tuple(map(int, numbers))))
    features = TagFeatures(sentences, tokenizer, length)
    rows = features.batch(np.arange(len(features)))
    ids = features.by_sentence(list(rows["input_ids"]))
    tags = features.by_sentence(list(rows["label_ids"]))
    assert [tuple(row) for row in tags] == [sentence.tags for sentence in sentences]
    # The id of "wN" is N + 5.
    assert [tuple(row - 5) for row in ids] == [sentence.tags for sentence in sentences]
    assert (rows["input_mask"].sum(axis=1) <= length).all()
    begins = 1 - rows["continues_sentence"]
    assert begins.sum() == len(sentences)
    assert (features.num_split > 0) == (length < 30 or len(features) > 20)
    # No window has room for the first word of the next window.
    whole = rows["input_mask"].sum(axis=1)
    for number in np.flatnonzero(rows["continues_sentence"]):
        second = np.flatnonzero(rows["label_mask"][number])[1:2]
        pieces = (second[0] if len(second) else whole[number] - 1) - 1
        assert whole[number - 1] + pieces > length


def test_words_without_pieces_and_with_too_many(tokenizer):
    sentence = Sentence(("\u200b", "w1abcde", "w2"), (1, 2, 3))
    features = TagFeatures([sentence], tokenizer, 5)
    batch = features.batch(np.arange(len(features)))
    assert batch["input_ids"][0, 1] == tokenizer.unk_id
    assert [row.tolist() for row in features.by_sentence(list(batch["label_ids"]))] == [[1, 2, 3]]
    assert features.num_cut == 1
    assert features.describe_cuts() == (
        "1 of 1 sentences were split and 1 words lost their last pieces to fit 5 tokens "
        "(--max_seq_length)"
    )


def test_sentencepiece(tmp_path):
    path = str(tmp_path / "pieces.model")
    train_sentencepiece(["hello world again"] * 50 + ["hello 2,000"] * 20, path, 21)
    tokenizer = SentencePieceTokenizer(path)
    sentence = Sentence(("Hello", "\u200b", "2,000"), (1, 0, 2))
    features = TagFeatures([sentence], tokenizer, 32)
    batch = features.batch(np.array([0]))
    (tags,) = features.by_sentence(list(batch["label_ids"]))
    assert tags.tolist() == [1, 0, 2]
    hello = tokenizer.encode("Hello")
    assert batch["input_ids"][0, 1 : 1 + len(hello)].tolist() == hello


def test_the_digest_tells_tags_words_and_windows_apart(tokenizer):
    def digest(words, tags, length=8):
        return TagFeatures([Sentence(words, tags)], tokenizer, length).digest()

    digests = [
        digest(("w0", "w1"), (1, 2)),
        digest(("w0", "w1"), (1, 1)),
        digest(("w0", "w2"), (1, 2)),
        digest(("w0", "w1"), None),
        digest(("w0", "w1"), (1, 2), 9),
        digest(("w0", "##a"), (1, 2)),
        digest(("w0a",), (1,)),
    ]
    assert len(set(digests)) == len(digests)
    assert digests[0] == digest(("w0", "w1"), (1, 2))
