"""Tests that the first error wins, and that any other error replaces a cancellation."""

import threading

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.tpu.errors import (
    FirstError,
    NanLossDuringTrainingError,
    NonFiniteWeightsError,
)


def cancelled(message="closed"):
    return tf.errors.CancelledError(None, None, message)


@pytest.mark.parametrize(
    ("recorded", "winner"),
    [
        ([ValueError("a")], 0),
        ([ValueError("a"), KeyError("b")], 0),
        ([cancelled(), ValueError("b")], 1),
        ([ValueError("a"), cancelled()], 0),
        ([cancelled("a"), cancelled("b")], 0),
        ([cancelled("a"), KeyError("b"), ValueError("c"), cancelled("d")], 1),
    ],
)
def test_the_first_error_wins_over_later_ones_and_over_cancellations(recorded, winner):
    first = FirstError()
    for error in recorded:
        first.record(error)
    with pytest.raises(BaseException) as raised:
        first.raise_if_any()
    assert raised.value is recorded[winner]


def test_without_an_error_nothing_is_raised():
    first = FirstError()
    with first.recorded():
        pass
    assert not first
    first.raise_if_any()


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), KeyboardInterrupt()])
def test_a_thread_s_exception_is_kept_and_not_printed(error, capsys):
    first = FirstError()

    def body():
        with first.recorded():
            raise error

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert first
    with pytest.raises(type(error)) as raised:
        first.raise_if_any()
    assert raised.value is error
    assert capsys.readouterr().err == ""


def test_errors_of_training_can_be_caught_without_knowing_this_package():
    assert issubclass(NanLossDuringTrainingError, tf.train.NanLossDuringTrainingError)
    assert issubclass(NonFiniteWeightsError, RuntimeError)
    assert str(NanLossDuringTrainingError("of step 3")) == "of step 3"
