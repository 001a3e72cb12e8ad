"""What importing TensorFlow loads after `tensorflow_import.prepare`, in processes of their own."""

import gc
import importlib
import os
import subprocess
import sys

import pytest

import bert_estimator
from bert_estimator.system import tensorflow_import
from tests.support import project

ROOT = os.path.dirname(os.path.dirname(bert_estimator.__file__))

KERAS = "[name for name in sys.modules if name.split('.')[0] in ('keras', 'tf_keras')]"


def printed(code):
    env = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout.split()


def test_keras_is_imported_when_it_is_used():
    code = f"""
import sys
from bert_estimator.system import tensorflow_import
tensorflow_import.prepare()
import tensorflow.compat.v1 as tf1
import tensorflow as tf2
assert '_WithoutKeras' not in [type(finder).__name__ for finder in sys.meta_path]
print(len({KERAS}))
print(tf2.keras.layers.Dense(3).units, len({KERAS}) > 100, tf1.keras.layers.Dense(4).units)
"""
    assert printed(code) == ["0", "3", "True", "4"]


@pytest.mark.slow
def test_keras_may_be_the_first_that_imports_tensorflow():
    code = """
from bert_estimator.system import tensorflow_import
tensorflow_import.prepare()
import keras, tensorflow
print(keras.optimizers.SGD().name)
"""
    assert len(printed(code)) == 1


def test_what_an_import_makes_is_not_searched_again():
    code = """
import gc
from bert_estimator.system import tensorflow_import
tensorflow_import.prepare()
before = gc.get_freeze_count()
collections = sum(each['collections'] for each in gc.get_stats())
import tensorflow
print(before, gc.isenabled(), gc.get_freeze_count() > 100_000)
print(sum(each['collections'] for each in gc.get_stats()) - collections < 20)
"""
    assert printed(code) == ["0", "True", "True", "True"]


def failing(first, then):
    """Returns a function that raises an error because of another error."""

    def execute(module):
        try:
            raise first
        except BaseException as error:
            raise then from error

    return execute


@pytest.mark.parametrize(
    ("first", "then", "seen"),
    [
        (KeyboardInterrupt(), ImportError("initialization failed"), KeyboardInterrupt),
        (LookupError(), ImportError("initialization failed"), ImportError),
        (KeyboardInterrupt(), ValueError(), ValueError),
    ],
)
def test_ctrl_c_while_a_c_module_is_imported_stays_ctrl_c(first, then, seen):
    with pytest.raises(seen):
        tensorflow_import._without_eager(failing(first, then), None)
    assert gc.isenabled()


class Prepared(Exception):
    """`tensorflow_import.prepare` was called."""


def commands():
    """Returns the console commands, but for the legacy runner: old scripts import Keras early."""
    scripts = project.read()["scripts"]
    return sorted(set(scripts.values()) - {"bert_estimator.legacy.__main__:command"})


@pytest.mark.parametrize("command", commands())
def test_every_command_prepares_the_import_before_anything_else(command, monkeypatch):
    def prepare():
        raise Prepared

    monkeypatch.setattr(tensorflow_import, "prepare", prepare)
    monkeypatch.setattr(sys, "argv", [command])
    name, function = command.split(":")
    module = importlib.import_module(name)
    monkeypatch.setattr(module, "define_flags", lambda: None, raising=False)  # absl's are global
    with pytest.raises(Prepared):
        getattr(module, function)()


def test_a_broken_tensorflow(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('a library is missing')\n")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from bert_estimator.system import tensorflow_import
tensorflow_import.prepare()
for _ in range(2):
    try:
        import tensorflow
    except ImportError as error:
        print(error, {KERAS})
"""
    assert printed(code) == ["a", "library", "is", "missing", "[]"] * 2
