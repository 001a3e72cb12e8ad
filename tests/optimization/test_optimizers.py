"""LAMB, AdamW, LARS and Adafactor against float64 twins, golden vectors and optax; and by name."""

import inspect
import json
import pathlib

import numpy as np
import optimizer_steps
import pytest

from bert_estimator import optimization
from bert_estimator.command_line import choices
from bert_estimator.jobs.pretraining.pretraining_config import ScheduleFlags
from bert_estimator.optimization.optimizers import (
    OPTIMIZERS,
    AdafactorOptimizer,
    AdamWeightDecayOptimizer,
    LAMBOptimizer,
    LARSOptimizer,
    create_optimizer,
)

GOLDEN = json.loads(
    (pathlib.Path(__file__).parent.parent / "data" / "lamb_golden.json").read_text()
)
RULES = {
    "A_nodebias_excl": {},
    "B_debias_excl": {"bias_correction": True},
    "C_debias_adapt_all": {"bias_correction": True, "exclude_from_layer_adaptation": []},
}
SHAPES = {"a/kernel": [6, 4], "a/bias": [4], "b/head": [4, 2], "b/stack": [2, 3, 5], "b/zero": [3]}


def random_problem(steps, scale=1.0, shapes=SHAPES, seed=3):
    """Returns (initial values, gradients of each step, in step t scale^t times as large)."""
    random = np.random.RandomState(seed)

    def draw(factor=1.0):
        return {n: np.float32(factor * random.standard_normal(s)) for n, s in shapes.items()}

    initial = draw()
    if "b/zero" in initial:
        initial["b/zero"][:] = 0.0
    return initial, [draw(scale**t) for t in range(steps)]


def zeros_like(param):
    return {name: np.zeros_like(value) for name, value in param.items()}


