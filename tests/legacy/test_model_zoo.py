"""Tests that models have the variables that they have in TensorFlow 1.15.5, in their order."""

import sys

import forked
import pytest
import replay

LEGACY = [sys.executable, "-m", "bert_estimator.legacy"]


@pytest.mark.parametrize(
    "name", ["model_zoo", pytest.param("keras_applications", marks=pytest.mark.slow)]
)
def test_variables_are_those_of_tensorflow_1(tmp_path, name):
    replay.run_zoo(LEGACY, name, tmp_path, forked.run)
    golden = replay.variables_of(replay.GOLDENS / f"{name}.json")
    assert all(golden.values())
    got = replay.variables_of(tmp_path / "variables.json")
    assert not replay.differences_of_variables(golden, got)


def test_differences_of_variables_are_seen():
    one = {"net": [["a:0", [2], "float32", True], ["b:0", [2], "float32", True]], "x": []}
    assert replay.differences_of_variables(one, one) == []
    for other in (one["net"][:1], one["net"][::-1], [["a:0", [2], "bfloat16", True]]):
        assert len(replay.differences_of_variables(one, {"net": other})) == 2
