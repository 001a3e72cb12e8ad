"""Tests that intervals do not follow the wall clock, which somebody may set."""

import ast
import importlib
import io
import itertools
import os
import pathlib
import re
import time

import pytest
import tensorflow.compat.v1 as tf
from toy import checkpoint_steps, input_fn, make_estimator, make_model_fn

import bert_estimator
from bert_estimator import tpu
from bert_estimator.system import steady_clock, ticker
from bert_estimator.tpu import early_stopping

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent

SECS_OF_A_STEP, STEPS, SET_AT = 100, 12, 5
JUMPS = [0, -86400, 86400, -1e9]


class Clocks:
    """Replaces the clocks of this process: the wall clock may be set, the other one only runs."""

    def __init__(self, monkeypatch):
        self.passed, self.ahead = 0, 0
        start, wall = time.monotonic(), time.time()
        monkeypatch.setattr(time, "monotonic", lambda: start + self.passed)
        monkeypatch.setattr(time, "time", lambda: wall + self.passed + self.ahead)


class Visits(tf.train.SessionRunHook):
    """Lets time pass after each step, and sets the wall clock after one of them."""

    def __init__(self, clocks, jump):
        self.clocks, self.jump, self.count = clocks, jump, 0

    def after_run(self, run_context, run_values):
        self.count += 1
        self.clocks.passed += SECS_OF_A_STEP
        if self.count == SET_AT:
            self.clocks.ahead = self.jump


class Calls(tf.train.SessionRunHook):
    """Lists the steps at which a timer of a script's own triggers."""

    def __init__(self):
        self.steps, self.timer = [], tf.train.SecondOrStepTimer(every_secs=300)

    def after_run(self, run_context, run_values):
        step = int(run_context.session.run(tf.train.get_global_step()))
        if self.timer.should_trigger_for_step(step):
            self.steps.append((step, self.timer.update_last_triggered_step(step)[0]))


def outcome(folder, clocks, jump, make_hooks, **config):
    """Returns the steps of checkpoints, and what the hooks say, of a training with a jump."""
    hooks, said = make_hooks(folder)
    estimator = make_estimator(folder, make_model_fn(), iterations_per_loop=1, **config)
    estimator.train(input_fn, max_steps=STEPS, hooks=[Visits(clocks, jump), *hooks])
    return checkpoint_steps(folder), said


def own_timer(folder):
    hook = Calls()
    return [hook], hook.steps


def logging_hook(folder):
    said = []

    def logged(values):
        said.append(dict(values))
        return ""

    return [tf.train.LoggingTensorHook(["toy_loss"], every_n_secs=300, formatter=logged)], said


def callers_saver(folder):
    return [tf.train.CheckpointSaverHook(str(folder), save_secs=250)], []


def early_stop(folder):
    said = []

    def stop():
        said.append(len(said))
        return False

    estimator = make_estimator(folder)
    hook = early_stopping.make_early_stopping_hook(estimator, stop, run_every_secs=300)
    return [hook], said


NO_HOOKS = (lambda folder: ([], []), {"save_checkpoints_secs": 250, "keep_checkpoint_max": 0})
INTERVALS = {
    "checkpoints": NO_HOOKS,
    "checkpoints kept every few hours": (
        NO_HOOKS[0],
        {
            "save_checkpoints_steps": 1,
            "keep_checkpoint_max": 2,
            "keep_checkpoint_every_n_hours": 300 / 3600,
        },
    ),
    "a script's own timer": (own_timer, {}),
    "a script's logging hook": (logging_hook, {"use_tpu": False}),
    "a script's saver hook": (callers_saver, {}),
    "early stopping": (early_stop, {}),
}


@pytest.mark.parametrize(("make_hooks", "config"), INTERVALS.values(), ids=INTERVALS)
def test_intervals_do_not_depend_on_the_wall_clock(tmp_path, monkeypatch, make_hooks, config):
    outcomes = []
    for jump in JUMPS:
        with monkeypatch.context() as patched:
            clocks = Clocks(patched)
            folder = tmp_path / str(jump)
            outcomes.append(outcome(folder, clocks, jump, make_hooks, **config))
    assert outcomes == [outcomes[0]] * len(JUMPS)
    steps, said = outcomes[0]
    assert len(said) > 1 or 2 < len(steps) < STEPS


@pytest.fixture
def restless_clock(monkeypatch):
    """Sets the wall clock by a day or more whenever somebody asks it."""
    jumps, wall = itertools.cycle(JUMPS), time.time
    monkeypatch.setattr(time, "time", lambda: wall() + next(jumps))


