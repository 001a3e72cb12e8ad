"""Tests the lines that long work says by time."""

import contextlib
import io
import threading

import pytest

from bert_estimator.system import ticker
from bert_estimator.system.ticker import LONGEST_SILENCE_SECS, Progress


def counting(name, enough):
    """Returns a function of lines, and the event that is set when it has been called thrice."""
    calls = []

    def line():
        calls.append(name)
        if len(calls) >= 3:
            enough.set()
        return f"{name} {len(calls)}"

    return line


def test_a_block_logs_lines_until_it_ends(logged):
    enough = threading.Event()
    with ticker.every(0.001, counting("outer", enough)):
        assert enough.wait(60)
    assert logged[:3] == [("INFO", "outer 1"), ("INFO", "outer 2"), ("INFO", "outer 3")]
    assert not [thread for thread in threading.enumerate() if thread.name == "ticker"]


def test_only_the_innermost_block_speaks(logged):
    outer, inner = threading.Event(), threading.Event()
    with ticker.every(0.001, counting("outer", outer)):
        assert outer.wait(60)
        with ticker.every(0.001, counting("inner", inner)):
            before = len([line for _, line in logged if "outer" in line])
            assert inner.wait(60)
            after = len([line for _, line in logged if "outer" in line])
        assert after <= before + 1  # a line may have been on its way
        outer.clear()
        assert outer.wait(60)


def test_nothing_is_said_without_an_interval_or_a_text(logged):
    asked = threading.Event()
    with ticker.every(None, lambda: "a line"), ticker.every(0.001, lambda: asked.set()):
        assert asked.wait(60)
    assert logged == []


@pytest.mark.parametrize("secs", [None, 0])
def test_the_outer_block_speaks_in_an_inner_block_without_an_interval(logged, secs):
    """As in a run with --log_every_secs=0, which still says every few seconds that it works."""
    enough = threading.Event()
    with ticker.every(0.001, counting("outer", enough)), ticker.every(secs, lambda: "inner"):
        enough.clear()
        assert enough.wait(60)
    assert {line.split()[0] for _, line in logged} == {"outer"}


def test_an_error_ends_the_lines():
    with pytest.raises(KeyError), ticker.every(0.001, lambda: None):
        raise KeyError("of the block")
    assert not [thread for thread in threading.enumerate() if thread.name == "ticker"]


def test_how_long_it_has_taken_so_far(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(ticker.time, "perf_counter", lambda: now[0])
    line = ticker.so_far("Building the model")
    now[0] = 183.2
    assert line() == "Building the model: 1:23 so far."


@pytest.fixture
def silence(monkeypatch):
    """Gives the time of a fake clock, and the function that a `never_silent` block looks with."""
    now, looks = [1000.0], []

    @contextlib.contextmanager
    def every(secs, line, say):
        looks.append(line)
        yield

    monkeypatch.setattr(ticker.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ticker, "every", every)
    with ticker.never_silent("Starting", lambda text: None):
        yield now, looks[0]


def test_no_command_is_silent_for_long(silence):
    """The outermost block speaks for whoever says nothing: while TensorFlow is loaded, say."""
    now, look = silence
    for secs, said in ((9, None), (10, "Starting: 0:10 so far."), (19, None),
                       (20, "Starting: 0:20 so far.")):  # fmt: skip
        now[0] = 1000.0 + secs
        assert look() == said
    now[0] = 1021.0
    ticker.heard()
    for secs, said in ((30, None), (31, "Still at work: 0:31 so far."), (40, None)):
        now[0] = 1000.0 + secs
        assert look() == said


def test_a_silent_block_has_a_thread_of_its_own(monkeypatch):
    monkeypatch.setattr(ticker, "LONGEST_SILENCE_SECS", 0.0)
    monkeypatch.setattr(ticker, "_LOOK_EVERY_SECS", 0.001)
    spoke = threading.Event()
    with ticker.never_silent("Starting", lambda text: spoke.set()):
        assert spoke.wait(60)
    assert not [thread for thread in threading.enumerate() if thread.name == "ticker"]


def test_a_ticker_counts_the_silence_before_it(monkeypatch):
    """Several pieces of work of less than 10 seconds each are not a silence of 30 seconds."""
    monkeypatch.setattr(ticker, "_LOOK_EVERY_SECS", 0.001)
    spoke = threading.Event()
    with ticker.never_silent("Starting", lambda text: None):
        ticker._heard[0] -= 3600
        with ticker.every(3000, lambda: "Building", lambda text: spoke.set()):
            assert spoke.wait(60)


def run(out, total, steps, secs_each, number=1e6):
    now = [0.0]
    progress = Progress("Reading text", total, "B", out, clock=lambda: now[0])
    for _ in range(steps):
        now[0] += secs_each
        progress.add(number)
    return out.getvalue()


def test_short_work_is_silent():
    assert run(io.StringIO(), 5e6, 5, LONGEST_SILENCE_SECS / 6) == ""


def test_a_line_has_share_rate_and_time_left():
    lines = run(io.StringIO(), 4e9, 20, 1.0).splitlines()
    assert lines == [
        "Reading text: 0 % of 4 GB, 1 MB/s, 1:06:30 left",
        "Reading text: 0 % of 4 GB, 1 MB/s, 1:06:20 left",
    ]
    (line,) = run(io.StringIO(), 40e6, 10, 1.0).splitlines()
    assert line == "Reading text: 25 % of 40 MB, 1 MB/s, 0:30 left"


def test_without_a_total_there_is_no_time_left():
    assert run(io.StringIO(), None, 10, 1.0) == "Reading text: 10 MB, 1 MB/s\n"


def test_nothing_done_and_more_done_than_expected():
    assert run(io.StringIO(), 10, 1, 11.0, number=0) == "Reading text: 0 % of 10 B, 0 B/s\n"
    assert "100 % of 10 B, 1 B/s, 0:00 left" in run(io.StringIO(), 10, 1, 11.0, number=12)
