"""The report of an evaluation, against scikit-learn and counts by hand."""

import numpy as np
import pytest
import sklearn.metrics
import tensorflow.compat.v1 as tf

from bert_estimator.model_fns import classification_report as report
from bert_estimator.model_fns.metrics import Examples


def counts_of(kind, labels, logits, weights, batch=7):
    """Returns the counts of examples that come in batches."""
    with tf.Graph().as_default(), tf.Session() as session:
        feeds = [
            tf.placeholder(value.dtype, [None, *value.shape[1:]])
            for value in (labels, logits, weights)
        ]
        metrics = report.counts(kind, Examples(*feeds))
        session.run(tf.local_variables_initializer())
        for first in range(0, len(labels), batch):
            values = [value[first : first + batch] for value in (labels, logits, weights)]
            session.run([m[1] for m in metrics.values()], dict(zip(feeds, values, strict=True)))
        return session.run({name: metric[0] for name, metric in metrics.items()})


def examples(kind, number=50, num_labels=3):
    generator = np.random.default_rng(4)
    logits = generator.normal(0, 2, [number, num_labels]).astype(np.float32)
    is_multi = kind == "multi_label"
    shape = [number, num_labels] if is_multi else [number]
    labels = generator.integers(2 if is_multi else num_labels, size=shape)
    return labels.astype(np.int32), logits, (np.arange(number) < number - 4).astype(np.float32)


def tables_of(lines):
    """Returns the tables of a report, each a dict of the first cell -> the other cells."""
    text = "\n".join(lines)
    return [
        {row.split("\t")[0]: row.split("\t")[1:] for row in table.split("\n")}
        for table in text.split("\n\n")
    ]


def test_labels_that_exclude_each_other():
    labels, logits, weights = examples("classification")
    found = counts_of("classification", labels, logits, weights)
    labels, logits = labels[weights > 0], logits[weights > 0].astype(np.float64)
    predicted = logits.argmax(axis=-1)
    np.testing.assert_array_equal(
        found["confusion"], sklearn.metrics.confusion_matrix(labels, predicted)
    )
    probability = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probability = (probability / probability.sum(axis=-1, keepdims=True)).max(axis=-1)
    check_calibration(found["calibration"], probability, predicted == labels)
    names = ["a", "b c", "ü"]
    by_label, confusions, _ = tables_of(report.lines("classification", names, found))
    expected = sklearn.metrics.precision_recall_fscore_support(labels, predicted)
    for place, name in enumerate(names):
        assert by_label[name] == [
            *(f"{column[place]:.4f}" for column in expected[:3]),
            f"{expected[3][place]}",
        ]
        assert confusions[name] == [f"{count:.0f}" for count in found["confusion"][place]]
    assert by_label["mean of the labels"][2] == f"{np.mean(expected[2]):.4f}"


def test_labels_that_do_not():
    labels, logits, weights = examples("multi_label")
    found = counts_of("multi_label", labels, logits, weights)
    labels, logits = labels[weights > 0], logits[weights > 0].astype(np.float64)
    predicted = (logits > 0).astype(int)
    np.testing.assert_array_equal(
        found["confusion"], sklearn.metrics.multilabel_confusion_matrix(labels, predicted)
    )
    sigmoid = 1 / (1 + np.exp(-logits))
    check_calibration(
        found["calibration"],
        np.maximum(sigmoid, 1 - sigmoid).ravel(),
        (predicted == labels).ravel(),
    )
    by_label, confusions, _ = tables_of(report.lines("multi_label", "abc", found))
    expected = sklearn.metrics.precision_recall_fscore_support(labels, predicted)
    assert by_label["b"] == [*(f"{column[1]:.4f}" for column in expected[:3]), f"{expected[3][1]}"]
    (neither, only), (missed, both) = found["confusion"][1]
    assert confusions["b"] == [f"{count:.0f}" for count in (both, missed, only, neither)]


def check_calibration(found, probability, right):
    bins = np.minimum((probability * 10).astype(int), 9)
    for place in range(10):
        chosen = bins == place
        expected = [chosen.sum(), probability[chosen].sum(), right[chosen].sum()]
        np.testing.assert_allclose(found[place], expected, rtol=1e-5)
    gaps = [
        abs(probability[bins == b].mean() - right[bins == b].mean()) * np.mean(bins == b)
        for b in set(bins)
    ]
    assert report.calibration_error(found) == pytest.approx(sum(gaps), rel=1e-5)


def test_a_label_that_never_occurs_and_certainty():
    """Nothing is divided by zero, and a probability of 1 is in the last bin."""
    logits = np.array([[200.0, 0.0, 0.0]] * 3, np.float32)
    labels = np.array([0, 0, 1], np.int32)
    found = counts_of("classification", labels, logits, np.ones(3, np.float32))
    lines = list(report.lines("classification", "abc", found))
    assert lines[1:4] == [
        "a\t0.6667\t1.0000\t0.8000\t2",
        "b\t0.0000\t0.0000\t0.0000\t1",
        "c\t0.0000\t0.0000\t0.0000\t0",
    ]
    # "c" does not count for the means, as in scikit-learn.
    assert lines[4] == "mean of the labels\t0.3333\t0.5000\t0.4000\t3"
    assert lines[-2:] == ["0.9 to 1.0\t1.0000\t0.6667\t3", "expected calibration error\t0.3333"]


@pytest.mark.parametrize("kind", report.KINDS)
def test_labels_with_tabs_and_ends_of_lines_stay_in_their_cells(kind):
    """JSONL and CSV files may have such labels, and so the header of predictions."""
    names = ["a\tb", "a\nb\r", "a\\tb"]
    found = counts_of(kind, *examples(kind))
    lines = list(report.lines(kind, names, found))
    assert all("\n" not in line and "\r" not in line for line in lines)
    by_label, confusions, _ = tables_of(lines)
    cells = [r"a\tb", r"a\nb\r", r"a\\tb"]
    assert list(by_label)[1:4] == list(confusions)[1:4] == cells
    assert [len(row) for row in by_label.values()] == [4] * 5
    assert len({len(row) for row in confusions.values()}) == 1
    assert list(map(report.cell, names)) == cells
