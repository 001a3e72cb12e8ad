"""Tests how commands import TensorFlow, and what they leave out of stderr."""

import gc
import importlib
import os
import signal
import subprocess
import sys

import pytest

import bert_estimator
from bert_estimator.system import tensorflow_import
from tests.support import project

ROOT = os.path.dirname(os.path.dirname(bert_estimator.__file__))

KERAS = "[name for name in sys.modules if name.split('.')[0] in ('keras', 'tf_keras')]"


def run(program, *arguments, **environment):
    variables = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env={**variables, "PYTHONPATH": ROOT, **environment},
        timeout=300,
    )


def printed(code):
    result = run(code)
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


# Messages of TensorFlow 2.16 to 2.21 that tell a user nothing.
CHATTER = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795351188.666281   21452 port.cc:153] oneDNN custom operations are on. You may",
    "W0000 00:00:1795351188.666281   21452 cpu_allocator.cc:83] Allocation exceeds 10%",
    "E0000 00:00:1795351197.773398   21452 cuda_platform.cc:52] failed call to cuInit: INTERNAL",
    "2026-11-22 12:40:27.619208: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:479] "
    "Unable to register cuFFT factory: Attempting to register factory for plugin cuFFT",
    "2026-11-22 12:40:27.619208: I tensorflow/core/platform/cpu_feature_guard.cc:182] This",
    "To enable the following instructions: AVX2 AVX512F, rebuild TensorFlow.",
]
NEWS = [
    "F0000 00:00:1795351197.773398   21452 array.cc:1] Check failed: rows > 0",
    "E0000 00:00:1795351197.773398   21452 bfc_allocator.cc:9] Out of memory",
    "Traceback (most recent call last):",
    "I think, therefore I am not a log line",
    "",
]


WRITES = """
import os, sys
from bert_estimator.system import tensorflow_import
with tensorflow_import.quiet():
    os.write(2, sys.argv[1].encode())
"""


@pytest.mark.parametrize("line", CHATTER)
def test_chatter_is_left_out(line):
    ended = run(WRITES, f"before\n{line}\nafter\n{line}")
    assert (ended.stderr, ended.returncode) == ("before\nafter\n", 0)


def test_all_other_lines_arrive_whole():
    text = "\n".join(NEWS * 300)
    assert run(WRITES, text).stderr == text


def test_what_is_written_before_a_crash_arrives():
    ended = run(WRITES + "    os.write(2, b'Check failed'); os.abort()", "last words\n")
    assert ended.stderr.splitlines() == ["last words", "Check failed"]
    assert ended.returncode == -signal.SIGABRT


def test_after_the_import_all_lines_arrive_in_order_and_no_process_is_left():
    ended = run(
        WRITES + "print('from Python', file=sys.stderr, flush=True)\n"
        f"os.write(2, {CHATTER[1].encode() + bytes([10])!r})\n"
        "try:\n"
        "    os.waitpid(-1, os.WNOHANG)\n"
        "except ChildProcessError:\n"
        "    sys.exit(3)",
        "first\n",
    )
    assert ended.stderr.splitlines() == ["first", "from Python", CHATTER[1]]
    assert ended.returncode == 3


def test_a_signal_to_all_of_a_terminal_s_processes_ends_the_filter_last():
    # A shell's background jobs are born with SIGINT ignored, and so may these tests be.
    heeds = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program = heeds + WRITES + "    os.killpg(0, 2)\nos.write(2, b'never')"
    ended = subprocess.run(
        [sys.executable, "-c", program, "before\n"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT, "TF_CPP_MIN_LOG_LEVEL": "2"},
        start_new_session=True,
        timeout=300,
    )
    assert ended.stderr.startswith("before\n")
    assert "KeyboardInterrupt" in ended.stderr


@pytest.mark.parametrize("level", ["0", "1"])
def test_who_asks_for_the_messages_gets_them(level):
    assert run(WRITES, CHATTER[1], TF_CPP_MIN_LOG_LEVEL=level).stderr == CHATTER[1]


def test_a_system_without_grep_gets_all_lines():
    assert run(WRITES, CHATTER[1], PATH="/nowhere").stderr == CHATTER[1]


def test_without_stderr_there_is_nothing_to_do():
    program = WRITES.replace("os.write(2, ", "print(")
    ended = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -c "$0" x 2>&-; echo $?', program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT},
        timeout=300,
    )
    assert ended.stdout == "b'x'\n0\n"


@pytest.mark.parametrize("command", [*commands(), "bert_estimator.legacy.__main__:command"])
def test_help_does_without_tensorflow(command):
    name, function = command.split(":")
    code = f"""
import importlib, io, sys
sys.argv, sys.stdout = ["bert-command", "--help"], io.StringIO()
try:
    importlib.import_module({name!r}).{function}()
except SystemExit as end:
    code = end.code
print(code, len(sys.stdout.getvalue()) > 100, "tensorflow" in sys.modules, file=sys.__stdout__)
"""
    assert printed(code) == ["0", "True", "False"]
