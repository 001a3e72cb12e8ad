"""The way from the command line to a step is short enough to be read."""

import pathlib
import sys

import pytest
from scripts import CLASSIFIER, PRETRAINING, SQUAD

import bert_estimator
from bert_estimator.tpu.step.session.session_step import SessionStep

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent
MOST_FRAMES = 14
ABOVE_MAIN = ("command", "console.run")  # of a process; a test calls `main`


def calls_above():
    """Returns the names of the project's functions that wait for the caller, outermost first."""
    names, frame = [], sys._getframe(2)
    while frame is not None and "main" not in names:
        path = pathlib.Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "tests"):
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names[::-1]


@pytest.mark.parametrize("script", [PRETRAINING, CLASSIFIER, SQUAD], ids=lambda script: script.name)
def test_few_calls_lie_between_the_command_and_a_step(script, tmp_path, monkeypatch):
    ways = []

    def run_loop(self, *arguments, run_loop=SessionStep.run_loop):
        ways.append([*calls_above(), "run_loop"])
        return run_loop(self, *arguments)

    monkeypatch.setattr(SessionStep, "run_loop", run_loop)
    script.write_data(tmp_path)
    assert script.main(script.flags(tmp_path, tmp_path / "run", do_train=True)) == 0
    way = [*ABOVE_MAIN, *ways[0]]
    assert way[2] == "main" and len(way) <= MOST_FRAMES, " > ".join(way)
