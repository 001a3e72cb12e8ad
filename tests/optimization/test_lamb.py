"""LAMB against the golden vectors of its three rules, and against a float64 twin."""

import json
import pathlib

import numpy as np
import optimizer_steps
import pytest

from bert_estimator.optimization.lamb import LAMBOptimizer

GOLDEN = json.loads(
    (pathlib.Path(__file__).parent.parent / "data" / "lamb_golden.json").read_text()
)
RULES = {
    "A_nodebias_excl": {},
    "B_debias_excl": {"bias_correction": True},
    "C_debias_adapt_all": {"bias_correction": True, "exclude_from_layer_adaptation": []},
}


def twin(param, gradients, rate, decay, bias_correction, exclude_decay, exclude_adaptation):
    """Yields (parameters, m, v, ratios), dicts by name, after each step, in float64."""
    param = {name: np.asarray(value, np.float64) for name, value in param.items()}
    m = {name: np.zeros_like(value) for name, value in param.items()}
    v = {name: np.zeros_like(value) for name, value in param.items()}
    for t, gradient in enumerate(gradients, start=1):
        ratios = {}
        for name in param:
            m[name] = 0.9 * m[name] + 0.1 * gradient[name]
            v[name] = 0.999 * v[name] + 0.001 * gradient[name] ** 2
            scale_m, scale_v = (1 - 0.9**t, 1 - 0.999**t) if bias_correction else (1.0, 1.0)
            update = m[name] / scale_m / (np.sqrt(v[name] / scale_v) + 1e-6)
            if not any(part in name for part in exclude_decay):
                update = update + decay * param[name]
            if not any(part in name for part in exclude_adaptation):
                norms = np.linalg.norm(param[name].ravel()), np.linalg.norm(update.ravel())
                ratios[name] = norms[0] / norms[1] if min(norms) > 0 else 1.0
                update = ratios[name] * update
            param[name] = param[name] - rate * update
        yield dict(param), dict(m), dict(v), ratios


@pytest.mark.parametrize("rule", sorted(RULES))
def test_golden_vectors(rule):
    inputs = GOLDEN["inputs"]
    gradients = [{n: np.array(g) for n, g in step.items()} for step in inputs["grads"]]
    history = optimizer_steps.run(
        lambda rate: LAMBOptimizer(rate, **RULES[rule]), inputs["params0"], gradients, inputs["lr"]
    )
    assert len(history) == len(GOLDEN["cases"][rule]) == 3
    for found, expected in zip(history, GOLDEN["cases"][rule], strict=True):
        for kind in ("param", "m", "v"):
            assert set(found[kind]) == set(expected[kind])
            for name, value in expected[kind].items():
                np.testing.assert_allclose(found[kind][name], value, rtol=0, atol=1e-6)
        for name, ratio in expected["trust_ratio"].items():
            # The golden file has a 1 for each excluded variable; the optimizer leaves those out.
            assert found["trust_ratio"].get(name, 1.0) == pytest.approx(ratio, rel=1e-5)
        assert found["global_step"] == expected["t"]


def test_the_golden_rules_differ():
    """Else the test above could not tell them apart."""
    last = {rule: steps[-1]["param"] for rule, steps in GOLDEN["cases"].items()}
    kernel, gamma = "enc/dense/kernel", "enc/LayerNorm/gamma"
    a, b, c = (last[rule] for rule in sorted(RULES))
    assert np.abs(np.subtract(a[kernel], b[kernel])).max() > 1e-4
    assert np.abs(np.subtract(b[gamma], c[gamma])).max() > 1e-4


@pytest.mark.parametrize("bias_correction", [False, True])
def test_equals_its_twin_over_thirty_steps(bias_correction):
    random = np.random.RandomState(3)
    shapes = {"a/kernel": [6, 4], "a/bias": [4], "b/head": [4, 2]}
    param = {name: np.float32(random.standard_normal(s)) for name, s in shapes.items()}
    gradients = [
        {name: np.float32(random.standard_normal(s)) for name, s in shapes.items()}
        for _ in range(30)
    ]
    settings = {
        "bias_correction": bias_correction,
        "exclude_from_weight_decay": ["bias"],
        "exclude_from_layer_adaptation": ["bias", "head"],
    }
    history = optimizer_steps.run(
        lambda rate: LAMBOptimizer(rate, weight_decay_rate=0.1, **settings),
        param,
        gradients,
        [0.01] * 30,
    )
    expected = twin(
        param, gradients, 0.01, 0.1, bias_correction, ["bias"], ["bias", "head"]
    )  # fmt: skip
    for found, (param, m, v, ratios) in zip(history, expected, strict=True):
        assert set(found["trust_ratio"]) == set(ratios) == {"a/kernel"}
        assert found["trust_ratio"]["a/kernel"] == pytest.approx(ratios["a/kernel"], rel=1e-5)
        for name in shapes:
            np.testing.assert_allclose(found["param"][name], param[name], rtol=0, atol=1e-6)
            np.testing.assert_allclose(found["m"][name], m[name], rtol=0, atol=1e-6)
            np.testing.assert_allclose(found["v"][name], v[name], rtol=0, atol=1e-6)


def test_a_frozen_matrix_shrinks_by_the_learning_rate():
    """A zero gradient leaves u = decay * w, whose ratio is 1 / decay: the step is lr * w."""
    history = optimizer_steps.run(
        LAMBOptimizer, {"kernel": [[3.0, 4.0]]}, [{"kernel": np.zeros([1, 2])}], [0.01]
    )
    assert history[0]["trust_ratio"]["kernel"] == pytest.approx(100.0, rel=1e-6)
    np.testing.assert_allclose(history[0]["param"]["kernel"], [[2.97, 3.96]], rtol=1e-6)


def test_the_weight_moves_by_the_learning_rates_share_of_its_length():
    kernel = np.float32([[1.0, -2.0], [2.0, 4.0]])
    history = optimizer_steps.run(
        LAMBOptimizer, {"kernel": kernel}, [{"kernel": 1e3 * kernel[::-1]}], [0.125]
    )
    moved = np.linalg.norm(history[0]["param"]["kernel"] - kernel)
    assert moved == pytest.approx(0.125 * 5.0, rel=1e-6)
