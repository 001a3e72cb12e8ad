"""The report of an evaluation, against scikit-learn and counts by hand, and in TensorBoard."""

import html
import re

import numpy as np
import pytest
import sklearn.metrics
import tensorflow.compat.v1 as tf

from bert_estimator.model_fns import classification_report as report
from bert_estimator.model_fns import metrics
from bert_estimator.model_fns.classification import Head


def counts_of(kind, labels, logits, weights, batch=7):
    """Returns the counts of examples that come in batches."""
    head, total = Head(kind, logits.shape[1], reports=True), {}
    for first in range(0, len(labels), batch):
        rows = slice(first, first + batch)
        metrics.add(total, head.count(logits[rows], labels[rows], weights[rows]))
    return total


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


# What protobuf writes of TensorBoard's PrCurvePluginData(version=0, num_thresholds=201).
CURVE_DATA = b"\x10\xc9\x01"


def by_tag(kind, names, found):
    return {value.tag: value for value in report.summaries(kind, names, found)}


def shown(cell):
    """Returns what is seen of a cell's Markdown."""
    return html.unescape(re.sub(r"\\(.)", r"\1", cell.decode()))


@pytest.mark.parametrize("kind", report.KINDS)
def test_a_curve_counts_what_each_threshold_would_say(kind):
    labels, logits, weights = examples(kind)
    found = by_tag(kind, "abc", counts_of(kind, labels, logits, weights))
    labels, logits = labels[weights > 0], logits[weights > 0].astype(np.float64)
    if kind == "multi_label":
        probabilities, holds = 1 / (1 + np.exp(-logits)), labels > 0
    else:
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
        holds = labels[:, np.newaxis] == np.arange(3)
    for place, name in enumerate("abc"):
        value = found[f"precision_recall/{name}"]
        assert value.metadata.plugin_data.plugin_name == "pr_curves"
        assert value.metadata.plugin_data.content == CURVE_DATA
        curve = tf.make_ndarray(value.tensor)
        assert curve.shape == (6, 201) and curve.dtype == np.float32
        is_said = probabilities[:, place] >= np.arange(201)[:, np.newaxis] / 200
        is_right = holds[:, place]
        expected = [
            (said & right).sum(axis=1)
            for said in (is_said, ~is_said)
            for right in (is_right, ~is_right)
        ]
        np.testing.assert_array_equal(curve[[0, 1, 3, 2]], expected)
        precision = curve[0] / np.maximum(curve[0] + curve[1], 1)
        np.testing.assert_allclose(curve[4:], [precision, curve[0] / curve[0, 0]], rtol=1e-6)


@pytest.mark.parametrize("kind", report.KINDS)
def test_the_tables_are_those_of_the_report(kind):
    counted = counts_of(kind, *examples(kind))
    names = ["a|b", "<b>*c*_d_`e`", r"\1. [x](y) & #"]
    found = by_tag(kind, names, counted)
    tables = "\n".join(report.lines(kind, names, counted)).split("\n\n")
    for name, table in zip(("labels", "confusion", "calibration"), tables, strict=True):
        value = found[f"report/{name}"]
        assert value.metadata.plugin_data.plugin_name == "text"
        cells = tf.make_ndarray(value.tensor)
        for row, line in zip(cells, table.split("\n"), strict=True):
            expected = line.split("\t")
            assert [shown(cell) for cell in row] == expected + [""] * (len(row) - len(expected))
        assert not any(b"<" in cell or re.search(rb"(?<!\\)[*_`]", cell) for cell in cells.flat)


def test_labels_that_never_occur_and_logits_that_are_not_finite():
    logits = np.array([[np.nan, np.nan], [200.0, 0.0]], np.float32)
    counted = counts_of("classification", np.zeros(2, np.int32), logits, np.ones(2, np.float32))
    found = by_tag("classification", "ab", counted)
    never, always = (tf.make_ndarray(found[f"precision_recall/{name}"].tensor) for name in "ba")
    assert np.isfinite(never).all() and not never[[0, 3, 4, 5]].any()
    np.testing.assert_array_equal(always[0], [2] + [1] * 200)  # NaN is below all thresholds but 0


def test_many_labels_do_not_fill_the_disk():
    number = report.MOST_CURVES
    for labels, is_shown in ((number, True), (number + 1, False)):
        counted = counts_of("classification", *examples("classification", num_labels=labels))
        names = [str(place) for place in range(labels)]
        assert bool(by_tag("classification", names, counted)) == is_shown
        assert (report.THRESHOLDS in counted) == is_shown
