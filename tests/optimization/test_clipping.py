"""Clipping by the global norm."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.optimization.clipping import clip_by_global_norm


def twin(gradients, max_norm):
    """Returns (clipped gradients, norm) by the definition, in float64."""
    gradients = [np.asarray(gradient, np.float64) for gradient in gradients]
    norm = np.sqrt(sum(np.sum(gradient**2) for gradient in gradients))
    return [gradient * max_norm / max(norm, max_norm) for gradient in gradients], norm


def clip(gradients, max_norm):
    """Clips constants in a Session; returns (clipped gradients, norm)."""
    with tf.Graph().as_default(), tf.Session() as session:
        constants = [None if g is None else tf.constant(g, tf.float32) for g in gradients]
        clipped, norm = clip_by_global_norm(constants, max_norm)
        present = [gradient for gradient in clipped if gradient is not None]
        values, norm = session.run([present, norm])
        values = iter(values)
        return [None if gradient is None else next(values) for gradient in clipped], norm


def test_equals_its_twin():
    random = np.random.RandomState(0)
    gradients = [np.float32(random.standard_normal(shape)) for shape in ([3, 4], [5], (), [2, 7])]
    for max_norm in (0.1, 1.0, 100.0):
        clipped, norm = clip(gradients, max_norm)
        expected, expected_norm = twin(gradients, max_norm)
        assert norm == pytest.approx(expected_norm, rel=1e-6)
        for found, wanted in zip(clipped, expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_pinned():
    clipped, norm = clip([[3.0], [[4.0]]], 1.0)
    assert norm == 5.0
    np.testing.assert_allclose(clipped[0], [0.6], rtol=1e-7)
    np.testing.assert_allclose(clipped[1], [[0.8]], rtol=1e-7)


def test_below_the_limit_not_one_bit_changes():
    gradients = [np.float32([0.1, 0.2]), np.float32([0.3])]
    clipped, _ = clip(gradients, 1.0)
    np.testing.assert_array_equal(clipped[0], gradients[0])
    np.testing.assert_array_equal(clipped[1], gradients[1])


def test_zero_gradients_stay_zero():
    clipped, norm = clip([[0.0, 0.0]], 1.0)
    assert norm == 0.0
    np.testing.assert_array_equal(clipped[0], [0.0, 0.0])


def test_none_passes_through_in_place():
    clipped, norm = clip([None, [2.0], None], 1.0)
    assert clipped[0] is None and clipped[2] is None
    assert norm == 2.0
    np.testing.assert_array_equal(clipped[1], [1.0])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e30])
def test_a_norm_that_is_not_finite_makes_every_gradient_nan(bad):
    clipped, norm = clip([[bad, 1.0], [1.0]], 1.0)  # The square of 1e30 overflows.
    assert not np.isfinite(norm)
    assert np.isnan(clipped[0]).all() and np.isnan(clipped[1]).all()


def test_duplicate_rows_count_as_their_sum():
    with tf.Graph().as_default(), tf.Session() as session:
        values = tf.constant([[3.0], [3.0]])
        sparse = tf.IndexedSlices(values, tf.constant([1, 1]), tf.constant([2, 1]))
        clipped, norm = session.run(clip_by_global_norm([sparse, tf.constant([8.0])], 1.0))
    assert norm == 10.0
    np.testing.assert_allclose(clipped[0], [[0.0], [0.6]], rtol=1e-6)


def test_bfloat16_gradients_are_measured_in_float32():
    with tf.Graph().as_default(), tf.Session() as session:
        clipped, norm = clip_by_global_norm([tf.ones([1001], tf.bfloat16)], 1.0)
        assert clipped[0].dtype == tf.float32 and norm.dtype == tf.float32
        assert session.run(norm) == pytest.approx(np.sqrt(1001), rel=1e-6)


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("inf"), float("nan")])
def test_refuses_a_limit_that_is_not_a_positive_number(max_norm):
    with pytest.raises(ValueError, match=r"max_norm=.* must be finite and > 0"):
        clip_by_global_norm([], max_norm)


def test_refuses_gradients_that_are_all_none():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="every gradient is None"):
        clip_by_global_norm([None, None], 1.0)
