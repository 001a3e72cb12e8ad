"""Attention and its gradients, in both layouts, equal a float64 twin."""

import contextlib
import functools
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_ops, control_flow_v2_toggles

from bert_estimator import modeling
from bert_estimator.layers import kernels, primitives
from bert_estimator.layers.dropout import Dropout
from bert_estimator.layers.kernels import portable, program, session
from bert_estimator.layers.kernels.masks import Mask

BATCH, HEADS, LENGTH, SIZE = 3, 2, 5, 4
RNG = np.random.RandomState(0)
QUERY, KEY, VALUE = RNG.normal(size=[3, BATCH, HEADS, LENGTH, SIZE])
OUT_GRADIENT = RNG.normal(size=[BATCH, LENGTH, HEADS, SIZE])
FACTORS = RNG.choice([0.0, 1.25], [BATCH, HEADS, LENGTH, LENGTH], p=[0.2, 0.8])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], np.int32)
NUMBERS = np.array([[1, 1, 2, 2, 2], [1, 2, 2, 0, 0], [0, 0, 0, 0, 0]], np.int32)  # packed rows
TARGETS = ("session", "program", "portable")
ALL_FACTORS = {
    "all weights": np.ones_like(FACTORS),
    "dropout": FACTORS,
    "no weight of a query": FACTORS * (np.arange(LENGTH) != 1)[:, np.newaxis],
}


