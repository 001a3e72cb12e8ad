"""Log lines and rates, on a clock that the tests set."""

import types

import pytest
import tensorflow.compat.v1 as tf
from toy import scalars

from bert_estimator import tpu
from bert_estimator.system.ticker import format_secs
from bert_estimator.tpu.verbs import progress
from bert_estimator.tpu.verbs.progress import LogListener, Progress, format_record


@pytest.fixture
def clock(monkeypatch):
    """Sets the time: a namespace with `now`, in seconds."""
    clock = types.SimpleNamespace(now=100.0)
    fake = types.SimpleNamespace(perf_counter=lambda: clock.now)
    monkeypatch.setattr(progress, "time", fake)
    return clock


@pytest.fixture
def records():
    return []


@pytest.fixture
def make(clock, records, tmp_path):
    def make(
        every=100, batch_size=32, units=None, stop_step=1000, start=0, secs=None, listeners=()
    ):
        config = tpu.RunConfig(
            model_dir=str(tmp_path), log_step_count_steps=every, log_every_secs=secs
        )
        listeners = [tf.train.SessionRunHook(), *(listeners or [LogListener(records.append)])]
        with tf.Graph().as_default():
            made = Progress(config, batch_size, units, stop_step, listeners)
        made.start(start)
        return made

    return make


def test_a_record_has_rates_waiting_and_time_left(make, clock, records, tmp_path):
    with make(units={"tokens": 128, "words": 100}) as shown:
        clock.now += 20
        shown.after_loop(100, 6.5, {"learning_rate": 0.001}, waited_secs=5.0)
        clock.now += 10
        shown.after_loop(200, 5.5, {"learning_rate": 0.002}, waited_secs=5.5)
    assert records == [
        {
            "step": 100,
            "loss": 6.5,
            "learning_rate": 0.001,
            "steps_per_sec": 5.0,
            "examples_per_sec": 160.0,
            "tokens_per_sec": 20480.0,
            "words_per_sec": 16000.0,
            "input_wait": 0.25,
            "eta_secs": 180.0,  # 900 steps at 5 a second
        },
        {
            "step": 200,
            "loss": 5.5,
            "learning_rate": 0.002,
            "steps_per_sec": 10.0,
            "examples_per_sec": 320.0,
            "tokens_per_sec": 40960.0,
            "words_per_sec": 32000.0,
            "input_wait": 0.05,
            "eta_secs": 120.0,  # 800 steps at 200 in 30 seconds
        },
    ]
    assert scalars(tmp_path, "global_step/sec") == [(100, 5.0), (200, 10.0)]
    assert scalars(tmp_path, "examples/sec") == [(100, 160.0), (200, 320.0)]
    assert scalars(tmp_path, "input_wait") == [(100, 0.25), (200, pytest.approx(0.05))]


@pytest.mark.parametrize(
    ("every", "start", "ends", "logged_at"),
    [
        (100, 0, [50, 100, 150, 200], [100, 200]),
        (100, 0, [30, 60, 90, 120, 150, 210], [120, 210]),
        (100, 0, [350, 400], [350, 400]),
        (100, 130, [160, 190, 220], [220]),  # as before a resume at 130
        (1, 0, [1, 2, 3], [1, 2, 3]),
        (None, 0, [50, 100], []),
    ],
)
def test_lines_land_on_the_first_loop_end_at_or_after_each_multiple(
    make, clock, records, every, start, ends, logged_at
):
    shown = make(every, start=start)
    for step in ends:
        clock.now += 1
        shown.after_loop(step, 1.0, {}, 0.0)
    assert [record["step"] for record in records] == logged_at


def test_the_last_step_is_logged_and_once(make, clock, records):
    shown = make()
    clock.now += 1
    shown.after_loop(7, 1.0, {}, 0.0, last=True)
    shown.after_loop(7, 1.0, {}, 0.0, last=True)
    assert [record["step"] for record in records] == [7]


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3]), (2, [1, 2, 3]), (None, [])])
def test_the_first_step_for_those_who_take_it(make, clock, records, every, expected):
    """It comes once, also if it is due anyway, or the last step."""
    early, late = [], []
    with_first = LogListener(early.append, first_step=True)
    shown = make(every, listeners=[with_first, LogListener(late.append)])
    shown.after_first(1, 9.0, {"rate": 0.5})
    for step in (1, 2, 3):
        clock.now += 1
        shown.after_loop(step, 1.0, {}, 0.0, last=step == 3)
    assert [record["step"] for record in early] == expected
    assert [record["step"] for record in late] == [s for s in expected if s != 1 or every == 1]
    assert early[:1] == [{"step": 1, "loss": 9.0, "rate": 0.5}][: len(expected)]
    alone = []
    shown = make(100, listeners=[LogListener(alone.append, first_step=True)])
    shown.after_first(1, 9.0, {})
    shown.after_loop(1, 9.0, {}, 0.0)
    shown.after_loop(1, 9.0, {}, 0.0, last=True)
    assert alone == [{"step": 1, "loss": 9.0}]