def assert_close(found, expected):
    """Compares dicts of arrays, to 1e-6 absolute."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)


# LAMB


def lamb_twin(param, gradients, rates, decay, bias_correction, exclude_decay, exclude_adaptation):
    """Yields (parameters, m, v, ratios), dicts by name, after each step, in float64."""
    param = {name: np.asarray(value, np.float64) for name, value in param.items()}
    m, v = zeros_like(param), zeros_like(param)
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
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
def test_lamb_has_the_golden_vectors(rule):
    inputs = GOLDEN["inputs"]
    gradients = [{n: np.array(g) for n, g in step.items()} for step in inputs["grads"]]
    history = optimizer_steps.run(
        lambda rate: LAMBOptimizer(rate, **RULES[rule]), inputs["params0"], gradients, inputs["lr"]
    )
    assert len(history) == len(GOLDEN["cases"][rule]) == 3
    for found, expected in zip(history, GOLDEN["cases"][rule], strict=True):
        for kind in ("param", "m", "v"):
            assert_close(found[kind], expected[kind])
        for name, ratio in expected["trust_ratio"].items():
            # The golden file has a 1 for each excluded variable; the optimizer leaves them out.
            assert found["trust_ratio"].get(name, 1.0) == pytest.approx(ratio, rel=1e-5)
        assert found["global_step"] == expected["t"]


def test_the_golden_rules_differ():
    """Otherwise the test above could not tell them apart."""
    last = {rule: steps[-1]["param"] for rule, steps in GOLDEN["cases"].items()}
    kernel, gamma = "enc/dense/kernel", "enc/LayerNorm/gamma"
    a, b, c = (last[rule] for rule in sorted(RULES))
    assert np.abs(np.subtract(a[kernel], b[kernel])).max() > 1e-4
    assert np.abs(np.subtract(b[gamma], c[gamma])).max() > 1e-4


@pytest.mark.parametrize("bias_correction", [False, True])
def test_lamb_equals_its_twin_over_thirty_steps(bias_correction):
    param, gradients = random_problem(30)
    history = optimizer_steps.run(
        lambda rate: LAMBOptimizer(
            rate,
            weight_decay_rate=0.1,
            bias_correction=bias_correction,
            exclude_from_weight_decay=["bias"],
            exclude_from_layer_adaptation=["bias", "head"],
        ),
        param,
        gradients,
        [0.01] * 30,
    )
    expected = lamb_twin(
        param, gradients, [0.01] * 30, 0.1, bias_correction, ["bias"], ["bias", "head"]
    )
    for found, (param, m, v, ratios) in zip(history, expected, strict=True):
        assert set(found["trust_ratio"]) == set(ratios) == {"a/kernel", "b/stack", "b/zero"}
        for name, ratio in ratios.items():
            assert found["trust_ratio"][name] == pytest.approx(ratio, rel=1e-5)
        for kind, values in (("param", param), ("m", m), ("v", v)):
            assert_close(found[kind], values)


# AdamW


@pytest.mark.parametrize("bias_correction", [False, True])
def test_adamw_equals_its_twin_over_thirty_steps(bias_correction):
    """It is LAMB without a trust ratio of any variable."""
    initial, gradients = random_problem(30)
    rates = list(np.linspace(0.01, 0.001, 30))
    history = optimizer_steps.run(
        lambda rate: AdamWeightDecayOptimizer(rate, 0.1, bias_correction=bias_correction),
        initial,
        gradients,
        rates,
    )
    expected = lamb_twin(initial, gradients, rates, 0.1, bias_correction, ["bias"], [""])
    for step, (found, (param, m, v, _)) in enumerate(zip(history, expected, strict=True), start=1):
        assert found["global_step"] == step
        assert found["trust_ratio"] == {}
        for kind, values in (("param", param), ("m", m), ("v", v)):
            assert_close(found[kind], values)


def test_pinned_first_step_of_bert():
    """For any gradient m = 0.1 g, v = 0.001 g^2 give the ratio sqrt(10); bias has no decay."""
    history = optimizer_steps.run(
        AdamWeightDecayOptimizer,
        {"kernel": [2.0], "bias": [2.0]},
        [{"kernel": [0.5], "bias": [0.5]}],
        [0.1],
    )
    ratio = 0.05 / (np.sqrt(0.00025) + 1e-6)
    assert history[0]["param"]["kernel"][0] == pytest.approx(2.0 - 0.1 * (ratio + 0.02), rel=1e-6)
    assert history[0]["param"]["bias"][0] == pytest.approx(2.0 - 0.1 * ratio, rel=1e-6)


def test_adamw_with_bias_correction_equals_optax():
    optax = pytest.importorskip("optax")
    # Few numbers: on the default problem, optax itself is 1.2e-6 away from the float64 twin.
    param, gradients = random_problem(30, shapes={"a/kernel": [5, 3], "a/bias": [3]}, seed=4)
    history = optimizer_steps.run(
        lambda rate: AdamWeightDecayOptimizer(rate, 0.1, bias_correction=True),
        param,
        gradients,
        [0.01] * 30,
    )
    optimizer = optax.adamw(
        0.01, eps=1e-6, weight_decay=0.1, mask={name: "bias" not in name for name in param}
    )
    state = optimizer.init(param)
    for found, gradient in zip(history, gradients, strict=True):
        updates, state = optimizer.update(gradient, state, param)
        param = optax.apply_updates(param, updates)
        assert_close(found["param"], param)


# LARS


def lars_twin(param, gradients, rate, decay, beta):
    """Yields (parameters, ratios), dicts by name, after each step, in float64."""
    param = {name: np.asarray(value, np.float64) for name, value in param.items()}
    m = zeros_like(param)
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


def test_lars_equals_its_twin_over_five_steps():
    param, gradients = random_problem(5)
    history = optimizer_steps.run(
        lambda rate: LARSOptimizer(rate, weight_decay_rate=0.1, beta=0.8),
        param,
        gradients,
        [0.01] * 5,
    )
    expected = lars_twin(param, gradients, 0.01, 0.1, 0.8)
    for found, (param, ratios) in zip(history, expected, strict=True):
        assert set(found["trust_ratio"]) == set(ratios) == set(SHAPES) - {"a/bias"}
        for name in ratios:
            assert found["trust_ratio"][name] == pytest.approx(ratios[name], rel=1e-5)
        assert_close(found["param"], param)


# Adafactor


def rms(x):
    return np.sqrt(np.mean(np.square(x)))


def adafactor_twin(
    param, gradients, rates, exponent=0.8, epsilon_1=1e-30, epsilon_2=1e-3, threshold=1.0
):
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


@pytest.mark.parametrize(
    ("of_twin", "options"),
    [
        ({}, {}),
        (
            {"exponent": 0.5, "threshold": 0.25, "epsilon_1": 1e-3, "epsilon_2": 0.5},
            {
                "decay_exponent": 0.5,
                "clipping_threshold": 0.25,
                "epsilon_1": 1e-3,
                "epsilon_2": 0.5,
            },
        ),
    ],
    ids=["the paper's", "others"],
)
def test_adafactor_equals_its_twin_over_five_steps(of_twin, options):
    param, gradients = random_problem(5, scale=10.0, shapes={**SHAPES, "b/scalar": ()})
    rates = [min(0.01, 1 / np.sqrt(t)) * 10 for t in range(1, 6)]
    history = optimizer_steps.run(
        lambda rate: AdafactorOptimizer(rate, **options), param, gradients, rates
    )
    expected = adafactor_twin(param, gradients, rates, **of_twin)
    for found, values in zip(history, expected, strict=True):
        assert_close(found["param"], values)


def test_adafactor_leaves_a_variable_without_a_gradient_as_it_is():
    """Its squares are epsilon_1, whose product would be 0 in float32, and 0 / 0 is NaN."""
    ones, zeros = {"w": np.ones([3, 4])}, {"w": np.zeros([3, 4])}
    history = optimizer_steps.run(AdafactorOptimizer, ones, [zeros] * 2, [1.0] * 2)
    np.testing.assert_array_equal(history[-1]["param"]["w"], ones["w"])


# All of them, by name


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_learning_rate_may_be_a_function_of_the_variables_name(name):
    """Each variable moves as it does if all variables have its rate."""
    param, gradients = random_problem(3)

    def run(factor):
        return optimizer_steps.run(
            lambda rate: create_optimizer(name, factor(rate)), param, gradients, [0.1, 0.2, 0.05]
        )

    by_name = run(lambda rate: lambda name: 0.5 * rate if name.startswith("b/") else rate)
    whole, half = run(lambda rate: rate), run(lambda rate: 0.5 * rate)
    for found, of_a, of_b in zip(by_name, whole, half, strict=True):
        expected = {n: (of_b if n.startswith("b/") else of_a)["param"][n] for n in SHAPES}
        assert_close(found["param"], expected)
    assert np.abs(whole[-1]["param"]["b/head"] - half[-1]["param"]["b/head"]).max() > 1e-3


def test_the_names_are_the_names_that_flags_offer():
    assert tuple(OPTIMIZERS) == choices.OPTIMIZER_NAMES


def test_options_are_passed_on():
    with pytest.raises(ValueError, match=r"beta_1=2\.0"):
        create_optimizer("lamb", 0.1, beta_1=2.0)


def test_an_unknown_name_is_refused_and_the_known_names_listed():
    message = r"^name='adam': must be one of {}\.$".format(", ".join(choices.OPTIMIZER_NAMES))
    with pytest.raises(ValueError, match=message):
        create_optimizer("adam", 0.1)


def test_the_package_exports_what_it_says():
    assert all(hasattr(optimization, name) for name in optimization.__all__)
    assert {each.__name__ for each in OPTIMIZERS.values()} <= set(optimization.__all__)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("flag", ScheduleFlags.OPTIMIZER_FLAGS)
def test_a_flag_of_some_optimizers_is_an_argument_of_each(flag, name):
    argument, optimizers = ScheduleFlags.OPTIMIZER_FLAGS[flag]
    default = inspect.signature(OPTIMIZERS[optimizers[0]]).parameters[argument].default
    nothing = dict.fromkeys(ScheduleFlags.OPTIMIZER_FLAGS)
    for value in (None, 0, default):
        options = ScheduleFlags(optimizer=name, **{**nothing, flag: value}).optimizer_options()
        is_set = name in optimizers and value is not None
        assert (argument in options) is is_set
        assert options.get(argument) == (value if is_set else None)
    create_optimizer(name, 0.1, **options)
