"""The head that labels words: loss, normalisation, weights, and entities joined over windows."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.model_fns import classification, fine_tuning, metrics
from bert_estimator.tokenization import entities
from bert_estimator.tpu.replicas.replica import Replica
from tests.model_fns.test_classification import (
    CONFIG,
    B,
    F,
    check_micro_batches,
    evaluated,
    one_step,
)

LABELS = ("O", "B-X", "I-X")
GENERATOR = np.random.default_rng(5)
FEATURES = {
    "input_ids": GENERATOR.integers(1, 20, [B, F]).astype(np.int32),
    "input_mask": np.ones([B, F], np.int32),
    "segment_ids": np.zeros([B, F], np.int32),
    "label_mask": np.array([[0, 1, 1, 0, 1, 0]] * 3 + [[0, 1, 1, 1, 1, 0]], np.int32),
    "label_ids": np.array([[0, 1, 2, 0, 2, 0]] * 2 + [[0, 2, 0, 0, 1, 0]] * 2, np.int32),
    "unique_ids": np.array([0, 1, 2, -1], np.int32),
    "continues_sentence": np.array([0, 1, 0, 0], np.int32),
    "is_real_example": np.array([1, 1, 1, 0], np.int32),
}
WEIGHTS = (FEATURES["label_mask"] * FEATURES["is_real_example"][:, None]).astype(np.float64)


def head_of(metrics=(*classification.ENTITY_METRICS, "accuracy", "macro_f1"), **options):
    return classification.TaggingHead("tagging", 3, metrics, labels=LABELS, **options)


def build(mode, rule=None, head=None, rows=slice(None), **options):
    tf.set_random_seed(3)
    features = {name: tf.constant(value[rows]) for name, value in FEATURES.items()}
    network = fine_tuning.NetworkBuilder(CONFIG, **options)
    model_fn = classification.model_fn_builder(network, head or head_of(), rule)
    return model_fn(features, None, mode, {})


def numpy_losses(logits):
    logits = logits.astype(np.float64)
    chosen = np.take_along_axis(logits, FEATURES["label_ids"][..., None], -1)[..., 0]
    return np.log(np.exp(logits).sum(axis=-1)) - chosen


def test_evaluation():
    loss, values, found = evaluated(build)
    losses = numpy_losses(values["logits"])
    assert values["logits"].shape == (B, F, 3)
    mean = (losses * WEIGHTS).sum() / WEIGHTS.sum()
    assert loss == pytest.approx(mean, rel=1e-5)
    assert found["mean_loss"] == pytest.approx(mean, rel=1e-5)
    guesses = values["logits"].argmax(axis=-1)
    right = guesses == FEATURES["label_ids"]
    assert found["accuracy"] == pytest.approx((right * WEIGHTS).sum() / WEIGHTS.sum())
    assert list(found) == [*classification.ENTITY_METRICS, "accuracy", "macro_f1", "mean_loss"]
    # Rows 0 and 1 are one sentence, and row 3 only pads.
    sentences = [
        [
            [LABELS[label] for row in rows for label in tags[row][FEATURES["label_mask"][row] > 0]]
            for rows in ((0, 1), (2,))
        ]
        for tags in (FEATURES["label_ids"], guesses)
    ]
    precision, recall, f1 = entities.scores(*sentences)
    names = ("entity_f1", "entity_precision", "entity_recall")
    assert [found[name] for name in names] == pytest.approx([f1, precision, recall])


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0, 1, 4, 2], [4, 3, 2, 1, 0]])
@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_scores_do_not_depend_on_the_batch(batch, order):
    """A sentence of 7 words has windows of 3; its entity of words 2 to 4 spans two windows."""
    labels = np.array([[0, 1, 2], [2, 0, 1], [1, 9, 9], [1, 2, 9], [0, 0, 0]], np.int32)
    guesses = np.array([[0, 1, 2], [2, 0, 0], [1, 9, 9], [1, 1, 9], [0, 1, 2]], np.int32)
    mask = np.float32(labels < 9)
    continues = np.array([0, 1, 1, 0, 0], np.int32)
    columns = [np.eye(3)[guesses % 9], labels % 9, mask, np.arange(5, dtype=np.int32), continues]
    columns = [column[order] for column in columns]
    # Labelled are [1, 4), [5, 6), [6, 7) of the first sentence and [0, 2) of the second.
    expected = {"entity_precision": 2 / 5, "entity_recall": 2 / 4, "entity_f1": 4 / 9}
    head, total = head_of(classification.ENTITY_METRICS), {}
    for first in range(0, 5, batch):
        metrics.add(total, head.count(*(column[first : first + batch] for column in columns)))
    assert head.values_of(total) == pytest.approx(expected)


def test_metrics_of_nothing_are_0():
    ids, numbers = np.zeros([2, 3], np.int32), np.zeros(2, np.int32)
    counts = head_of().count(np.zeros([2, 3, 3]), ids, np.zeros([2, 3]), numbers, numbers)
    assert set(head_of().values_of(counts).values()) == {0.0}


def test_predictions():
    with tf.Graph().as_default(), tf.Session() as session:
        spec = build(tpu.ModeKeys.PREDICT)
        session.run(tf.global_variables_initializer())
        found = session.run(spec.predictions)
    assert found["logits"].shape == (B, F, 3)
    exponentials = np.exp(found["logits"].astype(np.float64))
    expected = exponentials / exponentials.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(found["probabilities"], expected, rtol=1e-5)


@pytest.fixture
def no_head_dropout(monkeypatch):
    without = dataclasses.replace(CONFIG, classifier_dropout=0.0)
    monkeypatch.setitem(globals(), "CONFIG", without)


@pytest.mark.parametrize("factors", [None, (1.0, 2.0, 5.0), (0.1, 0.05, 0.2)])
def test_training_reports_the_loss_of_evaluation(no_head_dropout, factors):
    head = head_of(class_weights=factors)
    expected, values, _ = evaluated(build, head=head)
    weights = WEIGHTS * np.array(factors or (1.0,) * 3)[FEATURES["label_ids"]]
    by_hand = (numpy_losses(values["logits"]) * weights).sum() / weights.sum()
    assert expected == pytest.approx(by_hand, rel=1e-5)
    loss, report, after, before = one_step(build, head=head)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert 0 <= report["accuracy"][0] <= 1
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    # The pooler is not used, and nothing decays it; the rest is trained.
    assert set(before) - changed == {"bert/pooler/dense/kernel", "bert/pooler/dense/bias"}


def test_label_smoothing_is_a_mean_over_words(no_head_dropout):
    head = head_of(label_smoothing=0.2)
    _, values, _ = evaluated(build, head=head)
    logits = values["logits"].astype(np.float64)
    log_shares = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    targets = 0.8 * np.eye(3)[FEATURES["label_ids"]] + 0.2 / 3
    expected = -((targets * log_shares).sum(axis=-1) * WEIGHTS).sum() / WEIGHTS.sum()
    assert one_step(build, head=head)[0] == pytest.approx(expected, rel=1e-5)


def test_micro_batches_equal_the_batch():
    check_micro_batches(build)


def test_the_normaliser_counts_the_words_of_the_global_batch(no_head_dropout):
    """Two cores have two rows each; the second core has 3 words, and this core has 6."""
    sums = iter([3.0])

    def cross_replica_sum(tensor):
        return tensor + tf.constant(next(sums, 0.0), tensor.dtype)

    shared, *_ = one_step(build, rows=slice(0, 2), replica=Replica(2, 0, cross_replica_sum))
    alone, *_ = one_step(build, rows=slice(0, 2))
    assert shared == pytest.approx(alone * 6 / 9, rel=1e-5)
