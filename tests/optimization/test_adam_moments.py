"""Adam's moments against their float64 twin."""

import numpy as np
import optimizer_steps
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.optimization.adam_moments import ScaleByAdam
from bert_estimator.optimization.optimizer import ChainOptimizer


def twin(gradients, beta_1, beta_2, epsilon, bias_correction):
    """Yields (m, v, ratio) after each of the gradients, in float64."""
    m = v = np.zeros_like(gradients[0], np.float64)
    for t, gradient in enumerate(gradients, start=1):
        m = beta_1 * m + (1 - beta_1) * gradient
        v = beta_2 * v + (1 - beta_2) * gradient**2
        scale_m = 1 - beta_1**t if bias_correction else 1.0
        scale_v = 1 - beta_2**t if bias_correction else 1.0
        yield m, v, m / scale_m / (np.sqrt(v / scale_v) + epsilon)


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("beta_1", [0.9, 0.0])
def test_equals_its_twin_over_twenty_steps(beta_1, bias_correction):
    gradients = np.random.RandomState(1).randn(20, 3, 2) * np.logspace(-4, 2, 20)[:, None, None]
    history = optimizer_steps.run(
        lambda rate: ChainOptimizer(
            [ScaleByAdam(beta_1, 0.999, 1e-6, bias_correction)], name="Adam"
        ),
        {"w": np.zeros([3, 2])},
        [{"w": gradient} for gradient in gradients],
        [1.0] * 20,
    )
    moved = np.zeros([3, 2])
    expected = twin(gradients.astype(np.float32).astype(np.float64), beta_1, 0.999, 1e-6,
                    bias_correction)  # fmt: skip
    for found, (m, v, ratio) in zip(history, expected, strict=True):
        moved -= ratio
        np.testing.assert_allclose(found["m"]["w"], m, rtol=3e-6, atol=1e-6 * np.abs(m).max())
        np.testing.assert_allclose(found["v"]["w"], v, rtol=3e-6)
        np.testing.assert_allclose(found["param"]["w"], moved, rtol=1e-5, atol=2e-6)


def test_first_ratios_of_a_constant_gradient():
    """Without bias correction sqrt(10) first, rising to 6.57 at t = 12; with it, 1 throughout."""
    found = {}
    for bias_correction in (False, True):
        history = optimizer_steps.run(
            lambda rate, on=bias_correction: ChainOptimizer(
                [ScaleByAdam(0.9, 0.999, 1e-9, on)], "A"
            ),
            {"w": [0.0]},
            [{"w": [0.5]}] * 20,
            [1.0] * 20,
        )
        found[bias_correction] = -np.diff(
            [0.0, *[float(each["param"]["w"][0]) for each in history]]
        )
    np.testing.assert_allclose(found[True], np.ones(20), rtol=1e-5)
    assert found[False][0] == pytest.approx(np.sqrt(10), rel=1e-5)
    assert np.argmax(found[False]) == 11
    assert found[False][11] == pytest.approx(6.5684, rel=1e-4)


def test_bias_correction_counts_from_the_global_step():
    """Resumed at global step 1000, t is 1001: the correction is that of the 1001st update."""
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", initializer=[0.0])
        step = tf.get_variable("step", initializer=np.int64(1000), trainable=False)
        optimizer = ChainOptimizer([ScaleByAdam(0.9, 0.999, 1e-6, True)], "Adam")
        train_op = optimizer.apply_gradients([(tf.constant([1.0]), weight)], step)
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        moved = -session.run(weight)[0]
        assert session.run(step) == 1001
    v = 0.001 / (1 - 0.999**1001)
    assert moved == pytest.approx(0.1 / (1 - 0.9**1001) / (np.sqrt(v) + 1e-6), rel=1e-6)


def test_bfloat16_first_moments():
    """The update uses the first moment unrounded; what is stored of it is its nearest bfloat16."""
    gradients = np.random.RandomState(1).randn(5, 3, 2).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", [3, 2], initializer=tf.zeros_initializer())
        gradient = tf.placeholder(tf.float32, [3, 2])
        optimizer = ChainOptimizer([ScaleByAdam(0.9, 0.999, 1e-6, False, True)], "Adam")
        train_op = optimizer.apply_gradients([(gradient, weight)])
        slots = [optimizer.get_slot(weight, name) for name in ("adam_m", "adam_v")]
        assert [slot.dtype.base_dtype for slot in slots] == [tf.bfloat16, tf.float32]
        session.run(tf.global_variables_initializer())
        m = np.zeros([3, 2], np.float32)
        v, expected = np.zeros([3, 2]), np.zeros([3, 2])
        for each in gradients:
            session.run(train_op, {gradient: each})
            m = np.float32(0.9) * m + np.float32(0.1) * each
            v = 0.999 * v + 0.001 * np.float64(each) ** 2
            expected -= m / (np.sqrt(v) + 1e-6)
            m = m.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)
            np.testing.assert_allclose(session.run(weight), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.float32(session.run(slots[0])), m, rtol=2**-7)


def test_bias_correction_without_a_step_is_refused():
    with tf.Graph().as_default():
        weight = tf.get_variable("w", initializer=[0.0])
        optimizer = ChainOptimizer([ScaleByAdam(0.9, 0.999, 1e-6, True)], "Adam")
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
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        ScaleByAdam(*arguments, bias_correction=False)
