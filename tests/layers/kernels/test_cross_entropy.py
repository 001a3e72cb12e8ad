"""Compares the cross-entropy and its gradient with float64 numpy, compiled and not."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.layers.kernels import session as kernels

ROWS, VOCABULARY = 5, 33
LABELS = np.array([0, 32, 7, 7, 16], np.int32)


def logits(scale):
    return np.float32(np.random.RandomState(1).normal(0.5, scale, [ROWS, VOCABULARY]))


def evaluate(values, labels=LABELS, weights=None):
    """Returns the losses, and the gradient of their weighted sum by the logits."""
    with tf.Graph().as_default() as graph:
        x = tf.constant(values)
        losses = kernels.cross_entropy(tf.constant(labels), x)
        assert losses.dtype == tf.float32 and losses.shape.as_list() == [ROWS]
        (gradient,) = tf.gradients(losses, x, None if weights is None else tf.constant(weights))
        kinds = [op.type for op in graph.get_operations()]
        with tf.Session() as session:
            return *session.run([losses, gradient]), kinds


# Logits of 1e4 overflow an exponential that is not of a difference.
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("least_elements", [0, 10**9])
def test_losses_and_gradients_equal_the_twin(monkeypatch, least_elements, scale):
    monkeypatch.setattr(kernels, "_LEAST_LOGITS", least_elements)
    values, weights = logits(scale), np.float32([1.0, 0.0, 0.25, -2.0, 3.0])
    losses, gradient, kinds = evaluate(values, weights=weights)
    assert kinds.count("SparseSoftmaxCrossEntropyWithLogits") == bool(least_elements)

    shifted = np.float64(values) - np.float64(values).max(-1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(-1, keepdims=True))
    rows = np.arange(ROWS)
    slope = np.exp(shifted - log_sum)
    slope[rows, LABELS] -= 1.0
    np.testing.assert_allclose(losses, (log_sum - shifted)[rows, LABELS], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(gradient, slope * weights[:, np.newaxis], rtol=1e-5, atol=1e-5)


def test_an_infinite_logit_gives_nan_as_in_tensorflow(monkeypatch):
    values = logits(1.0)
    values[2, 3] = np.inf
    expected, _, _ = evaluate(values)
    monkeypatch.setattr(kernels, "_LEAST_LOGITS", 0)
    actual, _, _ = evaluate(values)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
    assert np.isnan(actual[2]) and np.isfinite(np.delete(actual, 2)).all()


@pytest.mark.parametrize("label", [-1, VOCABULARY])
def test_a_label_out_of_range_gives_nan_in_its_row_alone(monkeypatch, label):
    monkeypatch.setattr(kernels, "_LEAST_LOGITS", 0)
    labels = LABELS.copy()
    labels[1] = label
    losses, _, _ = evaluate(logits(1.0), labels)
    assert np.isnan(losses[1]) and np.isfinite(np.delete(losses, 1)).all()
