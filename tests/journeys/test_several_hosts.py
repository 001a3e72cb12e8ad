"""run_pretraining.py with a TF_CONFIG of several hosts, which cannot work."""

import json
import socket

import numpy as np
import pytest
from scripts import PRETRAINING

from bert_estimator.cluster import hosts
from bert_estimator.tpu import devices

CORES = {"tpu_name": "rehearse:2", "do_train": True}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    PRETRAINING.write_data(path)
    return path


@pytest.fixture
def run(data, tmp_path, monkeypatch, capsys):
    """Runs the script as a host of a cluster; returns (exit code, the last line of stderr)."""

    def run(cluster, task=None, **changes):
        task = task or {"type": "chief", "index": 0}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
        code = PRETRAINING.main(PRETRAINING.flags(data, tmp_path / "run", **changes))
        assert hosts._joined == []
        return code, capsys.readouterr().err.splitlines()[-1]

    return run


TWO = {"chief": ["localhost:1"], "worker": ["b:1"]}


@pytest.mark.parametrize(
    ("cluster", "task", "changes", "message"),
    [
        (TWO, None, {"use_tpu": False}, "--use_tpu=False: TF_CONFIG names 2 hosts, which train"),
        (TWO, None, {}, "TF_CONFIG names 2 hosts, but there are no cores that they could share"),
        (TWO, None, {"tpu_name": "rehearse:3"}, "3 cores cannot be shared evenly by the 2 hosts"),
        (TWO, None, {**CORES, "export_program": "x"}, "an exported program is for one host"),
        (TWO, None, {**CORES, "eval_steps": 4}, "--eval_steps=4: needs one host, but TF_CONFIG na"),
        (TWO, None, {**CORES, "host_wait_secs": 0}, "--host_wait_secs=0.0: must be a positive"),
        (TWO, {"type": "evaluator", "index": 0}, CORES, "the task type of this process is evalua"),
        (TWO, {"type": "worker", "index": 1}, CORES, "1 is not a valid task_id for task_type work"),
        ({**TWO, "ps": ["c:1"]}, None, CORES, "parameter servers are not supported"),
        ({**TWO, "chief": ["localhost"]}, None, CORES, "'localhost' is not a host and a port from"),
        ({**TWO, "worker": ["b:0"]}, None, CORES, "'b:0' is not a host and a port from 1 to 65535"),
        ({**TWO, "worker": ["b:70000"]}, None, CORES, "'b:70000' is not a host and a port"),
        ({**TWO, "worker": [5]}, None, CORES, "the address of worker 0 must be a string, not 5"),
    ],
)
@pytest.mark.usefixtures("xla_runtime")
def test_what_cannot_work_ends_before_anything_starts(run, cluster, task, changes, message):
    code, line = run(cluster, task, **changes)
    assert code == 2
    assert message in line


@pytest.mark.usefixtures("xla_runtime")
def test_a_chief_whose_port_is_taken(run, tmp_path):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = run({**TWO, "chief": [f"localhost:{port}"]}, **CORES)
    assert code == 2
    assert line == (
        "run_pretraining.py: --tpu_name=rehearse:2: TF_CONFIG: the chief's address is "
        f"localhost:{port}, but port {port} of this machine cannot be used: Address already in "
        "use. End the program that uses it, or give the chief another port, in the TF_CONFIG of "
        "all hosts"
    )


def together(monkeypatch, gather):
    """Gives the host the impression that the other host has come, which `gather` speaks for."""
    monkeypatch.setattr(hosts, "gather", gather)
    monkeypatch.setattr(devices, "find", lambda master, secs: [None] * 2)


@pytest.mark.parametrize(
    ("number", "flag"), [(0, "bert_config_file"), (1, "input_file"), (2, "eval_input_file")]
)
@pytest.mark.usefixtures("xla_runtime")
def test_hosts_with_other_files(run, monkeypatch, number, flag):
    def gather(values):
        others = np.array(values)
        if others.shape == (3,):  # the files; flags are more
            others[number] += 1
        return np.stack([values, others])

    together(monkeypatch, gather)
    code, line = run(TWO, **CORES)
    assert code == 2
    assert f"--{flag}" in line
    assert line.endswith(
        "the hosts of TF_CONFIG have different files there; give all of them the same files"
    )
