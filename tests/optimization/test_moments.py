"""The pieces that remember gradients, against float64 twins: Adam, Adafactor, momentum."""

import numpy as np
import optimizer_steps
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.optimization.chain import ChainOptimizer
from bert_estimator.optimization.moments import Momentum, ScaleByAdam, ScaleByFactoredMoments


def adam_twin(gradients, beta_1, beta_2, epsilon, bias_correction):
    """Yields (m, v, ratio) after each gradient, in float64."""
    m = v = np.zeros_like(gradients[0], np.float64)
    for t, gradient in enumerate(gradients, start=1):
        m = beta_1 * m + (1 - beta_1) * gradient
        v = beta_2 * v + (1 - beta_2) * gradient**2
        scale_m = 1 - beta_1**t if bias_correction else 1.0
        scale_v = 1 - beta_2**t if bias_correction else 1.0
        yield m, v, m / scale_m / (np.sqrt(v / scale_v) + epsilon)


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("beta_1", [0.9, 0.0])
def test_adam_equals_its_twin_over_twenty_steps(beta_1, bias_correction):
    gradients = np.random.RandomState(1).randn(20, 3, 2) * np.logspace(-4, 2, 20)[:, None, None]
    history = optimizer_steps.run(
        lambda rate: ChainOptimizer(
            [ScaleByAdam(beta_1, 0.999, 1e-6, bias_correction)], 1.0, name="Adam"
        ),
        {"w": np.zeros([3, 2])},
        [{"w": gradient} for gradient in gradients],
        [1.0] * 20,
    )
    moved = np.zeros([3, 2])
    expected = adam_twin(gradients.astype(np.float32).astype(np.float64), beta_1, 0.999, 1e-6,
                    bias_correction)  # fmt: skip
    for found, (m, v, ratio) in zip(history, expected, strict=True):
        moved -= ratio
        np.testing.assert_allclose(found["m"]["w"], m, rtol=3e-6, atol=1e-6 * np.abs(m).max())
        np.testing.assert_allclose(found["v"]["w"], v, rtol=3e-6)
        np.testing.assert_allclose(found["param"]["w"], moved, rtol=1e-5, atol=2e-6)


def test_first_ratios_of_a_constant_gradient():
    """Ratios are sqrt(10) at first and 6.57 at t = 12; with bias correction they are all 1."""
    found = {}
    for bias_correction in (False, True):
        history = optimizer_steps.run(
            lambda rate, on=bias_correction: ChainOptimizer(
                [ScaleByAdam(0.9, 0.999, 1e-9, on)], 1.0, "A"
            ),
            {"w": [0.0]},
            [{"w": [0.5]}] * 20,
            [1.0] * 20,
        )
        found[bias_correction] = -np.diff(
            [0.0, *[float(step["param"]["w"][0]) for step in history]]
        )
    np.testing.assert_allclose(found[True], np.ones(20), rtol=1e-5)
    assert found[False][0] == pytest.approx(np.sqrt(10), rel=1e-5)
    assert np.argmax(found[False]) == 11
    assert found[False][11] == pytest.approx(6.5684, rel=1e-4)


def test_bias_correction_counts_from_the_global_step():
    """After a resume at global step 1000, the next update is corrected as the 1001st update."""
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", initializer=[0.0])
        step = tf.get_variable("step", initializer=np.int64(1000), trainable=False)
        optimizer = ChainOptimizer([ScaleByAdam(0.9, 0.999, 1e-6, True)], 1.0, "Adam")
        train_op = optimizer.apply_gradients([(tf.constant([1.0]), weight)], step)
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        moved = -session.run(weight)[0]
        assert session.run(step) == 1001
    v = 0.001 / (1 - 0.999**1001)
    assert moved == pytest.approx(0.1 / (1 - 0.9**1001) / (np.sqrt(v) + 1e-6), rel=1e-6)


def test_bfloat16_first_moments():
    """The update uses the unrounded first moment; the slot stores its nearest bfloat16."""
    gradients = np.random.RandomState(1).randn(5, 3, 2).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", [3, 2], initializer=tf.zeros_initializer())
        gradient = tf.placeholder(tf.float32, [3, 2])
        optimizer = ChainOptimizer([ScaleByAdam(0.9, 0.999, 1e-6, False, True)], 1.0, "Adam")
        train_op = optimizer.apply_gradients([(gradient, weight)])
        slots = [optimizer.get_slot(weight, name) for name in ("adam_m", "adam_v")]
        assert [slot.dtype.base_dtype for slot in slots] == [tf.bfloat16, tf.float32]
        session.run(tf.global_variables_initializer())
        m = np.zeros([3, 2], np.float32)
        v, expected = np.zeros([3, 2]), np.zeros([3, 2])
        for value in gradients:
            session.run(train_op, {gradient: value})
            m = np.float32(0.9) * m + np.float32(0.1) * value
            v = 0.999 * v + 0.001 * np.float64(value) ** 2
            expected -= m / (np.sqrt(v) + 1e-6)
            m = m.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)
            np.testing.assert_allclose(session.run(weight), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.float32(session.run(slots[0])), m, rtol=2**-7)


