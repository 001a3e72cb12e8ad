"""The infeed and the outfeed: order, bounds, errors in their place, and when host functions run."""

import functools
import threading
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy import HostLog, wait_until

from bert_estimator.tpu.errors import FirstError
from bert_estimator.tpu.step import feeds as infeed
from bert_estimator.tpu.step.feeds import EndOfInput, HostFunction, Infeed, Outfeed


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


def test_the_producer_is_ahead_by_depth_and_the_one_in_its_hand(started):
    feed = started(counting())
    for consumed in range(4):
        wait_until(lambda consumed=consumed: feed.drawn == consumed + infeed.INFEED_DEPTH + 1)
        time.sleep(0.05)  # time enough to draw on, were it not bounded
        assert feed.drawn == consumed + infeed.INFEED_DEPTH + 1
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
    wait_until(lambda: feed.drawn == infeed.INFEED_DEPTH + 2)
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
    wait_until(lambda: feed.drawn == infeed.INFEED_DEPTH + 1)
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
    wait_until(lambda: full.drawn == infeed.INFEED_DEPTH + 1)
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


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def started_outfeed(graph):
    """Starts an outfeed for a function of one float32 [1] tensor; returns it and its error."""
    feeds = []

    def start(function):
        host = HostFunction("host_call", (function, [tf.zeros([1])]), [], 1)
        error = FirstError()
        session = tf.Session(graph=graph)
        feed = Outfeed(functools.partial(host.run, session), error)
        feed.start()
        feeds.append(feed)
        return feed, error

    yield start
    for feed in feeds:
        feed.stop()
        feed.join(5)
    assert not [feed for feed in feeds if feed._thread.is_alive()]


@pytest.mark.parametrize(
    ("shape", "replicas", "gathered"),
    [
        ([2, 3], 1, [2, 3]),
        ([2, 3], 4, [8, 3]),
        ([1], 8, [8]),
        ([None, 3], 4, [None, 3]),
        ([2, None], 4, [8, None]),
        (None, 4, None),
    ],
)
def test_tensors_arrive_concatenated_over_the_cores(graph, shape, replicas, gathered):
    seen = []
    tensor = tf.placeholder(tf.bfloat16, shape)
    HostFunction("host_call", (lambda t: seen.append(t), [tensor]), [], replicas)
    assert seen[0].shape.rank is None if gathered is None else seen[0].shape == gathered
    assert seen[0].dtype == tf.bfloat16


@pytest.mark.parametrize(
    ("tensors", "name"),
    [(lambda t: [tf.zeros([1]), t], "1"), (lambda t: {"ok": tf.zeros([1]), "lr": t}, "'lr'")],
)
def test_a_scalar_is_refused_by_name(graph, tensors, name):
    rate = tf.constant(0.1, name="rate")
    with pytest.raises(RuntimeError, match=rf"host_call tensor {name} \(rate:0\) is a scalar.*"):
        HostFunction("host_call", (lambda *a, **k: None, tensors(rate)), [], 1)


def test_a_tensor_of_the_step_that_was_not_given_is_refused(graph):
    features = tf.placeholder(tf.float32, [4])
    loss = features * 2

    def function(given):
        with tf.control_dependencies([loss]):
            return tf.identity(given, name="out")

    with pytest.raises(ValueError, match=r"host_call: out:0, .*add the tensor to host_call\[1\]"):
        HostFunction("host_call", (function, [loss]), [features], 1)
    HostFunction("host_call", (lambda given: given + 1, [loss]), [features], 1)


def test_drain_without_values_returns(started_outfeed):
    started_outfeed(HostLog())[0].drain()


def test_drain_waits_no_longer_than_it_is_told_to():
    ends = threading.Event()
    feed = Outfeed(lambda values: ends.wait(100), FirstError())
    feed.start()
    feed.put(1)
    feed.drain(0.01)
    ends.set()
    feed.drain()
    feed.stop()
    feed.join(100)


def test_an_error_ends_it_and_is_raised_by_put_and_drain(started_outfeed):
    log = HostLog(fails_at=3)
    feed, error = started_outfeed(log)
    for step in range(3):
        feed.put([np.array([step], np.float32)])
    wait_until(lambda: error)
    for call in (lambda: feed.put([np.zeros([1])]), feed.drain):
        with pytest.raises(tf.errors.UnknownError, match="the host call failed in its call 3"):
            call()
    assert len(log.values) == 3


def test_a_full_outfeed_makes_the_step_wait_and_an_error_frees_it(started_outfeed):
    go = threading.Event()

    def note(value):
        go.wait()
        raise RuntimeError("failed late")

    feed, _ = started_outfeed(lambda t: tf.py_func(note, [t], []))
    for _ in range(infeed._OUTFEED_DEPTH + 1):  # one is being processed
        feed.put([np.zeros([1], np.float32)])
    threading.Timer(0.15, go.set).start()
    with pytest.raises(tf.errors.UnknownError, match="failed late"):
        feed.put([np.zeros([1], np.float32)])


@pytest.mark.parametrize("waiting", [0, 3, infeed._OUTFEED_DEPTH])
def test_it_stops_after_the_value_that_is_being_processed(started_outfeed, waiting):
    go, processed = threading.Event(), []

    def note(value):
        processed.append(value)
        go.wait()

    feed, _ = started_outfeed(lambda t: tf.py_func(note, [t], []))
    feed.put([np.zeros([1], np.float32)])
    wait_until(lambda: processed)
    for _ in range(waiting):
        feed.put([np.zeros([1], np.float32)])
    feed.stop()
    go.set()
    feed.join(5)
    assert not feed._thread.is_alive()
    assert len(processed) == 1
