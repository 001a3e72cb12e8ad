"""Tests that the project's own intervals do not follow the wall clock, which somebody may set."""

import ast
import itertools
import os
import pathlib
import re
import time

import pytest
from toy import checkpoint_steps, input_fn, make_estimator

import bert_estimator
from bert_estimator import tpu

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent

JUMPS = [0, -86400, 86400, -1e9]


@pytest.fixture
def restless_clock(monkeypatch):
    """Sets the wall clock by a day or more whenever somebody asks it."""
    jumps, wall = itertools.cycle(JUMPS), time.time
    monkeypatch.setattr(time, "time", lambda: wall() + next(jumps))


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


# The modules that may ask the wall clock, and why.
ALLOWED = {
    "bert_estimator/jobs/fine_tuning/onnx_export.py": "an export is numbered by its second",
    "bert_estimator/jobs/trackers.py": "trackers say when a value was logged",
    "bert_estimator/tpu/verbs/checkpoint_saver.py": "the state file has the time of a checkpoint",
    "bert_estimator/tpu/verbs/checkpoints.py": "it is compared with the times of files",
    "tests/support/bucket.py": "an object store says when an object was written",
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
