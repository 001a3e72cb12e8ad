"""Tests that the bag-of-words baseline learns from words, but not from their order."""

import numpy as np
import pytest
import sklearn.linear_model
from number_features import features_of

from input_pipelines.tasks import baselines
from input_pipelines.tasks.tag_files import Sentence

VOCAB = 110
GENERATOR = np.random.default_rng(3)


def pairs(number, label_of):
    rows = [(GENERATOR.integers(1, 20, 3), GENERATOR.integers(1, 20, 2)) for _ in range(number)]
    return features_of(
        *((" ".join(map(str, a)), " ".join(map(str, b)), label_of(a, b)) for a, b in rows)
    )


def dense(features):
    matrix = np.zeros((len(features), 2 * VOCAB))
    np.add.at(matrix, features.bag_of_words(VOCAB), 1)
    return matrix


def test_it_is_logistic_regression_on_counts():
    def label_of(a, b):
        return int(sum(a) - sum(b) + GENERATOR.normal(scale=8) > 8)

    train, held_out = pairs(400, label_of), pairs(200, label_of)
    oracle = sklearn.linear_model.LogisticRegression(max_iter=2000)
    expected = oracle.fit(dense(train), train.labels).score(dense(held_out), held_out.labels)
    found = baselines.bag_of_words_accuracy(train, held_out, 2, VOCAB)
    assert expected > 0.7 and abs(found - expected) < 0.04


def test_three_labels():
    train, held_out = (pairs(300, lambda a, b: int(min(a) // 5) % 3) for _ in range(2))
    assert baselines.bag_of_words_accuracy(train, held_out, 3, VOCAB) > 0.6


def test_order_is_not_seen():
    both = [
        example
        for i in range(1, 10)
        for example in ((f"{i} {i + 1}", None, 1), (f"{i + 1} {i}", None, 0))
    ]
    features = features_of(*both)
    assert baselines.bag_of_words_accuracy(features, features, 2, VOCAB) == 0.5


def test_the_usual_tag_of_a_word():
    train = [
        Sentence(("a", "b", "a"), (1, 0, 1)),
        Sentence(("a", "c"), (0, 2)),
        Sentence(("b", "b"), (0, 0)),
    ]
    held_out = [Sentence(("a", "b", "c", "d"), (1, 0, 0, 0))]
    assert baselines.usual_tags(train, held_out) == [[1, 0, 2, 0]]
    assert baselines.usual_tags_score(train, held_out, ("N", "V", "A")) == 0.75
    # The entity of c is wrong: precision 1/2, recall 1.
    assert baselines.usual_tags_score(train, held_out, ("O", "B-X", "B-Y")) == pytest.approx(2 / 3)
