"""Attention and its gradients, in both layouts, equal a float64 twin."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.layers import attention, primitives
from bert_estimator.layers.attention import attend

BATCH, HEADS, LENGTH, SIZE = 3, 2, 5, 4
RNG = np.random.RandomState(0)
QUERY, KEY, VALUE = RNG.normal(size=[3, BATCH, HEADS, LENGTH, SIZE])
OUT_GRADIENT = RNG.normal(size=[BATCH, LENGTH, HEADS, SIZE])
FACTORS = RNG.choice([0.0, 1.25], [BATCH, HEADS, LENGTH, LENGTH], p=[0.2, 0.8])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], np.int32)
ALL_FACTORS = {
    "all weights": np.ones_like(FACTORS),
    "dropout": FACTORS,
    "no weight of a query": FACTORS * (np.arange(LENGTH) != 1)[:, np.newaxis],
}


def twin(factors):
    """Returns the means, and the gradients of query, key and value, in float64."""
    scores = QUERY @ np.swapaxes(KEY, 2, 3) / 2  # the square root of SIZE
    # Only padding: the sum of a score and -10000 has the digits of float32.
    scores = np.float32(scores) + np.float32((1 - MASK[:, None, None, :]) * -10000)
    probs = np.exp(np.float64(scores) - scores.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    context = (probs * factors) @ VALUE
    gradient = np.swapaxes(OUT_GRADIENT, 1, 2)
    weights = gradient @ np.swapaxes(VALUE, 2, 3) * factors
    logits = probs * (weights - (probs * weights).sum(-1, keepdims=True))
    slopes = logits @ KEY / 2, np.swapaxes(logits, 2, 3) @ QUERY / 2
    return np.swapaxes(context, 1, 2), *slopes, np.swapaxes(probs * factors, 2, 3) @ gradient


# Positions last; scores that `attend` scales; a query that is scaled.
LAYOUTS = {"positions last": (True, 0.5), "scores": (False, 0.5), "query": (False, None)}


def run(factors, layout, dtype):
    columns, scale = LAYOUTS[layout]
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = [tf.constant(values, tf.float32) for values in (QUERY, KEY, VALUE)]
        query, key, value = (tf.cast(tensor, dtype) for tensor in inputs)
        laid_out = [query if scale else query / 2, key, value]
        if columns:
            laid_out = [tf.transpose(tensor, [0, 1, 3, 2]) for tensor in laid_out]
        drop = tf.constant(factors, tf.float32).__mul__
        context = attend(*laid_out, tf.constant(MASK), drop, columns, scale)
        assert context.dtype == dtype
        slopes = tf.gradients(context, inputs, tf.constant(OUT_GRADIENT, dtype))
        return session.run([tf.cast(context, tf.float32), *slopes])


@pytest.fixture(params=["operations", "compiled"], autouse=True)
def least_scores(request, monkeypatch):
    """Runs each test with all passes over the scores compiled, and with none."""
    least = 0 if request.param == "compiled" else 1 << 62
    monkeypatch.setattr(attention, "_LEAST_SCORES", least)
    return least


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("factors", list(ALL_FACTORS))
def test_values_and_gradients_equal_the_twins(factors, layout):
    actual = run(ALL_FACTORS[factors], layout, tf.float32)
    for value, expected in zip(actual, twin(ALL_FACTORS[factors]), strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_in_bfloat16_they_are_as_near_as_its_digits(layout):
    for value, expected in zip(run(FACTORS, layout, tf.bfloat16), twin(FACTORS), strict=True):
        error = np.sqrt(np.mean((value - expected) ** 2) / np.mean(expected**2))
        assert 1e-5 < error < 2**-5


@pytest.mark.parametrize("layout", ["scores", "query"])
def test_portable_graphs_have_the_same_values_and_gradients(layout, least_scores):
    for dtype, tolerance in ((tf.float32, 2e-6), (tf.bfloat16, 0.05)):
        expected = run(FACTORS, layout, dtype)
        with primitives.portable(is_trained=True):
            actual = run(FACTORS, layout, dtype)
        for value, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(value, other, rtol=0, atol=tolerance)


def test_a_graph_of_large_scores_has_two_compiled_passes(least_scores):
    with tf.Graph().as_default() as graph:
        query = tf.ones([BATCH, HEADS, LENGTH, SIZE])
        context = attend(query, query, query, tf.constant(MASK), lambda x: 0.5 * x, False, None)
        tf.gradients(context, query)
        calls = [op for op in graph.get_operations() if op.type == "PartitionedCall"]
        assert len(calls) == (2 if least_scores == 0 else 0)
