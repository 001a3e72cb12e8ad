"""Processes that a script starts run as under plain Python, on TensorFlow 1."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import bert_estimator

SLOW = pytest.mark.slow
ROOT = pathlib.Path(bert_estimator.__file__).parent.parent

SCRIPT = """
import json, sys
import concurrent.futures, multiprocessing
import numpy as np
import tensorflow as tf
from tensorflow.contrib import slim

print("top level", __name__, flush=True)

class Part:
    def __init__(self, value):
        self.value = value

def work(part):
    text = repr(np.float32(0.5))
    return [part.value, __name__, tf.estimator.Estimator.__module__, sys.argv[1:], text]

def of_grandchild(part):
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, part).result(timeout=200)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    function = of_grandchild if sys.argv[2:] else work
    # If a child cannot start, this raises an error; a multiprocessing.Pool would start it for ever.
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        print(json.dumps(pool.submit(function, Part(3)).result(timeout=200)))
"""


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        pytest.param(["{folder}/script.py"], ["spawn"], id="spawn"),
        pytest.param(["{folder}/script.py"], ["forkserver"], id="forkserver", marks=SLOW),
        pytest.param(["{folder}/script.py"], ["spawn", "again"], id="grandchild", marks=SLOW),
        pytest.param(["-m", "package.script"], ["spawn"], id="module", marks=SLOW),
    ],
)
def test_a_child_runs_the_top_level_on_tensorflow_1(tmp_path, command, flags):
    (tmp_path / "package").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "package" / "part.py").write_text("")
    (tmp_path / "package" / "script.py").write_text("from . import part\n" + SCRIPT)
    command = [part.format(folder=tmp_path) for part in command]
    done = subprocess.run(
        [sys.executable, "-m", "bert_estimator.legacy", *command, *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    *names, result = done.stdout.splitlines()
    assert names == ["top level __main__", *["top level __mp_main__"] * len(flags)]
    assert json.loads(result) == [
        3,
        "__mp_main__",
        "bert_estimator.tpu.base_estimator",
        flags,
        "0.5",
    ]
