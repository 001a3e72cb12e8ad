"""Strategies of hypothesis for the tests that feed parsers with what nobody meant."""

import copy
import json
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))


def fuzz_settings(max_examples=40):
    """Returns the settings of a fuzz: the same examples each time, unless $FUZZ_EXAMPLES is set."""
    return settings(
        max_examples=_EXAMPLES or max_examples,
        derandomize=not _EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def fuzzed(strategy, examples=40):
    """Decorates a test that gets one example at a time, after its fixtures."""
    return lambda test: fuzz_settings(examples)(given(data=strategy)(test))


NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, 1, -1, True, 2**31, 2**63, 10**30, 1e300])
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=20))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def _places(value, at=()):
    """Yields the path of every value inside a value of JSON."""
    if at:
        yield at
    inner = enumerate(value) if isinstance(value, list) else ()
    for key, below in value.items() if isinstance(value, dict) else inner:
        yield from _places(below, (*at, key))


@st.composite
def changed(draw, good):
    """Draws a value of JSON with up to three parts replaced or removed."""
    value = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(value))
        if not places:
            break
        *path, last = draw(st.sampled_from(places))
        inner = value
        for key in path:
            inner = inner[key]
        if draw(st.booleans()):
            inner[last] = draw(VALUES)
        else:
            del inner[last]
    return value


@st.composite
def damaged(draw, good):
    """Draws bytes with some parts overwritten, cut out or put in."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.one_of(st.just(at), st.integers(at, min(len(data), at + 40))))
        data[at:end] = draw(st.binary(max_size=12))
    return bytes(data) if draw(st.booleans()) else bytes(data[: draw(st.integers(0, len(data)))])


def bytes_of(good):
    """Returns a strategy of bytes around good JSON: values changed, or bytes damaged."""
    whole = json.dumps(good).encode()
    return st.one_of(
        changed(good).map(lambda value: json.dumps(value).encode()), damaged(whole), st.binary()
    )
