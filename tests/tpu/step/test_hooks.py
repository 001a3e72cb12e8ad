"""The driver calls hooks as tf.train.MonitoredSession does, around loops of steps."""

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.tpu.step.feeds import EndOfInput
from bert_estimator.tpu.step.hooks import HookDriver


class Hook(tf.train.SessionRunHook):
    """Asks for `request`, notes the calls in a log it shares with others."""

    def __init__(self, name="hook", log=None, request=None, stop_at=None):
        self.name, self.log, self.request = name, [] if log is None else log, request
        self.stop_at = stop_at

    def begin(self):
        self.log.append(f"{self.name}.begin")

    def after_create_session(self, session, coord):
        self.log.append(f"{self.name}.after_create_session({session}, {type(coord).__name__})")

    def before_run(self, run_context):
        self.log.append(f"{self.name}.before_run({run_context.original_args.fetches})")
        if self.stop_at == "before_run":
            run_context.request_stop()
        return self.request

    def after_run(self, run_context, run_values):
        self.values = run_values
        self.log.append(f"{self.name}.after_run({run_values.results})")
        if self.stop_at == "after_run":
            run_context.request_stop()

    def end(self, session):
        self.log.append(f"{self.name}.end({session})")


def fetch(value):
    return tf.train.SessionRunArgs(value)


def test_calls_in_order_with_the_values_fetched_at_the_end():
    log = []
    hooks = [Hook("a", log, fetch("x")), Hook("b", log), Hook("c", log, fetch({"y": 1}))]
    driver = HookDriver(hooks)
    driver.begin()
    driver.after_create_session("session", tf.train.Coordinator())
    assert not driver.stop_requested

    def run_loop(hook_run):
        log.append("loop")
        assert hook_run.fetches == {hooks[0]: "x", hooks[2]: {"y": 1}}
        return "result", {hooks[0]: "X", hooks[2]: {"y": 2}}

    assert driver.around("session", ["train_op"], run_loop) == "result"
    driver.end("session")
    assert log == [
        *[f"{n}.begin" for n in "abc"],
        *[f"{n}.after_create_session(session, Coordinator)" for n in "abc"],
        *[f"{n}.before_run(['train_op'])" for n in "abc"],
        "loop",
        *["a.after_run(X)", "b.after_run(None)", "c.after_run({'y': 2})"],
        *[f"{n}.end(session)" for n in "abc"],
    ]


@pytest.mark.parametrize("stop_at", [None, "before_run", "after_run"])
def test_a_stop_is_asked_for_by_any_hook_for_good(stop_at):
    driver = HookDriver([Hook(), Hook(stop_at=stop_at), Hook()])
    for _ in range(2):
        driver.around(None, [], lambda hook_run: (None, {}))
        assert driver.stop_requested == (stop_at is not None)


def test_feeds_and_options_of_all_hooks_are_merged():
    with tf.Graph().as_default():
        a, b = tf.placeholder(tf.float32), tf.placeholder(tf.float32)
        options = [tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunOptions()]
        options[1].timeout_in_ms = 5000
        args = tf.train.SessionRunArgs
        hooks = [
            Hook(request=args(None, {a: 1}, options[0])),
            Hook(request=args(None, {b: 2}, options[1])),
            Hook(),
        ]
        seen = []
        HookDriver(hooks).around(None, [], lambda hook_run: (seen.append(hook_run), {}))
        (hook_run,) = seen
        assert hook_run.fetches == {}
        assert hook_run.feed_dict == {a: 1, b: 2}
        assert hook_run.options.trace_level == tf.RunOptions.FULL_TRACE
        assert hook_run.options.timeout_in_ms == 5000
        assert hooks[2].values.run_metadata is hook_run.run_metadata
        assert options[0].timeout_in_ms == 0  # the hook's own is left alone


def test_without_options_there_is_no_trace():
    hook = Hook(request=fetch("x"))
    HookDriver([hook]).around(None, [], lambda hook_run: (None, {hook: 1}))
    assert (hook.values.options, hook.values.run_metadata) == (None, None)


def test_two_hooks_that_feed_one_tensor_are_refused():
    with tf.Graph().as_default():
        rate = tf.placeholder(tf.float32, name="rate")
        hooks = [Hook(request=tf.train.SessionRunArgs(None, {rate: n})) for n in range(2)]
        with pytest.raises(RuntimeError, match="Two hooks feed the same tensor rate:0"):
            HookDriver(hooks).around(None, [], lambda hook_run: (None, {}))


def test_a_hook_may_ask_for_no_step_at_all():
    class Stops(tf.train.SessionRunHook):
        def after_create_session(self, session, coord):
            coord.request_stop()

    driver = HookDriver([Stops()])
    driver.after_create_session("session", tf.train.Coordinator())
    assert driver.stop_requested


class Ends(tf.train.SessionRunHook):
    def before_run(self, run_context):
        raise StopIteration


@pytest.mark.parametrize("alone", [True, False])
def test_only_a_host_on_its_own_can_leave_a_loop_out(alone):
    last = Hook()
    driver = HookDriver([Ends(), last], alone=alone)
    result = driver.around(None, [], lambda hook_run: ("result", {}))
    assert driver.stop_requested
    assert result == (None if alone else "result")
    assert last.log == ([] if alone else ["hook.before_run([])", "hook.after_run(None)"])


def failed_coordinator():
    coordinator = tf.train.Coordinator()
    try:
        raise LookupError("a thread's error")
    except LookupError as error:
        coordinator.request_stop(error)
    return coordinator


def test_an_error_that_the_coordinator_was_given_is_raised():
    driver = HookDriver([])
    with pytest.raises(LookupError, match="a thread's error"):
        driver.after_create_session("session", failed_coordinator())
    with pytest.raises(LookupError, match="a thread's error"):
        driver.around(None, [], lambda hook_run: (None, {}))


def test_it_comes_before_the_end_of_the_input():
    def run_loop(hook_run):
        raise EndOfInput

    with pytest.raises(EndOfInput):
        HookDriver([]).around(None, [], run_loop)
    driver = HookDriver([])
    driver._coordinator = failed_coordinator()
    with pytest.raises(LookupError, match="a thread's error"):
        driver.around(None, [], run_loop)