def silent_work(monkeypatch):
    monkeypatch.setattr(ticker, "LONGEST_SILENCE_SECS", 0.2)
    monkeypatch.setattr(ticker, "_LOOK_EVERY_SECS", 0.02)
    lines = []
    with ticker.never_silent("Starting", lines.append):
        while len(lines) < 2:
            time.sleep(0.01)
    assert lines == ["Starting: 0:00 so far."] * 2
    return 0.4


def long_work(monkeypatch):
    monkeypatch.setattr(ticker, "LONGEST_SILENCE_SECS", 0.2)
    out = io.StringIO()
    work = ticker.Progress("Reading", 10**6, "B", out)
    while out.getvalue().count("\n") < 2:
        time.sleep(0.01)
        work.add(1)
    assert re.fullmatch(r"(Reading: 0 % of 1 MB, \d+ B/s, [\d:]+ left\n){2}", out.getvalue())
    return 0.4


def ticking(monkeypatch):
    lines = []
    with ticker.every(0.2, ticker.so_far("Building"), lines.append):
        while len(lines) < 2:
            time.sleep(0.01)
    assert lines == ["Building: 0:00 so far."] * 2
    return 0.4


WAITS = [silent_work, long_work, ticking]


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.usefixtures("restless_clock")
def test_waits_do_not_depend_on_the_wall_clock(monkeypatch, wait):
    start = time.monotonic()
    least_secs = wait(monkeypatch)
    assert least_secs <= time.monotonic() - start < 60


@pytest.mark.usefixtures("restless_clock")
def test_rates_do_not_depend_on_the_wall_clock(tmp_path):
    records = []
    make_estimator(tmp_path, log_step_count_steps=2).train(
        input_fn, steps=8, hooks=[tpu.LogListener(records.append)]
    )
    rates = [record[name] for record in records for name in record if name.endswith("_per_sec")]
    assert rates and all(0 < rate < 1e6 for rate in rates), records


def test_checkpoints_of_a_clock_set_back_since_are_deleted_in_their_turn(tmp_path):
    config = {
        "save_checkpoints_steps": 2,
        "keep_checkpoint_max": 1,
        "keep_checkpoint_every_n_hours": 1,
    }
    make_estimator(tmp_path, **config).train(input_fn, steps=2)
    to_come = time.time() + 86400
    os.utime(tmp_path / "model.ckpt-2.index", (to_come, to_come))
    make_estimator(tmp_path, **config).train(input_fn, steps=4)
    assert checkpoint_steps(tmp_path) == [6]


@pytest.mark.parametrize("jump", JUMPS)
def test_evaluations_while_training_wait_by_the_steady_clock(tmp_path, monkeypatch, jump):
    evaluated = []

    def evaluation_input(params):
        evaluated.append(clocks.passed)
        return input_fn(params)

    clocks = Clocks(monkeypatch)
    hooks = [Visits(clocks, jump)]
    tpu.train_and_evaluate(
        make_estimator(tmp_path, save_checkpoints_steps=2, iterations_per_loop=1),
        tpu.TrainSpec(input_fn, max_steps=STEPS, hooks=hooks),
        tpu.EvalSpec(evaluation_input, steps=1, throttle_secs=500),
    )
    assert evaluated == [100, 700, 1200]  # seconds: after the steps 2, 8 and 12


def test_tensorflow_s_modules_have_the_clock(tmp_path):
    make_estimator(tmp_path).train(input_fn, steps=1)
    for name in steady_clock._MODULES:
        module = importlib.import_module(name)
        assert module.time.time is steady_clock.now
        assert module.time.sleep is time.sleep


# The modules that may ask the wall clock, and why.
ALLOWED = {
    "bert_estimator/system/steady_clock.py": "the second at which the steady clock starts",
    "tests/support/bucket.py": "an object store says when an object was written",
    "tests/torture/process.py": "it sets the wall clock of a run at random",
}


def asks_the_wall_clock(tree):
    """Returns whether a module uses `time.time`, under any name, or `datetime.now`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.add(f"{ast.unparse(node.value)}.{node.attr}")
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return any(
        re.search(r"^time\.time(_ns)?$|\b(date|datetime)\.(now|utcnow|today)$", n) for n in names
    )


def test_the_wall_clock_is_found():
    for text in ("import time\ntime.time()", "from time import time as t", "datetime.now()"):
        assert asks_the_wall_clock(ast.parse(text))
    assert not asks_the_wall_clock(ast.parse("time.monotonic(); time.strftime('%Y')"))


def test_nothing_else_asks_the_wall_clock():
    folders = ("bert_estimator", "input_pipelines", "benchmarks", "tests/support", "tests/torture")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    paths += ROOT.glob("*.py")
    asking = {
        path.relative_to(ROOT).as_posix()
        for path in paths
        if asks_the_wall_clock(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert asking == set(ALLOWED)
