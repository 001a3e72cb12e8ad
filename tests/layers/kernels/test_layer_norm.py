"""Compares layer norm and its gradients with float64 numpy, and counts its computations."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.layers.kernels import formulas
from bert_estimator.modeling import layer_norm

ROWS, WIDTH = 6, 40


def values(number, seed=1):
    random = np.random.RandomState(seed)
    return [random.normal(0.3, 2.0, [ROWS, WIDTH]) for _ in range(number)]


def twin(epsilon, gamma, beta, gradient, *addends):
    """Returns the value, and the gradients of gamma, of beta and of each addend, in float64."""
    total = sum(addends)
    deviation = np.sqrt(total.var(-1, keepdims=True) + epsilon)
    normalized = (total - total.mean(-1, keepdims=True)) / deviation
    scaled = gradient * gamma
    along_itself = (scaled * normalized).mean(-1, keepdims=True)
    of_total = (scaled - scaled.mean(-1, keepdims=True) - normalized * along_itself) / deviation
    of_gamma, of_beta = (gradient * normalized).sum(0), gradient.sum(0)
    return normalized * gamma + beta, of_gamma, of_beta, *[of_total] * len(addends)


@pytest.mark.parametrize("least_elements", [0, 10**9])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 0.03)])
@pytest.mark.parametrize(("number", "epsilon"), [(1, 1e-12), (2, 1e-12), (2, 0.5)])
def test_values_and_gradients_equal_the_twin(
    monkeypatch, number, epsilon, dtype, tolerance, least_elements
):
    monkeypatch.setattr(formulas, "_LEAST_OF_LAYER_NORM", least_elements)
    with tf.Graph().as_default(), tf.variable_scope("net", use_resource=True):
        # bfloat16 has 8 bits; these inputs are rounded to it first, for the twin as well.
        gradient, *addends = (tf.cast(v, dtype) for v in values(number + 1))
        value = layer_norm(*addends, epsilon=epsilon)
        assert value.dtype == dtype and value.shape.as_list() == [ROWS, WIDTH]
        beta, gamma = tf.trainable_variables()
        assert [beta.op.name, gamma.op.name] == ["net/LayerNorm/beta", "net/LayerNorm/gamma"]
        gradients = tf.gradients(value, [gamma, beta, *addends], gradient)
        assert [g.dtype for g in gradients] == [tf.float32, tf.float32, *[dtype] * number]
        given = [np.linspace(0.5, 2, WIDTH), np.linspace(-1, 1, WIDTH)]
        with tf.Session() as session:
            session.run([gamma.assign(given[0]), beta.assign(given[1])])
            wide = [tf.cast(tensor, tf.float64) for tensor in (gradient, *addends)]
            computed, inputs = session.run([[value, *gradients], wide])
    for mine, expected in zip(computed, twin(epsilon, *given, *inputs), strict=True):
        # Sums over the rows have larger elements.
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(mine.astype(np.float64), expected, atol=tolerance * scale)


def test_a_constant_row_and_a_batch_of_unknown_size():
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 3, WIDTH])
        value = layer_norm(x)
        (gradient,) = tf.gradients(value, [x])
        assert value.shape.as_list() == gradient.shape.as_list() == [None, 3, WIDTH]
        session.run(tf.global_variables_initializer())
        for batch in (2, 5):
            mine, slope = session.run([value, gradient], {x: np.full([batch, 3, WIDTH], 7.0)})
            assert mine.shape == (batch, 3, WIDTH) and not mine.any()
            assert np.isfinite(slope).all()


def bfloat16_norm_of(rows, gradient):
    """Returns, in float64, the rows as bfloat16 holds them, their layer norm, and its gradient."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(rows, tf.bfloat16)
        value = layer_norm(x)
        (slope,) = tf.gradients(value, [x], tf.constant(gradient, tf.bfloat16))
        session.run(tf.global_variables_initializer())
        return session.run([tf.cast(tensor, tf.float64) for tensor in (x, value, slope)])


@pytest.mark.parametrize("mean", [3.0, -30.0, 300.0])
def test_one_pass_over_bfloat16_is_as_exact_as_its_numbers_far_from_zero(mean):
    rows, gradient = values(2)
    rows, value, slope = bfloat16_norm_of(rows + mean, gradient)
    expected = twin(1e-12, np.ones(WIDTH), np.zeros(WIDTH), gradient, rows)
    for mine, wanted in ((value, expected[0]), (slope, expected[3])):
        np.testing.assert_allclose(mine, wanted, atol=0.03 * max(1.0, np.abs(wanted).max()))


def test_rows_of_one_bfloat16_number_are_finite():
    random = np.random.RandomState(0)
    numbers = random.normal(size=[300, 1]) * 10.0 ** random.randint(-4, 4, [300, 1])
    rows = np.repeat(numbers, 4095, axis=1)  # in shorter rows, float32's sums are exact
    _, value, slope = bfloat16_norm_of(rows, random.normal(size=rows.shape))
    assert np.abs(value).max() < 0.1 and np.isfinite(slope).all()


@pytest.mark.parametrize(("rows", "number"), [(1 << 15, 2), (1 << 14, 0), (None, 0)])
def test_it_is_one_computation_forward_and_one_backward_if_it_is_large(rows, number):
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [rows, WIDTH])
        tf.gradients(layer_norm(x, x), [x, *tf.trainable_variables()])
        compiled = [op for op in graph.get_operations() if op.type.endswith("PartitionedCall")]
        assert len(compiled) == number
        assert all(op.get_attr("_XlaMustCompile") for op in compiled)
