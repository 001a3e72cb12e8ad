"""Tests several processes that train one model: their roles, and that they equal one process."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import types

import forked
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator.cluster import hosts
from bert_estimator.tpu.program import devices
from bert_estimator.tpu.step.xla import step_graph
from bert_estimator.tpu.verbs.interrupts import Interrupts

OPTIMIZES_PROGRAMS = True  # see `around_tests`

TWO = {"chief": ["a:1"], "worker": ["b:1"]}

# What a host says if another one is lost: by itself, if an exchange fails, or by jax's heartbeat.
LOST = "LostHostError: Another host of TF_CONFIG has ended, or cannot be reached; its own output"
JAX_S_WORDS = "Terminating process because the JAX distributed service detected fatal errors."


def test_alone_there_is_nobody_to_wait_for():
    assert hosts.gather(3).tolist() == [3]
    hosts.agree_on("the step", 3)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, "TF_CONFIG names 2 hosts, but there are no cores that they could share"),
        ({"use_tpu": False}, "TF_CONFIG names 2 hosts, but there are no cores"),
        ({"master": "rehearse:3"}, "3 cores cannot be shared evenly by the 2 hosts of TF_CONFIG"),
    ],
)
def test_what_several_hosts_cannot_do(request, tmp_path, monkeypatch, keywords, message):
    if "master" in keywords:
        request.getfixturevalue("xla_runtime")
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": TWO, "task": task}))
    with pytest.raises(RuntimeError, match=message):
        toy.make_estimator(tmp_path, **keywords).train(toy.input_fn, steps=1)


@pytest.fixture
def chief_of_two(monkeypatch):
    """Makes this process the chief of two hosts, with as many stand-ins for cores as named."""
    task = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": TWO, "task": task}))
    core = types.SimpleNamespace(platform="cpu")
    cores = lambda master, secs: [core] * int(master.partition(":")[2])  # noqa: E731
    monkeypatch.setattr(devices, "find", cores)
    monkeypatch.setattr(step_graph, "check_tensorflow", lambda: None)


@pytest.mark.parametrize(("cores", "replicas"), [(2, 1), (6, 3)])
@pytest.mark.usefixtures("chief_of_two")
def test_a_replica_s_cores_are_on_one_host(tmp_path, cores, replicas):
    estimator = toy.make_estimator(
        tmp_path, master=f"rehearse:{cores}", num_cores_per_replica=2, sharding=[("w", 0)],
        train_batch_size=6,
    )  # fmt: skip
    message = (
        rf"master='rehearse:{cores}': {replicas} replicas of 2 core\(s\) cannot be shared evenly "
        "by the 2 hosts of TF_CONFIG. num_cores_per_replica must divide"
    )
    with pytest.raises(ValueError, match=message):
        estimator.train(toy.input_fn, steps=1)


@pytest.mark.usefixtures("chief_of_two")
def test_a_chief_that_trains_with_others_does_not_evaluate_meanwhile(tmp_path):
    estimator = toy.make_estimator(tmp_path, master="rehearse:2")
    message = "TF_CONFIG names 2 hosts, and one of them evaluates during the.*Evaluate after train"
    with Interrupts("training"), pytest.raises(RuntimeError, match=message):
        estimator.evaluate(toy.input_fn, steps=1)


# This program runs on the hosts in TF_CONFIG. The rows of batch k are 8k, ..., 8k + 7.
PROGRAM = """
import sys
import tensorflow.compat.v1 as tf
import toy
from bert_estimator import tpu

folder, steps, cores = sys.argv[1], int(sys.argv[2]), sys.argv[3]
log = toy.HostLog()

def input_fn(params):
    context, size = params["context"], params["batch_size"]
    assert size * context.num_hosts == 8
    rows = tf.range(size, dtype=tf.int64) + size * context.current_host
    data = tf.data.Dataset.range(context.global_step, 10**6)
    return data.map(lambda k: {"x": tf.cast(8 * k + rows, tf.float32)})

def model_fn(features, mode, params):
    x = features["x"]
    weight = tf.get_variable("w", [4], initializer=tf.ones_initializer())
    y = tf.reduce_sum(x[:, None] / 50.0 * tf.constant([1.0, 0.5, -1.0, 2.0]) * weight, 1)
    loss = tf.reduce_mean(tf.square(y - 2.0 * x))
    if mode == tpu.ModeKeys.EVAL:
        metrics = (lambda x: {"x": tf.metrics.mean(x)}, [x])
        return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
    optimizer = tpu.CrossShardOptimizer(tf.train.AdamOptimizer(0.1))
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, host_call=(log, [x]))

estimator = toy.make_estimator(
    folder, model_fn, master="rehearse:" + cores, iterations_per_loop=3, save_checkpoints_steps=3,
    train_batch_size=8, eval_batch_size=8, params={},
)
class Saves(tf.train.CheckpointSaverListener):
    steps = []

    def after_save(self, session, global_step_value):
        self.steps.append(int(global_step_value))

