"""A hundred calls in one process: memory, threads and files stay flat."""

import importlib.util
import os

import pytest
import toy

_PATH = os.path.join(os.path.dirname(os.path.dirname(__file__)), "torture", "soak.py")


@pytest.fixture(scope="module")
def soak():
    spec = importlib.util.spec_from_file_location("soak", _PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_hundred_calls(tmp_path, cores, soak):
    uses = soak.rounds(toy.MASTER, tmp_path, lambda calls: calls < 120)
    assert soak.problems_of(uses) == []


def test_growth_is_found(soak):
    class Use:
        memory, threads, files = 100, 10, 20

        def __init__(self, **changes):
            vars(self).update(changes)

    assert soak.problems_of([Use()] * 8) == []
    growing = [Use(memory=100 + number, files=20 + number // 6) for number in range(8)]
    assert soak.problems_of(growing) == [
        "memory grew from 102 to 106",
        "files grew from 20 to 21",
    ]
