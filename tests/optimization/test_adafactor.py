"""Adafactor, with its factored moments, against its float64 twin."""

import numpy as np
import optimizer_steps
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.optimization.adafactor import AdafactorOptimizer

SHAPES = {"kernel": [6, 4], "bias": [4], "stack": [2, 3, 5], "zero": [3, 2]}


def rms(x):
    return np.sqrt(np.mean(np.square(x)))


def twin(param, gradients, rates, exponent=0.8, epsilon_1=1e-30, epsilon_2=1e-3, threshold=1.0):
    """Yields the parameters by name after each step, in float64, by the paper's sums."""
    param = {name: np.asarray(value, np.float64) for name, value in param.items()}
    state = {}
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        beta = 1 - t**-exponent
        for name, w in param.items():
            g = np.float64(gradient[name])
            square = g**2 + epsilon_1
            if g.ndim < 2:
                v = state[name] = beta * state.get(name, 0.0) + (1 - beta) * square
            else:
                r, c = state.get(name, (0.0, 0.0))
                r = beta * r + (1 - beta) * square.sum(-1, keepdims=True)
                c = beta * c + (1 - beta) * square.sum(-2, keepdims=True)
                state[name] = r, c
                v = r * c / r.sum(-2, keepdims=True)
            update = g / np.sqrt(v)
            update = update / max(1.0, rms(update) / threshold)
            param[name] = w - max(epsilon_2, rms(w)) * rate * update
        yield dict(param)


def random_problem(steps):
    random = np.random.RandomState(3)
    param = {name: np.float32(random.standard_normal(s)) for name, s in SHAPES.items()}
    param["zero"][:] = 0.0
    gradients = [
        {
            name: np.float32(random.standard_normal(s) * 10.0 ** (t - 3))
            for name, s in SHAPES.items()
        }
        for t in range(steps)
    ]
    return param, gradients


def test_equals_its_twin_over_five_steps():
    param, gradients = random_problem(5)
    rates = [min(0.01, 1 / np.sqrt(t)) * 10 for t in range(1, 6)]
    history = optimizer_steps.run(AdafactorOptimizer, param, gradients, rates)
    for found, expected in zip(history, twin(param, gradients, rates), strict=True):
        for name in SHAPES:
            np.testing.assert_allclose(found["param"][name], expected[name], rtol=0, atol=1e-6)


def test_the_constants_are_used():
    param, gradients = random_problem(5)
    options = {"epsilon_1": 1e-3, "epsilon_2": 0.5}
    history = optimizer_steps.run(
        lambda rate: AdafactorOptimizer(
            rate, decay_exponent=0.5, clipping_threshold=0.25, **options
        ),
        param,
        gradients,
        [0.01] * 5,
    )
    expected = twin(param, gradients, [0.01] * 5, exponent=0.5, threshold=0.25, **options)
    for found, values in zip(history, expected, strict=True):
        for name in SHAPES:
            np.testing.assert_allclose(found["param"][name], values[name], rtol=0, atol=1e-6)


def test_a_zero_gradient_moves_nothing():
    """Its squares are epsilon_1, whose product would be 0 in float32, and 0 / 0 not a number."""
    zeros = {"w": np.zeros([3, 4])}
    history = optimizer_steps.run(
        AdafactorOptimizer, {"w": np.ones([3, 4])}, [zeros] * 2, [1.0] * 2
    )
    np.testing.assert_array_equal(history[-1]["param"]["w"], np.ones([3, 4]))


def test_the_state_of_a_matrix_is_a_row_and_a_column():
    with tf.Graph().as_default():
        kernel = tf.get_variable("kernel", [6, 4])
        bias = tf.get_variable("bias", [4])
        optimizer = AdafactorOptimizer(0.01)
        pairs = [(tf.ones([6, 4]), kernel), (tf.ones([4]), bias)]
        optimizer.apply_gradients(pairs, tf.train.create_global_step())
        found = {v.op.name: v.shape.as_list() for v in optimizer.variables()}
    assert found == {
        "kernel/adafactor_row": [6],
        "kernel/adafactor_column": [4],
        "bias/adafactor_v": [4],
    }


def test_needs_the_number_of_the_update():
    with tf.Graph().as_default():
        weight = tf.get_variable("w", [2])
        with pytest.raises(ValueError, match=r"or Adafactor\) .* apply_gradients or minimize"):
            AdafactorOptimizer(0.01).apply_gradients([(tf.ones([2]), weight)])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("decay_exponent", 0.0, "above 0 and at most 1"),
        ("decay_exponent", 1.5, "above 0 and at most 1"),
        ("epsilon_1", 0.0, "epsilon=0.0: must be a finite number > 0"),
        ("epsilon_2", 0.0, "epsilon=0.0: must be a finite number > 0"),
        ("clipping_threshold", -1.0, "threshold=-1.0: must be a finite number > 0"),
    ],
)
def test_refuses(name, value, message):
    with pytest.raises(ValueError, match=message):
        AdafactorOptimizer(0.01, **{name: value})
