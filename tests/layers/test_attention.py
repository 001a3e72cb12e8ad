"""Attention and its gradients, in both layouts, equal a float64 twin."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_ops, control_flow_v2_toggles

from bert_estimator.layers import attention, primitives
from bert_estimator.layers.attention import attend
from bert_estimator.layers.dropout import Dropout, Mask

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


class Fixed(Dropout):
    """Drops fixed elements. Tests put it in the place of `Dropout`, whose subclasses are others."""

    def __init__(self, factors):
        super().__init__(seed=1, step=0)
        self._factors = factors

    def mask(self, x, rate):
        return Mask(tf.constant(self._factors != 0), tf.constant(self._factors.max(), tf.float32))


@pytest.fixture(params=["Dropout", "other function"])
def dropout_of(request, monkeypatch):
    """Returns a function of factors that returns a dropout with these factors."""
    if request.param == "Dropout":
        monkeypatch.setattr(attention, "Dropout", Fixed)
        return Fixed
    return lambda factors: lambda x, rate: x * tf.constant(factors, tf.float32)


def attended(dropout, layout, query, key, value):
    columns, scale = LAYOUTS[layout]
    laid_out = [query if scale else query / 2, key, value]
    if columns:
        laid_out = [tf.transpose(tensor, [0, 1, 3, 2]) for tensor in laid_out]
    return attend(*laid_out, tf.constant(MASK), dropout, 0.2 if dropout else 0.0, columns, scale)


def run(dropout, layout, dtype):
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = [tf.constant(values, tf.float32) for values in (QUERY, KEY, VALUE)]
        context = attended(dropout, layout, *(tf.cast(tensor, dtype) for tensor in inputs))
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
def test_values_and_gradients_equal_the_twins(factors, layout, dropout_of):
    factors = ALL_FACTORS[factors]
    dropout = None if factors.min() == 1 else dropout_of(factors)
    for value, expected in zip(run(dropout, layout, tf.float32), twin(factors), strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_in_bfloat16_they_are_as_near_as_its_digits(layout, dropout_of):
    found = run(dropout_of(FACTORS), layout, tf.bfloat16)
    for value, expected in zip(found, twin(FACTORS), strict=True):
        error = np.sqrt(np.mean((value - expected) ** 2) / np.mean(expected**2))
        assert 1e-5 < error < 2**-5


@pytest.mark.parametrize("layout", ["scores", "query"])
def test_portable_graphs_have_the_same_values_and_gradients(layout, dropout_of):
    for dtype, tolerance in ((tf.float32, 2e-6), (tf.bfloat16, 0.05)):
        expected = run(dropout_of(FACTORS), layout, dtype)
        with primitives.portable(is_trained=True):
            actual = run(dropout_of(FACTORS), layout, dtype)
        for value, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(value, other, rtol=0, atol=tolerance)


def second_derivatives(dropout, layout):
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = [tf.constant(values, tf.float32) for values in (QUERY, KEY, VALUE)]
        context = attended(dropout, layout, *inputs)
        slopes = tf.gradients(context, inputs, tf.constant(OUT_GRADIENT, tf.float32))
        return session.run(tf.gradients(tf.add_n([tf.nn.l2_loss(x) for x in slopes]), inputs))


@pytest.mark.parametrize("layout", ["scores", "query"])
def test_second_derivatives_equal_tensorflows(layout, dropout_of):
    found = second_derivatives(dropout_of(FACTORS), layout)
    with primitives.portable(is_trained=True):
        expected = second_derivatives(dropout_of(FACTORS), layout)
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-4)


def test_programs_for_xla_have_no_second_derivatives():
    with pytest.raises(LookupError, match="attention in a program for XLA has no second deriv"):
        second_derivatives(None, "positions last")


@pytest.mark.parametrize("dropout_rate", [0.0, 0.5])
def test_layers_in_a_loop_of_tensorflow_1(dropout_rate):
    """Feeds the output of attention to the next turn, and differentiates outside of the loop."""

    def turn(x):
        tensors = [tf.transpose(x * factor, [0, 2, 1, 3]) for factor in (1.0, 0.5, 2.0)]
        return x + attend(*tensors, tf.constant(MASK), Dropout(1, 2), dropout_rate, False, 0.5)

    def loop(x):
        x.set_shape(OUT_GRADIENT.shape)
        return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, turn(x)), [0, x])[1]

    def unrolled(x):
        for _ in range(3):
            x = turn(x)
        return x

    with tf.Graph().as_default(), tf.Session() as session:
        uses_v2 = control_flow_v2_toggles.control_flow_v2_enabled()
        control_flow_v2_toggles.disable_control_flow_v2()
        try:
            x = tf.constant(OUT_GRADIENT, tf.float32)
            (found,) = tf.gradients(loop(x), x)
            assert "Enter" in {op.type for op in tf.get_default_graph().get_operations()}
            (expected,) = tf.gradients(unrolled(x), x)
        finally:
            if uses_v2:
                control_flow_v2_toggles.enable_control_flow_v2()
        found, expected = session.run([found, expected])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("in_xla_program", [False, True])
def test_graphs_of_large_scores_have_two_compiled_passes(least_scores, in_xla_program):
    with tf.Graph().as_default() as graph:
        if in_xla_program:
            control_flow_ops.XLAControlFlowContext().Enter()
        query = tf.ones(QUERY.shape)
        tf.gradients(attended(None, "query", query, query, query), query)
        calls = [op for op in graph.get_operations() if op.type == "PartitionedCall"]
    assert len(calls) == (2 if least_scores == 0 and not in_xla_program else 0)
