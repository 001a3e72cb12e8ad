"""What TensorBoard shows of an evaluation's report: tables, and curves of precision and recall."""

import html
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.model_fns import classification_report as report
from bert_estimator.model_fns import report_summaries
from tests.model_fns.test_classification_report import counts_of, examples

# What protobuf writes of TensorBoard's PrCurvePluginData(version=0, num_thresholds=201).
CURVE_DATA = b"\x10\xc9\x01"


def by_tag(kind, names, found):
    return {value.tag: value for value in report_summaries.summaries(kind, names, found)}


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
