"""Two hosts, one of which ends in a way of its own, and says why: the other one ends, too."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import forked
import pytest
from scripts import PRETRAINING, examples_of_step
from tiny_run import copy_records

LONG_SECS = 240  # Nothing here takes so long.
WORDS = ("Another host of TF_CONFIG has ended", "Terminating process because the JAX distributed")


def run_two(command):
    """Runs a command on two hosts; returns (exit code, stderr, seconds after the first) of each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    cluster = {"chief": [f"localhost:{port}"], "worker": ["localhost:1"]}
    processes, ends = [], [None, None]
    try:
        for task in ("chief", "worker"):
            config = {"cluster": cluster, "task": {"type": task, "index": 0}}
            environment = {"PYTHONPATH": os.pathsep.join(sys.path), "TF_CONFIG": json.dumps(config)}
            process = forked.start(
                [sys.executable, *command],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **environment},
            )
            processes.append(process)
        end = time.monotonic() + LONG_SECS
        while None in ends and time.monotonic() < end:
            for number, process in enumerate(processes):
                if ends[number] is None and process.poll() is not None:
                    ends[number] = time.monotonic()
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
    errors = [process.communicate(timeout=LONG_SECS)[1] for process in processes]
    assert None not in ends, errors
    return [
        (process.returncode, error, ended - min(ends))
        for process, error, ended in zip(processes, errors, ends, strict=True)
    ]


def check_lost(host):
    """Checks that a host ended soon because another one was lost, and said so."""
    code, error, secs = host
    assert code in (1, -signal.SIGABRT), error
    assert any(words in error for words in WORDS), error
    assert secs < 60  # as docs/when_things_break.md promises


# One host does what an argument says. A loop has three steps.
PROGRAM = """
import os, signal, sys, time
import numpy as np
import tensorflow.compat.v1 as tf
import toy
from bert_estimator.tpu.program import devices

folder, host, does = sys.argv[1:]
does = does if f'"type": "{host}"' in os.environ["TF_CONFIG"] else ""

def batch(number):
    if does == "raises" and number == 5:
        raise ValueError("bad data")
    return np.full([toy.BATCH_SIZE], number, np.float32)

class Ends(tf.train.SessionRunHook):
    def after_run(self, context, values):
        if does.isdigit():
            raise SystemExit(int(does))

estimator = toy.make_estimator(
    folder, master="rehearse:2", iterations_per_loop=3, train_batch_size=2 * toy.BATCH_SIZE
)
devices.find("rehearse:2")
if does.startswith("SIG"):
    os.kill(os.getpid(), getattr(signal, does))
    time.sleep(1)
estimator.train(
    toy.ending_at(5) if does == "short" else toy.py_input_fn(batch), steps=100, hooks=[Ends()]
)
"""


@pytest.mark.parametrize(
    ("host", "does", "code"),
    [
        ("chief", "raises", 1),
        pytest.param("worker", "raises", 1, marks=pytest.mark.slow),
        pytest.param("worker", "short", 1, marks=pytest.mark.slow),
        pytest.param("worker", "5", 5, marks=pytest.mark.slow),
        pytest.param("chief", "5", 5, marks=pytest.mark.slow),
        pytest.param("worker", "0", 0, marks=pytest.mark.slow),
        pytest.param("worker", "143", 143, marks=pytest.mark.slow),
        pytest.param("worker", "SIGTERM", -signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("worker", "SIGINT", 130, marks=pytest.mark.slow),
        pytest.param("chief", "SIGINT", 130, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("xla_runtime")
def test_how_a_host_ends(tmp_path, host, does, code):
    ends = run_two(["-c", PROGRAM, str(tmp_path), host, does])
    found, error, _ = ends.pop(host == "worker")
    assert found == code, error
    assert ("bad data" in error) == (does == "raises")
    assert ("input_fn's data ended at step " in error) == (does == "short")
    check_lost(ends[0])


# In run_pretraining.py, a signal comes to the worker when a function has returned.
SCRIPT = """
import os, signal, sys
import run_pretraining
from bert_estimator.command_line import console
from {module} import {function} as function
import {module} as module

def signalled(*args, **kwargs):
    result = function(*args, **kwargs)
    if '"type": "worker"' in os.environ["TF_CONFIG"]:
        os.kill(os.getpid(), signal.{signal})
    return result

module.{function} = signalled
console.leave(run_pretraining.main(["run_pretraining.py", *sys.argv[1:]]))
"""


def flags(data, output_dir, **changes):
    changes = {"tpu_name": "rehearse:2", "do_train": True, "iterations_per_loop": 4, **changes}
    return PRETRAINING.flags(data[PRETRAINING.name], output_dir, **changes)


@pytest.mark.slow
@pytest.mark.usefixtures("xla_runtime")
def test_sigterm_to_one_host_between_training_and_evaluation(data, tmp_path):
    module = "bert_estimator.tpu.verbs.training"
    program = SCRIPT.format(module=module, function="train", signal="SIGTERM")
    given = flags(data, tmp_path, do_eval=True)
    for code, error, secs in run_two(["-c", program, *given]):
        assert code == 143, error
        assert "SIGTERM: finishing the current step, then saving" in error
        assert "Traceback" not in error and not any(words in error for words in WORDS)
        assert secs < 60


@pytest.mark.slow
@pytest.mark.usefixtures("xla_runtime")
def test_ctrl_c_on_one_host_while_records_are_opened(data, tmp_path):
    module = "bert_estimator.jobs.pretraining.pretraining_data"
    program = SCRIPT.format(module=module, function="prepare", signal="SIGINT")
    chief, worker = run_two(["-c", program, *flags(data, tmp_path)])
    assert worker[0] == 130, worker[1]
    check_lost(chief)


def damage(path, number):
    """Changes the first byte of a record in a TFRecord file."""
    content, place = bytearray(path.read_bytes()), 0
    for _ in range(number):
        place += 12 + int.from_bytes(content[place : place + 8], "little") + 4
    content[place + 12] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.usefixtures("xla_runtime")
def test_a_damaged_record_of_one_host_s_in_the_middle_of_a_loop(data, tmp_path):
    path = data[PRETRAINING.name] / "damaged.tfrecord"
    copy_records(path.with_name("train.tfrecord"), path, {})
    number = int(examples_of_step(7, 79)[6])
    damage(path, number)
    hosts = run_two([PRETRAINING.module.__file__, *flags(data, tmp_path, input_file=path)])
    (failed,) = (host for host in hosts if f"record {number} (byte" in host[1])
    (other,) = (host for host in hosts if host is not failed)
    assert failed[0] == 1
    assert failed[1].splitlines()[-1].endswith(" Create the file again.")
    check_lost(other)


@pytest.mark.usefixtures("xla_runtime")
@pytest.mark.parametrize(
    "flag", ["num_tpu_cores", pytest.param("learning_rate", marks=pytest.mark.slow)]
)
def test_hosts_with_other_flags_both_say_so(data, tmp_path, flag):
    """The chief ends a moment later: its end would end the other host before it has spoken."""
    program = """
import os, sys
import run_pretraining
from bert_estimator.command_line import console
*argv, flag = sys.argv[1:]
further = [f"{flag}=4"] if '"type": "chief"' in os.environ["TF_CONFIG"] else []
console.leave(run_pretraining.main(["run_pretraining.py", *argv, *further]))
"""
    for code, error, secs in run_two(["-c", program, *flags(data, tmp_path), f"--{flag}"]):
        assert code == 2, error
        assert f"the hosts of TF_CONFIG have other values of --{flag}" in error
        assert secs < 60
