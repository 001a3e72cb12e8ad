"""AdamW against its float64 twin, and against optax's."""

import numpy as np
import optimizer_steps
import pytest

from bert_estimator.optimization.adamw import AdamWeightDecayOptimizer

SHAPES = {"a/kernel": [5, 3], "a/bias": [3]}


def numbers():
    """(initial values, thirty gradients, thirty learning rates)."""
    random = np.random.RandomState(4)

    def draw():
        return {name: np.float32(random.standard_normal(shape)) for name, shape in SHAPES.items()}

    return draw(), [draw() for _ in range(30)], list(np.linspace(0.01, 0.001, 30))


def twin(param, gradients, rates, decay, bias_correction):
    """Yields (parameters, m, v), dicts by name, after each step, in float64."""
    param = {name: np.asarray(value, np.float64) for name, value in param.items()}
    m = {name: np.zeros_like(value) for name, value in param.items()}
    v = {name: np.zeros_like(value) for name, value in param.items()}
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        for name in param:
            m[name] = 0.9 * m[name] + 0.1 * gradient[name]
            v[name] = 0.999 * v[name] + 0.001 * gradient[name] ** 2
            scale_m, scale_v = (1 - 0.9**t, 1 - 0.999**t) if bias_correction else (1.0, 1.0)
            ratio = m[name] / scale_m / (np.sqrt(v[name] / scale_v) + 1e-6)
            if "bias" not in name:
                ratio = ratio + decay * param[name]
            param[name] = param[name] - rate * ratio
        yield dict(param), dict(m), dict(v)


@pytest.mark.parametrize("bias_correction", [False, True])
def test_equals_its_twin_over_thirty_steps(bias_correction):
    initial, gradients, rates = numbers()
    history = optimizer_steps.run(
        lambda rate: AdamWeightDecayOptimizer(rate, 0.1, bias_correction=bias_correction),
        initial,
        gradients,
        rates,
    )
    expected = twin(initial, gradients, rates, 0.1, bias_correction)
    for step, (found, (param, m, v)) in enumerate(zip(history, expected, strict=True), start=1):
        assert found["global_step"] == step
        assert found["trust_ratio"] == {}
        for name in SHAPES:
            np.testing.assert_allclose(found["param"][name], param[name], rtol=0, atol=1e-6)
            np.testing.assert_allclose(found["m"][name], m[name], rtol=0, atol=1e-6)
            np.testing.assert_allclose(found["v"][name], v[name], rtol=0, atol=1e-6)


def test_pinned_first_step_of_bert():
    """m = 0.1 g, v = 0.001 g^2: the ratio is sqrt(10) for any gradient; bias has no decay."""
    history = optimizer_steps.run(
        AdamWeightDecayOptimizer,
        {"kernel": [2.0], "bias": [2.0]},
        [{"kernel": [0.5], "bias": [0.5]}],
        [0.1],
    )
    ratio = 0.05 / (np.sqrt(0.00025) + 1e-6)
    assert history[0]["param"]["kernel"][0] == pytest.approx(2.0 - 0.1 * (ratio + 0.02), rel=1e-6)
    assert history[0]["param"]["bias"][0] == pytest.approx(2.0 - 0.1 * ratio, rel=1e-6)


def test_with_bias_correction_equals_optax():
    optax = pytest.importorskip("optax")
    initial, gradients, _ = numbers()
    history = optimizer_steps.run(
        lambda rate: AdamWeightDecayOptimizer(rate, 0.1, bias_correction=True),
        initial,
        gradients,
        [0.01] * 30,
    )
    optimizer = optax.adamw(
        0.01, eps=1e-6, weight_decay=0.1, mask={name: "bias" not in name for name in SHAPES}
    )
    param, state = initial, optimizer.init(initial)
    for found, gradient in zip(history, gradients, strict=True):
        updates, state = optimizer.update(gradient, state, param)
        param = optax.apply_updates(param, updates)
        for name in SHAPES:
            np.testing.assert_allclose(found["param"][name], param[name], rtol=0, atol=1e-6)
