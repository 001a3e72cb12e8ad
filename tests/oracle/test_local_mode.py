"""Local mode (use_tpu=False) against what TensorFlow 2.15's TPUEstimator did (upstream.json)."""

import json
import math
import os

import pytest
from scenarios import SCENARIOS, run

from bert_estimator import tpu

HERE = os.path.dirname(__file__)


def load(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as record:
        return json.load(record)


UPSTREAM = load("upstream.json")["scenarios"]

# Scenarios in which ours differs on purpose -> our behaviour, and the reason.
DIFFERENCES = load("differences.json")


def differences(expected, observed, where="observation"):
    """Returns what differs: floats by more than 1e-6; an error may say more than expected."""
    if isinstance(expected, dict) and isinstance(observed, dict):
        found = []
        for key in sorted(expected.keys() | observed.keys()):
            place = f"{where}[{key!r}]"
            if key not in observed:
                found.append(f"{place}: expected {expected[key]!r}, absent")
            elif key not in expected:
                found.append(f"{place}: not expected, is {observed[key]!r}")
            elif key == "says":
                missing = sorted(set(expected[key]) - set(observed[key]))
                found += [f"{place}: the message does not mention {word!r}" for word in missing]
            else:
                found += differences(expected[key], observed[key], place)
        return found
    if isinstance(expected, list) and isinstance(observed, list):
        if len(expected) != len(observed):
            return [f"{where}: expected {expected!r}, is {observed!r}"]
        return [
            line
            for index, pair in enumerate(zip(expected, observed, strict=True))
            for line in differences(*pair, f"{where}[{index}]")
        ]
    if isinstance(expected, float) and isinstance(observed, float):
        same = math.isclose(expected, observed, rel_tol=1e-6)
    else:
        same = type(expected) is type(observed) and expected == observed
    return [] if same else [f"{where}: expected {expected!r}, is {observed!r}"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_does_as_upstream_or_as_listed(name, tmp_path):
    expected = DIFFERENCES[name]["ours"] if name in DIFFERENCES else UPSTREAM[name]
    observed = json.loads(json.dumps(run(name, tpu, str(tmp_path))))
    assert differences(expected, observed) == []


def test_every_scenario_is_recorded_and_no_other():
    assert list(UPSTREAM) == list(SCENARIOS)


def test_every_listed_difference_is_one_and_has_a_reason():
    for name, difference in DIFFERENCES.items():
        assert differences(UPSTREAM[name], difference["ours"]) != [], name
        assert difference["reason"].endswith("."), name


def test_the_docs_list_every_difference():
    with open(os.path.join(HERE, "../../docs/tpu_estimator.md"), encoding="utf-8") as docs:
        text = docs.read()
    for name, difference in DIFFERENCES.items():
        assert difference["reason"] in text, name
        assert f"`{name}`" in text or f"`{name.split('[')[0]}[...]`" in text, name
    assert f"table of {len(UPSTREAM)} observed behaviours" in " ".join(text.split())


@pytest.mark.parametrize(
    ("expected", "observed", "found"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 1.0}, ["observation['a']: expected 1, is 1.0"]),
        ({"a": True}, {"a": 1}, ["observation['a']: expected True, is 1"]),
        ({"a": 1}, {}, ["observation['a']: expected 1, absent"]),
        ({}, {"a": 1}, ["observation['a']: not expected, is 1"]),
        ([1.0], [1.0 + 9e-7], []),
        ([1.0], [1.0 + 2e-6], ["observation[0]: expected 1.0, is 1.000002"]),
        ([1], [1, 2], ["observation: expected [1], is [1, 2]"]),
        ({"says": ["a"]}, {"says": ["a", "b"]}, []),
        (
            {"says": ["a", "b"]},
            {"says": ["b"]},
            ["observation['says']: the message does not mention 'a'"],
        ),
    ],
)
def test_differences_are_seen(expected, observed, found):
    assert differences(expected, observed) == found
