"""Too little memory: a sentence for every command with TensorFlow, and every kind of error."""

import errno
import os
import resource
import subprocess
import sys

import commands
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import bert_estimator
from bert_estimator import memory_needed
from bert_estimator.command_line import console
from bert_estimator.system import memory

ROOT = os.path.dirname(os.path.dirname(bert_estimator.__file__))
# Texts and vocabularies are made without TensorFlow, and tpu-run-program runs with jax.
QUICK = ("classifier", "legacy")
LOADING = [
    command if command in QUICK else pytest.param(command, marks=pytest.mark.slow)
    for command in commands.CONSOLE
    if command not in ("text", "vocabulary", "run_program", "predict")
]


@pytest.mark.parametrize("command", LOADING)
def test_addresses_that_do_not_suffice_for_tensorflow(inputs, tmp_path, command):
    module, _, function = commands.CONSOLE[command].partition(":")
    arguments = commands.arguments(command, inputs, tmp_path / "output")
    ended = subprocess.run(
        [sys.executable, "-c", f"import {module}; {module}.{function}()", *map(str, arguments)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ROOT},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9)),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.endswith(
        ": this process may use 1.00 GB of address space (ulimit -v), but TensorFlow alone "
        "needs 2 GB. Raise the limit (ulimit -v unlimited)"
    )
    assert not list(tmp_path.glob("output/*"))


def of_tensorflow():
    return tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor[9]\n[[node]]")


ERRORS = {
    "memory": MemoryError,
    "numpy": lambda: np.zeros(1 << 60, np.int8),
    "fork": lambda: OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    "tensorflow": of_tensorflow,
    "xla": lambda: RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."),
    "gpu": lambda: RuntimeError("OOM when allocating tensor on /job:a/replica:0/device:GPU:0"),
    "thread": lambda: RuntimeError("can't start new thread"),
    "library": lambda: ImportError("libx.so.2: failed to map segment from shared object"),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("expected", [(), (ValueError, OSError)])
def test_an_error_of_memory_is_a_sentence(capsys, kind, expected):
    def body():
        raise ERRORS[kind]()

    assert console.exit_code("name", ["name"], body, expected=expected) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("name: error: ")
    whose = "This machine's memory, or the memory that its limits allow (ulimit -a),"
    if kind in ("xla", "gpu"):
        whose = "The memory of a device (of this machine, if it is a CPU)"
    end = f". {whose} is used up. Give the process more memory, or take a smaller batch"
    assert line.endswith(end)


def test_a_limit_of_addresses_counts_as_memory(monkeypatch):
    monkeypatch.setattr(memory, "address_limit", lambda: 3 << 30)
    with pytest.raises(memory_needed.TooLargeError, match=r"needs about 8.0 GiB of this machine's "
                       r"3.0 GiB of memory; do less"):  # fmt: skip
        memory_needed.check(8 << 30, "it", "do less")