def twin(factors, is_packed=False):
    """Returns the means, and the gradients of query, key and value, in float64."""
    scores = QUERY @ np.swapaxes(KEY, 2, 3) / 2  # the square root of SIZE
    # Only padding: the sum of a score and -10000 has the digits of float32.
    is_out = MASK[:, None, None, :] == 0
    if is_packed:
        is_out = NUMBERS[:, None, :, None] != NUMBERS[:, None, None, :]
    scores = np.float32(scores) + np.float32(is_out * -10000)
    probs = np.exp(np.float64(scores) - scores.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    context = (probs * factors) @ VALUE
    gradient = np.swapaxes(OUT_GRADIENT, 1, 2)
    weights = gradient @ np.swapaxes(VALUE, 2, 3) * factors
    logits = probs * (weights - (probs * weights).sum(-1, keepdims=True))
    slopes = logits @ KEY / 2, np.swapaxes(logits, 2, 3) @ QUERY / 2
    return np.swapaxes(context, 1, 2), *slopes, np.swapaxes(probs * factors, 2, 3) @ gradient


def drop_of(factors):
    """Returns a function that draws a mask with these factors."""

    def drop(probs):
        return Mask(tf.constant(factors != 0), tf.constant(factors.max(), tf.float32))

    return drop


@contextlib.contextmanager
def building(target):
    """Builds for a target."""
    context = control_flow_ops.XLAControlFlowContext()
    with primitives.portable() if target == "portable" else contextlib.nullcontext():
        if target == "program":
            context.Enter()
        yield
        if target == "program":
            context.Exit()


def attended(drop, target, query, key, value, is_packed=False):
    """Attends as a target does, which has the scores or the query scaled, and its own layout."""
    mask, scale = tf.constant(NUMBERS if is_packed else MASK), 0.5
    if target == "session":
        query, scale = query / 2, None
    if target == "program":
        query, key, value = [tf.transpose(x, [0, 1, 3, 2]) for x in (query, key, value)]
    with building(target):
        return modeling._attend(query, key, value, mask, is_packed, scale, drop)


def run(drop, target, dtype, is_packed=False):
    with tf.Graph().as_default(), tf.Session() as tf_session:
        inputs = [tf.constant(values, tf.float32) for values in (QUERY, KEY, VALUE)]
        cast = [tf.cast(tensor, dtype) for tensor in inputs]
        context = attended(drop, target, *cast, is_packed)
        assert context.dtype == dtype
        slopes = tf.gradients(context, inputs, tf.constant(OUT_GRADIENT, dtype))
        return tf_session.run([tf.cast(context, tf.float32), *slopes])


@pytest.fixture(params=["operations", "compiled"], autouse=True)
def least_scores(request, monkeypatch):
    """Runs each test with all passes over the scores compiled, and with none."""
    least = 0 if request.param == "compiled" else 1 << 62
    monkeypatch.setattr(session, "_LEAST_SCORES", least)
    return least


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("factors", list(ALL_FACTORS))
@pytest.mark.parametrize("is_packed", [False, True])
def test_values_and_gradients_equal_the_twins(is_packed, factors, target):
    factors = ALL_FACTORS[factors]
    drop = None if factors.min() == 1 else drop_of(factors)
    values = run(drop, target, tf.float32, is_packed)
    for value, expected in zip(values, twin(factors, is_packed), strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_in_bfloat16_they_are_as_near_as_its_digits(target):
    found = run(drop_of(FACTORS), target, tf.bfloat16)
    for value, expected in zip(found, twin(FACTORS), strict=True):
        error = np.sqrt(np.mean((value - expected) ** 2) / np.mean(expected**2))
        assert 1e-5 < error < 2**-5


def second_derivatives(drop, target):
    with tf.Graph().as_default(), tf.Session() as tf_session:
        inputs = [tf.constant(values, tf.float32) for values in (QUERY, KEY, VALUE)]
        context = attended(drop, target, *inputs)
        slopes = tf.gradients(context, inputs, tf.constant(OUT_GRADIENT, tf.float32))
        return tf_session.run(tf.gradients(tf.add_n([tf.nn.l2_loss(x) for x in slopes]), inputs))


def test_second_derivatives_equal_tensorflows():
    found = second_derivatives(drop_of(FACTORS), "session")
    expected = second_derivatives(drop_of(FACTORS), "portable")
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-4)


def test_programs_for_xla_have_no_second_derivatives():
    with pytest.raises(LookupError, match="attention in a program for XLA has no second deriv"):
        second_derivatives(None, "program")


@pytest.mark.parametrize("dropout_rate", [0.0, 0.5])
def test_layers_in_a_loop_of_tensorflow_1(dropout_rate):
    """Feeds the output of attention to the next turn, and differentiates outside of the loop."""

    def turn(x):
        tensors = [tf.transpose(x * factor, [0, 2, 1, 3]) for factor in (0.5, 0.5, 2.0)]
        drop = functools.partial(Dropout(1, 2).mask, rate=dropout_rate)
        return x + modeling._attend(*tensors, tf.constant(MASK), False, None, drop)

    def loop(x):
        x.set_shape(OUT_GRADIENT.shape)
        return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, turn(x)), [0, x])[1]

    def unrolled(x):
        for _ in range(3):
            x = turn(x)
        return x

    with tf.Graph().as_default(), tf.Session() as tf_session:
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
        found, expected = tf_session.run([found, expected])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_only_a_session_has_compiled_passes_over_large_scores(least_scores, target):
    with tf.Graph().as_default() as graph:
        query = tf.ones(QUERY.shape)
        tf.gradients(attended(None, target, query, query, query), query)
        calls = [op for op in graph.get_operations() if op.type == "PartitionedCall"]
    assert len(calls) == (2 if least_scores == 0 and target == "session" else 0)


def test_a_graph_has_the_kernels_of_its_target():
    with tf.Graph().as_default():
        assert kernels.of_graph() is session
        with primitives.portable():
            assert kernels.of_graph() is portable
        control_flow_ops.XLAControlFlowContext().Enter()
        assert kernels.of_graph() is program


def test_all_targets_have_the_same_functions():
    names = re.findall(r"`([a-z_]+)`", kernels.__doc__.rpartition("The functions are")[2])
    assert len(names) == 16
    for target in (session, program, portable):
        assert [name for name in names if not callable(getattr(target, name, None))] == []
