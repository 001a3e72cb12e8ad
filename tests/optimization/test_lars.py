"""LARS against its float64 twin."""

import numpy as np
import optimizer_steps
import pytest

from bert_estimator.optimization.lars import LARSOptimizer

SHAPES = {"a/kernel": [6, 4], "a/bias": [4], "b/head": [4, 2], "b/zero": [3]}


def twin(param, gradients, rate, decay, beta):
    """Yields (parameters, ratios), dicts by name, after each step, in float64."""
    param = {name: np.asarray(value, np.float64) for name, value in param.items()}
    m = {name: np.zeros_like(value) for name, value in param.items()}
    for gradient in gradients:
        ratios = {}
        for name, w in param.items():
            excluded = "bias" in name
            update = gradient[name] + (0.0 if excluded else decay) * w
            m[name] = beta * m[name] + (1 - beta) * update
            ratio = 1.0
            if not excluded:
                norms = np.linalg.norm(w.ravel()), np.linalg.norm(m[name].ravel())
                ratio = ratios[name] = norms[0] / norms[1] if min(norms) > 0 else 1.0
            param[name] = w - rate * ratio * m[name]
        yield dict(param), ratios


def test_equals_its_twin_over_five_steps():
    random = np.random.RandomState(3)
    param = {name: np.float32(random.standard_normal(s)) for name, s in SHAPES.items()}
    param["b/zero"][:] = 0.0
    gradients = [
        {name: np.float32(random.standard_normal(s)) for name, s in SHAPES.items()}
        for _ in range(5)
    ]
    history = optimizer_steps.run(
        lambda rate: LARSOptimizer(rate, weight_decay_rate=0.1, beta=0.8),
        param,
        gradients,
        [0.01] * 5,
    )
    expected = twin(param, gradients, 0.01, 0.1, 0.8)
    for found, (param, ratios) in zip(history, expected, strict=True):
        assert set(found["trust_ratio"]) == set(ratios) == set(SHAPES) - {"a/bias"}
        for name in ratios:
            assert found["trust_ratio"][name] == pytest.approx(ratios[name], rel=1e-5)
        for name in SHAPES:
            np.testing.assert_allclose(found["param"][name], param[name], rtol=0, atol=1e-6)


def test_a_weight_moves_by_the_learning_rates_share_of_its_length():
    kernel = np.float32([[1.0, -2.0], [2.0, 4.0]])
    gradients = [{"kernel": 1e-3 * kernel[::-1]}, {"kernel": 1e3 * kernel[:, ::-1]}]
    history = optimizer_steps.run(LARSOptimizer, {"kernel": kernel}, gradients, [0.125] * 2)
    first, second = (each["param"]["kernel"] for each in history)
    assert np.linalg.norm(first - kernel) == pytest.approx(0.125 * 5.0, rel=1e-6)
    moved = np.linalg.norm(second - first)
    assert moved == pytest.approx(0.125 * np.linalg.norm(first), rel=1e-5)


@pytest.mark.parametrize("beta", [1.0, -0.1])
def test_refuses_a_beta_out_of_range(beta):
    with pytest.raises(ValueError, match=rf"beta={beta}: must be at least 0 and below 1"):
        LARSOptimizer(0.1, beta=beta)
