"""When Python's garbage collector is off."""

import gc

import pytest

from bert_estimator.system import memory


@pytest.fixture(autouse=True)
def _unchanged():
    assert gc.isenabled()
    yield
    gc.enable()


def test_the_collector_is_off_within_and_on_again_afterwards():
    with memory.paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_is_on_again_after_an_error():
    with pytest.raises(KeyError), memory.paused():
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    with memory.paused(), memory.paused():
        assert not gc.isenabled()
    assert not gc.isenabled()
