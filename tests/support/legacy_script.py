"""Runs a script under the legacy runner, or on TensorFlow 1."""

import os
import pathlib
import subprocess
import sys

import forked

ROOT = pathlib.Path(__file__).parents[2]
_RUNNER = (sys.executable, "-m", "bert_estimator.legacy")


def run(folder, text, *arguments, command=_RUNNER, flags=(), process=forked.run, **options):
    """Runs a text as `script.py` of a folder; returns the process, which ended well."""
    script = folder / "script.py"
    script.write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    # TensorFlow sets this variable in this process; it makes TensorFlow 1 behave as TensorFlow 2.
    environment.pop("TF2_BEHAVIOR", None)
    done = process(
        [*command, *flags, *map(str, [script, *arguments])],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        **options,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def run_on_tensorflow_1(folder, text, **options):
    """Does the same on TF115_PYTHON."""
    command = [os.environ["TF115_PYTHON"]]
    return run(folder, text, command=command, process=subprocess.run, **options)
