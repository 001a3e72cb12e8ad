"""Tests what hosts compare before they train together; another host is a change of what is sent."""

import numpy as np
import pytest

from bert_estimator.cluster import hosts


@pytest.fixture
def other(monkeypatch):
    """Returns a function that says which of the checksums the other host has differently."""

    def differs(*numbers):
        def gather(values):
            assert values.dtype == np.int32 and (values >= 0).all()
            others = values.copy()
            others[list(numbers)] ^= 1
            return np.stack([values, others])

        monkeypatch.setattr(hosts, "find", lambda: hosts.Hosts(("a:1", "b:1"), 0))
        monkeypatch.setattr(hosts, "gather", gather)

    return differs


def test_a_single_host_agrees_with_itself(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(hosts, "gather", None)  # nothing is sent
    assert hosts.differing({"a": 1}) == []
    hosts.check_settings(steps=None)
    hosts.check_variables({"w": np.zeros([2])})


def test_the_same_is_no_error(other):
    other()
    assert hosts.differing({"a": [1, "b"], "c": None}) == []
    hosts.check_settings(steps=5, batch_size=None)
    hosts.check_variables({"w": np.zeros([2, 3]).T, "b": np.float32(1)})


def test_what_differs_is_named(other):
    other(1)
    assert hosts.differing({"a": 1, "b": 1}) == ["b"]
    with pytest.raises(
        RuntimeError, match=r"different values of max_steps \(here max_steps=None\)\. S"
    ):
        hosts.check_settings(batch_size=8, max_steps=None)
    with pytest.raises(RuntimeError, match=r"values of these variables: w\. Set RunConfig"):
        hosts.check_variables({"b": np.zeros([2]), "w": np.zeros([2])})


def test_of_many_variables_some_are_named(other):
    other(*range(12))
    values = {f"w{number}": np.zeros([1]) for number in range(12)}
    with pytest.raises(RuntimeError, match=r"w0, w1, .*, w9, and 2 more\. Set"):
        hosts.check_variables(values)