losses = []
listener = tpu.LogListener(lambda record: losses.append(record["loss"]))
estimator.train(input_fn, max_steps=steps, hooks=[listener], saving_listeners=[Saves()])
print("its host call:", [values[0] for values in log.values])
print("its losses:", losses)
print("its saves:", Saves.steps)
print("its metrics:", estimator.evaluate(input_fn, steps=2))
"""


def start(program, *arguments, cluster=None, index=0, errors=None):
    """Starts a program; with a cluster, as its chief (0) or its worker (1)."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if cluster:
        task = {"type": "worker" if index else "chief", "index": 0}
        environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    return forked.start(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=errors or subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def new_cluster():
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        port = listening.getsockname()[1]
    return {"chief": [f"localhost:{port}"], "worker": ["localhost:1"]}


def start_two(folder, steps, cores=4, program=PROGRAM, errors=(None, None)):
    cluster = new_cluster()
    return [
        start(program, folder, steps, cores, cluster=cluster, index=index, errors=errors[index])
        for index in (0, 1)
    ]


def output_of(process):
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    # Gloo, which sums between the processes, writes to the output too.
    return dict(line.split(": ", 1) for line in out.splitlines() if line.startswith("its "))


# Two hosts sum eight gradients in another order than one host, so the last bit may differ.
@pytest.mark.parametrize(
    ("cores", "tolerance"), [(4, 0), pytest.param(8, 1e-6, marks=pytest.mark.slow)]
)
@pytest.mark.usefixtures("xla_runtime")
def test_two_hosts_equal_one(tmp_path, cores, tolerance):
    alone = output_of(start(PROGRAM, tmp_path / "alone", 8, cores))
    chief, other = map(output_of, start_two(tmp_path / "two", 8, cores))
    assert chief == alone  # the losses, the metrics, and what the host call got
    assert len(alone) == 4
    assert (alone["its saves"], other["its saves"]) == ("[0, 3, 6, 8]", "[]")
    for name in ("its losses", "its metrics"):
        assert other[name] == alone[name]
    assert other["its host call"] == "[]"
    for folder in ("alone", "two"):
        assert toy.checkpoint_steps(tmp_path / folder) == [0, 3, 6, 8]
    found, expected = (
        tf.train.load_variable(str(tmp_path / folder / "model.ckpt-8"), "w")
        for folder in ("two", "alone")
    )
    np.testing.assert_allclose(found, expected, rtol=tolerance)
    # Only the chief writes events.
    assert len(list(pathlib.Path(tmp_path / "two" / "eval").glob("*tfevents*"))) == 1


def kill_when(condition, processes, killed, sent=signal.SIGKILL):
    """Kills a host once a condition is true; returns (exit code, stderr, seconds) of the other."""
    try:
        toy.wait_until(condition, secs=240)
        processes[killed].send_signal(sent)
        other, start = processes[1 - killed], time.monotonic()
        _, err = other.communicate(timeout=240)
        return other.returncode, err, time.monotonic() - start
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def check_lost(code, err, secs):
    """Checks that a host ended in time because another one is lost, and said so."""
    assert code in (1, -signal.SIGABRT), err  # jax may be first to see that the chief is lost
    assert LOST in err if code == 1 else JAX_S_WORDS in err
    assert secs < 60  # as README promises


# A stopped process is as silent as a machine that has vanished: its connections stay.
@pytest.mark.parametrize(
    "sent", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.usefixtures("xla_runtime")
def test_a_killed_host_ends_the_other(tmp_path, killed, sent):
    processes = start_two(tmp_path, 10**6)
    condition = lambda: len(toy.checkpoint_steps(tmp_path)) > 2  # noqa: E731
    check_lost(*kill_when(condition, processes, killed, sent))


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.usefixtures("xla_runtime")
def test_hosts_that_were_killed_resume(tmp_path, killed):
    list(map(output_of, start_two(tmp_path / "whole", 300)))
    (tmp_path / "killed").mkdir()
    processes = start_two(tmp_path / "killed", 300)
    check_lost(
        *kill_when(lambda: toy.checkpoint_steps(tmp_path / "killed")[-1:] > [30], processes, killed)
    )
    list(map(output_of, start_two(tmp_path / "killed", 300)))
    found, expected = (
        tf.train.load_checkpoint(str(tmp_path / name / "model.ckpt-300"))
        for name in ("killed", "whole")
    )
    for name in expected.get_variable_to_shape_map():
        np.testing.assert_array_equal(found.get_tensor(name), expected.get_tensor(name))


# The data of host 1 do not come from batch 4 on, as long as there is a file `hangs`.
HANGS = PROGRAM.replace(
    "    return data.map(",
    """
    def wait(k):
        while k == 4 and context.current_host == 1 and os.path.exists(folder + "/hangs"):
            time.sleep(0.1)
        return k

    data = data.map(lambda k: tf.ensure_shape(tf.numpy_function(wait, [k], tf.int64), []))
    return data.map(""",
)
HANGS = HANGS.replace("import sys\n", "import os, sys, time\n", 1)
HANGS = HANGS.replace("log = ", "tf.logging.set_verbosity('INFO')\nlog = ", 1)
HANGS = HANGS.replace("params={},", "params={}, log_every_secs=1,")


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["the data come", "Ctrl-C, twice", "killed"])
@pytest.mark.usefixtures("xla_runtime")
def test_the_data_of_one_host_hang(tmp_path, ends):
    """Both hosts say that they still wait; then the step goes on, or all hosts end."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "hangs").touch()
    errors = [tmp_path / "chief", tmp_path / "worker"]
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(path.open("w")) for path in errors]
        processes = start_two(folder, 8, program=HANGS, errors=files)
        opened.callback(lambda: [process.kill() for process in processes])
        says = "step 4/8 has taken 0:0"
        toy.wait_until(lambda: all(says in path.read_text() for path in errors), secs=240)
        if ends == "the data come":
            (folder / "hangs").unlink()
        else:
            for sent in [signal.SIGINT] * 2 if ends == "Ctrl-C, twice" else [signal.SIGKILL]:
                processes[1].send_signal(sent)
                time.sleep(1)
        outs = [process.communicate(timeout=60)[0] for process in processes]
    codes = [process.returncode for process in processes]
    if ends == "the data come":
        assert codes == [0, 0]
        assert "[32.0, 33.0, 34.0, 35.0, 36.0, 37.0, 38.0, 39.0], [40.0" in outs[0]
        return
    assert codes == [1, {"Ctrl-C, twice": 130, "killed": -signal.SIGKILL}[ends]]
    assert LOST in errors[0].read_text()


@pytest.mark.parametrize(
    "signalled", [[1], *(pytest.param(of, marks=pytest.mark.slow) for of in ([0], [0, 1]))], ids=str
)
@pytest.mark.usefixtures("xla_runtime")
def test_a_signal_ends_all_hosts_alike(tmp_path, signalled):
    processes = start_two(tmp_path, 10**6)
    try:
        toy.wait_until(lambda: len(toy.checkpoint_steps(tmp_path)) > 2, secs=200)
        for host in signalled:
            processes[host].send_signal(signal.SIGTERM)
        ends = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [143, 143], ends
    told = "SIGTERM: finishing the current step, then saving"
    for host, (out, err) in enumerate(ends):
        assert f"{told}{'. Send it again' if host in signalled else ', since another host'}" in err
        assert "its losses" not in out


START = """
import logging, sys
from bert_estimator.tpu.program import devices
logging.basicConfig(level="INFO")
print("found", len(devices.find(sys.argv[2], float(sys.argv[1]))))
"""


@pytest.fixture
def start_host():
    """Starts a host that joins the others and finds their cores; it is killed at the end."""
    cluster = new_cluster()
    with contextlib.ExitStack() as started:

        def start_one(index, wait_secs=100, master="rehearse:2", program=START):
            process = start(program, wait_secs, master, cluster=cluster, index=index)
            started.callback(process.communicate)
            started.callback(process.kill)
            return process, cluster["chief"][0]

        yield start_one


@pytest.mark.parametrize("missing", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("xla_runtime")
def test_a_host_that_does_not_come_ends_the_start(start_host, missing):
    process, address = start_host(1 - missing, wait_secs=2)
    _, err = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGABRT
    where = f"meet at {address}, for at most 2 seconds, as host {1 - missing}."
    assert f"Waiting for the 2 hosts of TF_CONFIG to {where}" in err
    assert JAX_S_WORDS in err


@pytest.mark.usefixtures("xla_runtime")
def test_hosts_with_other_masters_end_with_a_sentence(start_host):
    started = [start_host(i, master=f"rehearse:{2 + 2 * i}") for i in (0, 1)]
    for process, _ in started:
        _, err = process.communicate(timeout=100)
        assert process.returncode == 1
        assert "each host needs the same number of cores, but host 0 has 1, host 1 has 2." in err


# The chief still works when the other host is through, which waits for it.
ENDS_LATER = f"""{START}
import time
import types
from bert_estimator.cluster import hosts
assert hosts.gather(hosts.find().index).tolist() == [0, 1]
time.sleep(2 * hosts.find().is_chief)
"""


@pytest.mark.usefixtures("xla_runtime")
def test_hosts_end_together(start_host):
    processes = [start_host(index, program=ENDS_LATER)[0] for index in (0, 1)]
    ends = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    assert all("found 2" in out for out, _ in ends)
