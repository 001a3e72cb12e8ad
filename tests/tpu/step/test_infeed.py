"""The infeed: order, bounded depth, limit, errors in their place, waits that can be ended."""

import threading
import time

import pytest
from toy import wait_until

from bert_estimator.tpu.step import feeds as infeed
from bert_estimator.tpu.step.feeds import EndOfInput, Infeed


def counting(last=None, error=None):
    """A draw that gives 1, 2, ..., last, then raises (EndOfInput if not told otherwise)."""
    numbers = iter(range(1, 10**9))

    def draw():
        number = next(numbers)
        if last is not None and number > last:
            raise error or EndOfInput
        return number

    return draw


@pytest.fixture
def started():
    """Starts infeeds, and stops them when the test is over."""
    feeds = []

    def start(*args, **kwargs):
        feeds.append(Infeed(*args, **kwargs))
        feeds[-1].start()
        return feeds[-1]

    yield start
    for feed in feeds:
        feed.stop()
        feed.join(5)
    assert not [feed for feed in feeds if feed._thread.is_alive()]


def test_batches_come_in_order_to_the_end_of_input_and_then_no_more(started):
    feed = started(counting(100))
    assert [feed.get() for _ in range(100)] == list(range(1, 101))
    for _ in range(2):
        with pytest.raises(EndOfInput):
            feed.get()


def test_the_producer_is_ahead_by_depth_and_the_one_in_its_hand(started):
    feed = started(counting())
    for consumed in range(4):
        wait_until(lambda consumed=consumed: feed.drawn == consumed + infeed.DEPTH + 1)
        time.sleep(0.05)  # time enough to draw on, were it not bounded
        assert feed.drawn == consumed + infeed.DEPTH + 1
        assert feed.get() == consumed + 1


@pytest.mark.parametrize("limit", [1, 3, 20])
def test_no_more_is_drawn_than_the_limit(started, limit):
    feed = started(counting(), limit)
    assert [feed.get() for _ in range(limit)] == list(range(1, limit + 1))
    with pytest.raises(EndOfInput):
        feed.get()
    assert feed.drawn == limit


def test_an_error_is_raised_after_the_batches_before_it_each_time(started):
    error = ValueError("record 3 is broken")
    feed = started(counting(2, error))
    wait_until(lambda: not feed._thread.is_alive())
    assert [feed.get(), feed.get()] == [1, 2]
    for _ in range(2):
        with pytest.raises(ValueError, match="record 3 is broken") as raised:
            feed.get()
        assert raised.value is error


def test_waiting_is_counted_and_only_waiting(started):
    go = threading.Event()

    def draw():
        go.wait()
        return 1

    feed = started(draw)
    threading.Timer(0.2, go.set).start()
    feed.get()
    assert 0.15 < feed.waited_secs < 2
    wait_until(lambda: feed.drawn == infeed.DEPTH + 2)
    before, secs = feed.waited_secs, 1
    time.sleep(secs)  # the compute takes its time
    feed.get()
    assert feed.waited_secs - before < secs / 2


def test_an_interrupted_wait_gives_none_soon(started):
    release = threading.Event()
    feed = started(release.wait)
    start = time.perf_counter()
    assert feed.get(lambda: time.perf_counter() - start > 0.1) is None
    assert time.perf_counter() - start < 1
    release.set()


def test_an_interruption_comes_before_batches_that_are_there(started):
    feed = started(counting(3))
    wait_until(lambda: not feed._thread.is_alive())
    assert feed.get(lambda: True) is None
    assert feed.get() == 1


def test_a_full_infeed_stops_and_one_never_started_can_be_stopped(started):
    feed = started(counting())
    wait_until(lambda: feed.drawn == infeed.DEPTH + 1)
    feed.stop()
    feed.join(5)
    assert not feed._thread.is_alive()
    idle = Infeed(counting())
    idle.stop()
    idle.join(5)


def test_get_and_the_thread_wake_each_other(started, monkeypatch):
    monkeypatch.setattr(infeed, "_POLL_SECS", 20)  # what a wait would take that nobody ends
    start, go = time.perf_counter(), threading.Event()

    def too_long():
        return time.perf_counter() - start > 15

    def draw():
        go.wait()
        raise EndOfInput

    ending = started(draw)
    threading.Timer(0.1, go.set).start()
    with pytest.raises(EndOfInput):
        ending.get(too_long)
    full = started(counting())
    wait_until(lambda: full.drawn == infeed.DEPTH + 1)
    assert [full.get(too_long) for _ in range(20)] == list(range(1, 21))
    assert not too_long()


def test_join_does_not_wait_for_a_draw_that_hangs(started):
    release = threading.Event()
    feed = started(release.wait)
    feed.stop()
    start = time.perf_counter()
    feed.join(0.1)
    assert time.perf_counter() - start < 1
    release.set()


def test_the_first_draw_waits_as_long_as_asked_and_not_after_a_stop(started):
    start = time.perf_counter()
    assert started(counting(), delay_secs=0.2).get() == 1
    assert time.perf_counter() - start >= 0.2
    late = started(counting(), delay_secs=600)
    late.stop()
    late.join(5)
    assert late.drawn == 0
