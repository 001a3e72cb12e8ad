"""Tests that programs for TensorFlow 2 with tf.estimator give what TensorFlow 2.15 gave."""

import functools
import json
import math

import legacy_script
import printed
import pytest

from bert_estimator.legacy import wheel

pytestmark = pytest.mark.skipif(
    wheel.folder() is None, reason="needs tensorflow-estimator: the extra [estimator]"
)

# Classes that have another name here, and names that lead nowhere in a program with tf.estimator.
DIFFERENT = {
    "compat.v1.estimator": {"ModeKeys"},
    "estimator": {"Estimator", "ModeKeys"},
    "tensorflow": {"dtensor", "security", "tools", "tsl"},
}

CANNED = (
    "linear linear_of_three linear_regressor linear_estimator dnn dnn_normalized dnn_regressor "
    "dnn_estimator combined combined_regressor combined_estimator baseline baseline_regressor "
    "baseline_estimator old_dnn old_linear old_combined"
)
QUICK = ("linear", "old_linear")


@functools.cache
def golden():
    return json.loads(printed.GOLDEN_OF_2.read_text())


def run(script, folder, *arguments):
    """Runs a script under the runner; returns what it printed, by name."""
    text = (printed.SCRIPTS_OF_2 / f"{script}.py").read_text()
    return printed.read(legacy_script.run(folder, text, folder, *arguments, flags=["--tf2"]).stdout)


def differences(expected, got, path=""):
    """Yields a line for each difference of two JSON values; numbers may differ by 1e-5."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for name in sorted({*expected, *got}):
            if name in expected and name in got:
                yield from differences(expected[name], got[name], f"{path}/{name}")
            else:
                yield f"{path}/{name} in one only"
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, pair in enumerate(zip(expected, got, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif isinstance(expected, float) and isinstance(got, float):
        if not math.isclose(expected, got, rel_tol=1e-5, abs_tol=1e-7):
            yield f"{path}: {expected} and {got}"
    elif expected != got:
        yield f"{path}: {expected} and {got}"


def check_canned(folder, cases):
    got = run("canned", folder, *cases)
    assert list(got) == list(cases)
    assert not list(differences({case: golden()[case] for case in cases}, got))


def test_canned_estimators_give_what_tensorflow_2_gave(tmp_path):
    check_canned(tmp_path, QUICK)
    # The names of TensorFlow 1 are other classes, with the sum over the batch as their loss.
    assert golden()["linear"]["losses"][0] < 1 < golden()["old_linear"]["losses"][0]


@pytest.mark.slow
def test_further_canned_estimators_give_what_tensorflow_2_gave(tmp_path):
    check_canned(tmp_path, [case for case in CANNED.split() if case not in QUICK])


@pytest.mark.slow
def test_a_models_layers_and_optimizers_of_keras_give_what_tensorflow_2_gave(tmp_path):
    got = run("custom", tmp_path)
    assert len(got) == 6
    assert not list(differences({name: golden()[name] for name in got}, got))


@pytest.mark.parametrize("arguments", [[], ["--use_tpu"], ["--use_tpu", "rehearse:2"]])
@pytest.mark.usefixtures("xla_runtime")
def test_a_tpu_estimator_gives_what_tensorflow_2_gave(tmp_path, arguments):
    """With use_tpu, the loss is logged after each loop of two steps."""
    expected = golden()["on_cores"]
    if arguments:
        expected = {**expected, "losses": expected["losses"][1::2]}
    got = run("on_cores", tmp_path, *arguments)["on_cores"]
    assert not list(differences(expected, got))


def test_behaviour_outside_of_estimators_is_tensorflow_2s(tmp_path):
    expected, got = golden()["behaviour"], run("behaviour", tmp_path)["behaviour"]
    assert len(expected) == 30 and not list(differences(expected, got))


def test_names_are_tensorflow_2s(tmp_path):
    expected, got = golden()["names"], run("names", tmp_path)["names"]
    for module, kinds in expected.items():
        different = {name for name in kinds if kinds[name] != got[module].get(name)}
        assert different == DIFFERENT.get(module, set()), module
