"""What the queues of an input_fn and the coordinator of hooks say is heeded by each verb."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy import ending_at, input_fn, make_estimator, make_model_fn

from bert_estimator import tpu

MESSAGE = "record 6 is damaged"


def queued_input_fn(last=None, fails=True):
    """Returns an input_fn with queues of records to `last`; record 6 may be damaged."""

    def read(number):
        if fails and number == 6:
            raise ValueError(MESSAGE)
        return np.float32(number)

    def queued(params):
        number = tf.train.range_input_producer(
            1000 if last is None else last + 1,
            num_epochs=None if last is None else 1,
            shuffle=False,
        ).dequeue()
        record = tf.ensure_shape(tf.py_func(read, [number], tf.float32), [])
        return {"x": tf.train.batch([record], 2)}

    return queued


def predicting(features, loss):
    return {"predictions": {"x": features["x"]}}


def make_local(folder):
    return make_estimator(folder, make_model_fn(predicting), use_tpu=False, predict_batch_size=4)


def test_an_error_of_a_queue_is_not_the_end_of_the_data(tmp_path):
    estimator = make_local(tmp_path)
    for verb in (
        lambda: estimator.train(queued_input_fn(), steps=50),
        lambda: estimator.evaluate(queued_input_fn(), steps=50),
        lambda: list(estimator.predict(queued_input_fn())),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=MESSAGE):
            verb()


def test_by_tpu_rules_too(tmp_path):
    estimator = make_estimator(tmp_path, train_batch_size=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=MESSAGE):
        estimator.train(queued_input_fn(), steps=50)


def test_queues_that_end_are_the_end_of_the_data(tmp_path):
    estimator = make_local(tmp_path)
    estimator.train(queued_input_fn(last=7, fails=False), max_steps=50)
    assert estimator.global_step() == 4
    assert estimator.evaluate(queued_input_fn(last=7, fails=False))["loss"] == 3.5
    rows = [float(row["x"]) for row in estimator.predict(queued_input_fn(last=7, fails=False))]
    assert rows == list(range(8))


class AsksCoordinator(tf.train.SessionRunHook):
    """Asks the coordinator to stop, in its second visit."""

    def __init__(self, error=None):
        self._error, self._visits = error, 0

    def after_create_session(self, session, coord):
        self._coordinator = coord

    def after_run(self, run_context, run_values):
        self._visits += 1
        if self._visits == 2:
            try:
                if self._error:
                    raise self._error
                self._coordinator.request_stop()
            except LookupError as error:
                self._coordinator.request_stop(error)


QUEUE_ENDED = tf.errors.OutOfRangeError(None, None, "the hook's own queue\nand more")


class Ends(tf.train.SessionRunHook):
    """Raises an error at a visit, as a hook does that feeds what a generator gives."""

    def __init__(self, visit, error=StopIteration):
        visits = iter(range(2))

        def called(*args):
            if next(visits, None) is None:
                raise error

        setattr(self, visit, called)
        self.ended = False

    def end(self, session):
        self.ended = True


def test_hooks_may_ask_the_coordinator_to_stop(tmp_path, rules):
    estimator = make_estimator(tmp_path, iterations_per_loop=1, **rules)
    estimator.train(input_fn, [AsksCoordinator()], max_steps=5)
    assert estimator.global_step() == 2
    with pytest.raises(LookupError, match="the hook's reason"):
        estimator.train(input_fn, [AsksCoordinator(LookupError("the hook's reason"))], max_steps=9)


@pytest.mark.parametrize("error", [StopIteration, QUEUE_ENDED], ids=["own", "queue"])
@pytest.mark.parametrize(("visit", "reached"), [("before_run", 2), ("after_run", 3)])
def test_a_hook_may_end_training_by_an_error(tmp_path, rules, visit, reached, error, warned):
    estimator = make_estimator(tmp_path, iterations_per_loop=1, **rules)
    hook = Ends(visit, error)
    estimator.train(input_fn, [hook], max_steps=5)
    assert estimator.global_step() == reached
    assert hook.ended
    said = [text for text in warned() if "ends the run" in text]
    expected = "Ends ends the run, by an OutOfRangeError: the hook's own queue"
    assert said == ([expected] if error is QUEUE_ENDED else [])


@pytest.mark.parametrize("error", [StopIteration, QUEUE_ENDED], ids=["own", "queue"])
def test_a_hook_may_end_the_other_verbs_by_an_error(tmp_path, error):
    estimator = make_local(tmp_path)
    assert estimator.evaluate(input_fn, 5, hooks=[Ends("before_run", error)])["loss"] == 1.5
    rows = list(estimator.predict(input_fn, hooks=[Ends("before_run", error)]))
    assert [float(row["x"]) for row in rows] == [1, 1, 1, 1, 2, 2, 2, 2]


def test_an_evaluation_in_a_hook_whose_data_ends_is_an_error(tmp_path):
    estimator = make_estimator(tmp_path)

    class Evaluates(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            estimator.evaluate(ending_at(8), steps=9)

    with pytest.raises(tpu.DataEndedError, match="input_fn's data ended before the 9 batches"):
        estimator.train(input_fn, [Evaluates()], max_steps=5)


def test_an_error_without_a_text_ends_training(tmp_path, warned):
    error = tf.errors.OutOfRangeError(None, None, None)
    make_local(tmp_path).train(input_fn, [Ends("after_run", error)], max_steps=5)
    assert "Ends ends the run, by an OutOfRangeError: " in warned()


def test_other_errors_of_hooks_stay_errors(tmp_path, rules):
    estimator = make_estimator(tmp_path, iterations_per_loop=1, **rules)
    error = tf.errors.AbortedError(None, None, "the hook's own queue")
    with pytest.raises(tf.errors.AbortedError, match="the hook's own queue"):
        estimator.train(input_fn, [Ends("before_run", error)], max_steps=5)
