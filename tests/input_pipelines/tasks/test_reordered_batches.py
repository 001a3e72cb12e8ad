"""Examples in the order of their lengths, and in batches of about as many tokens."""

import numpy as np
import pytest
from number_features import features_of

from input_pipelines.tasks import features_input
from input_pipelines.tasks.features_input import ReorderedBatches


def examples(number, seed=3):
    """Returns examples of up to 9 tokens, whose label is their number."""
    words = np.random.default_rng(seed).integers(1, 8, number)
    return features_of(*((" ".join("7" * n), None, i) for i, n in enumerate(words)), length=12)


def test_the_longest_come_first_in_each_part(monkeypatch):
    monkeypatch.setattr(features_input, "_TOGETHER", 2)
    features = examples(11)
    found = ReorderedBatches(features, 3)
    assert (len(found), found.max_seq_length) == (11, 12)
    for part in (slice(0, 6), slice(6, 11)):
        np.testing.assert_array_equal(found.lengths[part], sorted(features.lengths[part])[::-1])
    labels = found.batch(np.arange(11))["label_ids"]
    assert sorted(labels[:6]) == [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(features.lengths[labels], found.lengths)


def test_a_batch_has_the_features_of_its_examples_and_padding():
    features = examples(5)
    found = ReorderedBatches(features, 2)
    batch = found.batch(np.array([4, 0, -1]), 10)
    expected = features.batch(np.array([*found.batch(np.array([4, 0]))["label_ids"], -1]), 10)
    np.testing.assert_equal(batch, expected)
    assert batch["input_ids"].shape == (3, 10)
    assert batch["is_real_example"].tolist() == [1, 1, 0]


@pytest.mark.parametrize("number", [1, 5, 6, 7, 12, 50])
def test_predictions_come_in_the_order_of_the_examples(monkeypatch, number):
    monkeypatch.setattr(features_input, "_TOGETHER", 2)
    reordered = ReorderedBatches(examples(number), 3)
    read = []

    def rows():
        for label in reordered.batch(np.arange(number))["label_ids"]:
            read.append(label)
            yield {"unique_ids": label}
            yield {"unique_ids": -1}

    predictions = features_input.in_order(rows())
    assert next(predictions)["unique_ids"] == 0
    assert len(read) <= min(6, number)
    assert [0, *(row["unique_ids"] for row in predictions)] == list(range(number))


@pytest.mark.parametrize("number", [3, 12, 50])
def test_balanced_batches_have_about_the_same_number_of_tokens(number):
    features = examples(number)
    reordered = ReorderedBatches(features, 3, is_balanced=True)
    assert sorted(reordered.batch(np.arange(number))["label_ids"]) == list(range(number))
    tokens = reordered.lengths[: number // 3 * 3].reshape(-1, 3).sum(axis=1)
    shuffled = features.lengths[: number // 3 * 3].reshape(-1, 3).sum(axis=1)
    assert np.ptp(tokens) <= min(7, np.ptp(shuffled))  # lengths differ by up to 7
