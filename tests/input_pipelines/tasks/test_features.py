"""Features: the layout of google-research/bert's convert_single_example, on words that are ids."""

import numpy as np
import pytest
from number_features import features_of


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
