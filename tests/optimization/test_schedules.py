"""Schedules: pinned values, the float64 twin, and what is refused."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.optimization.schedules import WarmupPolynomialDecay


def twin(step, peak, total, warmup, end, power, legacy_jump):
    """Returns the rate of a step by the definition, in float64."""
    if step < warmup:
        return peak * step / warmup
    start = 0 if legacy_jump else warmup
    share_left = (total - min(step, total)) / (total - start)
    return end + (peak - end) * share_left**power


# The values of google-research/bert's schedule for the 32K run of the LAMB paper, and for the two
# phases of NVIDIA's.
@pytest.mark.parametrize(
    ("total", "warmup", "peak", "power", "points"),
    [
        (
            15625, 3125, 5e-3, 1.0,
            {0: 0.0, 3124: 4.9984e-3, 3125: 4.0e-3, 8000: 2.44e-3, 14063: 4.9984e-4, 15625: 0.0},
        ),
        (7038, 2000, 6e-3, 0.5, {1999: 5.997e-3, 2000: 5.0764e-3, 5000: 3.2287e-3, 7037: 7.152e-5}),
        (1563, 200, 4e-3, 0.5, {199: 3.98e-3, 200: 3.7353e-3, 1000: 2.4007e-3}),
    ],
)  # fmt: skip
def test_legacy_jump_has_the_published_values(total, warmup, peak, power, points):
    schedule = WarmupPolynomialDecay(
        peak, total, warmup, learning_rate_decay_power=power, legacy_schedule_jump=True
    )
    for step, rate in points.items():
        assert schedule(step) == pytest.approx(rate, rel=2e-5, abs=0)


def test_continuous_schedule_has_pinned_values():
    schedule = WarmupPolynomialDecay(5e-3, 15625, 3125)
    assert schedule(0) == 0.0
    assert schedule(1) == 5e-3 / 3125
    assert schedule(3124) == pytest.approx(4.9984e-3, rel=1e-15)
    assert schedule(3125) == 5e-3
    assert schedule(9375) == 2.5e-3
    assert schedule(15624) == pytest.approx(5e-3 / 12500, rel=1e-15)
    assert schedule(15625) == 0.0
    assert schedule(20000) == 0.0


@pytest.mark.parametrize("legacy_jump", [False, True])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("warmup", [0, 1, 30])
def test_tensor_numpy_and_twin_agree_at_every_step(warmup, power, legacy_jump):
    schedule = WarmupPolynomialDecay(3e-3, 90, warmup, 1e-4, power, legacy_jump)
    steps = np.arange(100)
    expected = [twin(int(t), 3e-3, 90, warmup, 1e-4, power, legacy_jump) for t in steps]
    np.testing.assert_allclose(schedule(steps), expected, rtol=1e-14)
    with tf.Graph().as_default(), tf.Session() as session:
        rates = schedule(tf.constant(steps, tf.int64))
        assert rates.dtype == tf.float32
        np.testing.assert_allclose(session.run(rates), expected, rtol=1e-6)


def test_takes_the_global_step_variable():
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        rate = WarmupPolynomialDecay(1.0, 8, 4)(step)
        assert rate.shape.rank == 0
        session.run([step.initializer])
        seen = []
        for _ in range(10):
            seen.append(float(session.run(rate)))
            session.run(step.assign_add(1))
    assert seen == [0.0, 0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_float32_keeps_its_digits_near_the_end():
    schedule = WarmupPolynomialDecay(6e-3, 1_000_000, 1000)
    with tf.Graph().as_default(), tf.Session() as session:
        rate = session.run(schedule(tf.constant(999_999, tf.int64)))
    assert rate == pytest.approx(6e-3 / 999_000, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 10), r"^learning_rate=0.0: must be a finite number > 0"),
        ((float("nan"), 10), r"^learning_rate=nan"),
        ((1.0, 0), r"^num_train_steps=0: must be at least 1"),
        ((1.0, 10, 10), r"^num_warmup_steps=10: .* below num_train_steps=10; warm up for fewer"),
        ((1.0, 10, -1), r"^num_warmup_steps=-1: must be at least 0"),
        ((1.0, 10, 1, -1.0), r"end_learning_rate=-1.0: must be a finite number >= 0"),
        ((1.0, 10, 1, 0.0, 0.0), r"learning_rate_decay_power=0.0: must be a finite number > 0"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        WarmupPolynomialDecay(*arguments)