def test_waiting_is_never_more_than_all_the_time(make, clock, records):
    shown = make()
    clock.now += 1
    shown.after_loop(100, 1.0, {}, waited_secs=1.001)
    assert records[0]["input_wait"] == 1.0


def test_without_an_end_there_is_no_time_left_and_without_a_batch_size_no_examples(
    make, clock, records
):
    shown = make(batch_size=None, units={"tokens": 128}, stop_step=None)
    clock.now += 1
    shown.after_loop(100, 1.0, {}, 0.0)
    assert list(records[0]) == ["step", "loss", "steps_per_sec", "input_wait"]


def test_a_record_as_a_line(make, clock, logged):
    shown = make(units={"tokens": 128})
    clock.now += 20
    shown.after_loop(100, 6.54321, {"learning_rate": 0.00123456}, waited_secs=1.0)
    assert logged == [
        (
            "INFO",
            "step 100/1000  loss 6.5432  learning_rate 0.0012346  5.000 steps/s  "
            "160.0 examples/s  20,480 tokens/s  input wait 5.0%  ETA 3:00",
        )
    ]


def test_lines_by_time_leave_the_records_as_they_are(make, clock, records, logged):
    shown = make(secs=10)
    clock.now += 10
    assert shown.line() == "step 1/1000 has taken 0:10 so far, compilation included"
    clock.now += 10
    shown.within_loop(40, 7.0, {"rate": 0.5}, waited_secs=4.0)
    assert shown.line() == (
        "step 40/1000  loss 7.0000  rate 0.5  2.000 steps/s  64.00 examples/s  input wait 20.0%  "
        "ETA 8:00"
    )
    clock.now += 30
    shown.within_loop(100, 6.0, {}, waited_secs=4.0)
    shown.after_loop(100, 6.0, {"rate": 0.25}, waited_secs=4.0)
    assert logged == []  # a step of the records does not make a line
    assert shown.line().startswith("step 100/1000  loss 6.0000  rate 0.25  2.000 steps/s")
    clock.now += 50
    shown.after_loop(200, 5.0, {}, waited_secs=4.0, last=True)
    assert [line.partition("  ETA")[0] for _, line in logged] == [
        "step 200/1000  loss 5.0000  2.000 steps/s  64.00 examples/s  input wait 0.0%"
    ]
    rates = [(record["step"], record["steps_per_sec"]) for record in records]
    assert rates == [(100, 2.0), (200, 2.0)]


@pytest.mark.parametrize("step", [100, 150])
@pytest.mark.parametrize("was_shown", [False, True])
def test_hooks_that_end_a_training_do_not_count_for_its_last_step(
    make, clock, records, logged, step, was_shown
):
    """The step has one line and one record, with the rate of the steps alone."""
    shown = make(secs=10)
    clock.now += 10
    shown.after_loop(step, 1.0, {}, 0.0)
    lines = [shown.line()] if was_shown else []
    clock.now += 90
    shown.after_loop(step, 1.0, {}, 0.0, last=True)
    (line,) = lines + [line for _, line in logged]
    assert line.startswith(f"step {step}/1000  loss 1.0000  {step / 10:.2f} steps/s")
    assert [(record["step"], record["steps_per_sec"]) for record in records] == [(step, step / 10)]


def test_a_line_says_what_takes_long(make, clock):
    shown = make(secs=10, start=4)
    clock.now += 3
    shown.after_loop(6, 7.0, {}, waited_secs=0.0)
    assert shown.line().startswith("step 6/1000  loss 7.0000")
    clock.now += 10
    assert shown.line() == "step 6/1000: the hooks have taken 0:10 so far"
    shown.before_loop()
    clock.now += 20
    assert shown.line() == "step 7/1000 has taken 0:20 so far"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (1.0, "1.0000"),
        (-1.23456, "-1.2346"),
        (9.99999, "10.0000"),
        (12.3456, "12.346"),
        (99999.4, "99,999"),
        (1234567.0, "1,234,567"),
        (0.123456, "0.12346"),
        (1.23456e-07, "1.2346e-07"),
    ],
)
def test_numbers_have_five_significant_digits(value, text):
    assert format_record({"step": 1, "loss": value}) == f"step 1  loss {text}"


@pytest.mark.parametrize(
    ("secs", "text"),
    [(0, "0:00"), (9.4, "0:09"), (59.6, "1:00"), (83, "1:23"), (3599, "59:59"), (3600, "1:00:00"),
     (172799, "47:59:59"), (172800, "2 days"), (864000000, "10,000 days")],
)  # fmt: skip
def test_times(secs, text):
    assert format_secs(secs) == text
