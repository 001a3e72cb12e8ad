"""A loop given as a time."""

import pytest

from bert_estimator.tpu.step import interface
from bert_estimator.tpu.step.interface import LoopLength


@pytest.fixture
def now(monkeypatch):
    """Sets the time: a list of a number of seconds."""
    now = [0.0]
    monkeypatch.setattr(
        interface, "time", type("Clock", (), {"perf_counter": staticmethod(lambda: now[0])})
    )
    return now


@pytest.mark.parametrize(
    ("target", "step_secs", "lengths"),
    [("1s", 0.1, [1, 10, 10, 10]), ("2s", 4.0, [1, 1, 1]), ("1m", 0.5, [1, 120]),
     ("1h", 60.0, [1, 60, 60])],
)  # fmt: skip
def test_a_loop_given_as_a_time_is_tuned_to_it(now, target, step_secs, lengths):
    length = LoopLength(target)
    seen = []
    for _ in lengths:
        seen.append(length.get())
        with length.timed(range(seen[-1])):
            now[0] += seen[-1] * step_secs
    assert seen == lengths


def test_tuning_forgets_what_was_slow_long_ago(now):
    length = LoopLength("1s")
    for step_secs in [5.0] + [0.1] * 20:
        with length.timed(range(length.get())):
            now[0] += length.get() * step_secs
    assert length.get() == 10


def test_only_the_steps_that_were_run_count(now):
    length = LoopLength("1s")
    for done in ([0.5], [0.5] * 4, []):  # of loops of 1, 10 and 10 steps; a loss ended the second
        with length.timed(done):
            now[0] += 0.1 * len(done)
        assert length.get() == 10