def test_bias_correction_without_a_step_is_refused():
    with tf.Graph().as_default():
        weight = tf.get_variable("w", initializer=[0.0])
        optimizer = ChainOptimizer([ScaleByAdam(0.9, 0.999, 1e-6, True)], 1.0, "Adam")
        with pytest.raises(
            ValueError, match=r"bias_correction=True, .* apply_gradients or minimize"
        ):
            optimizer.apply_gradients([(tf.constant([1.0]), weight)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 0.999, 1e-6), r"beta_1=1.0: must be at least 0 and below 1"),
        ((0.9, -0.1, 1e-6), r"beta_2=-0.1: must be at least 0 and below 1"),
        ((0.9, 0.999, 0.0), r"epsilon=0.0: must be a finite number > 0"),
    ],
)
def test_adam_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        ScaleByAdam(*arguments, bias_correction=False)


def run_piece(piece, gradients):
    """Subtracts a piece's updates from variables that are zero at first.

    Returns a list with a dict of the variables' values for each update.
    """
    history = optimizer_steps.run(
        lambda rate: ChainOptimizer([piece], 1.0, "Piece"),
        {name: np.zeros_like(value) for name, value in gradients[0].items()},
        gradients,
        [1.0] * len(gradients),
    )
    return [step["param"] for step in history]


def factored_twin(gradients, exponent, epsilon_1):
    """Yields the update for each gradient of a variable, in float64, by the paper's sums."""
    r = c = v = 0.0
    for t, gradient in enumerate(gradients, start=1):
        beta = 1 - t**-exponent
        g = np.float64(gradient)
        square = g**2 + epsilon_1
        if g.ndim < 2:
            v = beta * v + (1 - beta) * square
        else:
            r = beta * r + (1 - beta) * square.sum(-1, keepdims=True)
            c = beta * c + (1 - beta) * square.sum(-2, keepdims=True)
            v = r * c / r.sum(-2, keepdims=True)
        yield g / np.sqrt(v)


@pytest.mark.parametrize(("exponent", "epsilon_1"), [(0.8, 1e-30), (0.5, 1e-3)])
def test_factored_moments_equal_their_twin_over_five_steps(exponent, epsilon_1):
    random = np.random.RandomState(5)
    shapes = {"scalar": (), "bias": [4], "kernel": [6, 4], "stack": [2, 3, 5]}
    gradients = [
        {n: np.float32(random.standard_normal(s) * 10.0 ** (t - 3)) for n, s in shapes.items()}
        for t in range(5)
    ]
    history = run_piece(ScaleByFactoredMoments(exponent, epsilon_1), gradients)
    for name in shapes:
        expected = -np.cumsum(
            list(factored_twin([step[name] for step in gradients], exponent, epsilon_1)), axis=0
        )
        for found, wanted in zip(history, expected, strict=True):
            np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=2e-6)


def test_a_zero_gradient_moves_nothing():
    """Its squares are epsilon_1, whose product would be 0 in float32, and 0 / 0 is NaN."""
    zeros = {"w": np.zeros([3, 4])}
    for values in run_piece(ScaleByFactoredMoments(0.8, 1e-30), [zeros] * 2):
        np.testing.assert_array_equal(values["w"], zeros["w"])


def test_factored_moments_of_a_matrix_are_a_row_and_a_column():
    with tf.Graph().as_default():
        kernel = tf.get_variable("kernel", [6, 4])
        bias = tf.get_variable("bias", [4])
        optimizer = ChainOptimizer([ScaleByFactoredMoments(0.8, 1e-30)], 1.0, "Factored")
        pairs = [(tf.ones([6, 4]), kernel), (tf.ones([4]), bias)]
        optimizer.apply_gradients(pairs, tf.train.create_global_step())
        found = {v.op.name: v.shape.as_list() for v in optimizer.variables()}
    assert found == {
        "kernel/adafactor_row": [6],
        "kernel/adafactor_column": [4],
        "bias/adafactor_v": [4],
    }


def test_factored_moments_need_the_number_of_the_update():
    with tf.Graph().as_default():
        weight = tf.get_variable("w", [2])
        optimizer = ChainOptimizer([ScaleByFactoredMoments(0.8, 1e-30)], 1.0, "Factored")
        with pytest.raises(ValueError, match=r"or Adafactor\) .* apply_gradients or minimize"):
            optimizer.apply_gradients([(tf.ones([2]), weight)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1e-30), r"decay_exponent=0.0: must be above 0 and at most 1"),
        ((1.5, 1e-30), r"decay_exponent=1.5: must be above 0 and at most 1"),
        ((0.8, 0.0), r"epsilon_1=0.0: must be a finite number > 0"),
        ((0.8, float("inf")), r"epsilon_1=inf: must be a finite number > 0"),
    ],
)
def test_factored_moments_refuse(arguments, message):
    with pytest.raises(ValueError, match=message):
        ScaleByFactoredMoments(*arguments)


def test_momentum_is_an_exponential_average_from_zero():
    gradients = np.float32([[1.0, -2.0], [3.0, 0.0], [-1.0, 4.0]])
    history = run_piece(Momentum(0.75), [{"w": gradient} for gradient in gradients])
    m, moved = np.zeros(2), np.zeros(2)
    for gradient, found in zip(np.float64(gradients), history, strict=True):
        m = 0.75 * m + 0.25 * gradient
        moved -= m
        np.testing.assert_allclose(found["w"], moved, rtol=1e-6)


@pytest.mark.parametrize("beta", [1.0, -0.1, float("nan")])
def test_momentum_refuses_a_beta_out_of_range(beta):
    with pytest.raises(ValueError, match=rf"beta={beta}: must be at least 0 and below 1"):
        Momentum(beta)
