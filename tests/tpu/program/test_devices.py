"""Which cores a master names, and what of jax and libtpu is needed."""

import os
import re
import types
from importlib import metadata

import pytest

from bert_estimator.tpu.program import devices

pytestmark = pytest.mark.usefixtures("xla_runtime")


@pytest.mark.parametrize(
    "master",
    ["my-tpu", "rehearse", "rehearse:", "rehearse:0", "rehearse:-1", "rehearse:two", "rehearse:2 ",
     "Rehearse:2", "tpu", "cpu"],
)  # fmt: skip
def test_a_master_that_names_nothing(master):
    with pytest.raises(RuntimeError) as raised:
        devices.find(master)
    assert f"master={master!r} names no TPU that this program can reach" in str(raised.value)
    assert "Allowed: local " in str(raised.value) and "rehearse:N" in str(raised.value)


@pytest.mark.parametrize("master", ["grpc://10.0.0.2:8470", "10.0.0.2:8470", "pod:8470"])
def test_the_address_of_a_worker_says_where_to_run_instead(master):
    with pytest.raises(
        RuntimeError, match=r"is the address of a TPU's worker, .* on the TPU's own machine"
    ):
        devices.find(master)


def test_local_without_a_tpu(monkeypatch):
    monkeypatch.setattr(devices, "_TPU_FILES", ("/nowhere/accel[0-9]*",))
    with pytest.raises(RuntimeError, match=r"'local': this machine has no TPU .*/nowhere/accel"):
        devices.find("local")


def test_local_with_a_device_that_is_no_usable_tpu(monkeypatch, tmp_path):
    (tmp_path / "accel0").touch()
    monkeypatch.setattr(devices, "_TPU_FILES", (str(tmp_path / "accel[0-9]*"),))
    with pytest.raises(RuntimeError, match=r"the TPU of this machine cannot be used: .*libtpu"):
        devices.find("local")
    with pytest.warns(UserWarning, match="without the TPU that seems to be here: .*libtpu"):
        assert devices.default_master() == ""


def test_gpu_without_a_gpu():
    with pytest.raises(RuntimeError, match=r"'gpu': jax finds no GPU: .*'jax\[cuda12\]'"):
        devices.find("gpu")


def test_hosts_that_tf_config_does_not_name(monkeypatch):
    """As on one host of a slice of four, each of which finds the cores of all."""
    cores = [types.SimpleNamespace(process_index=i // 2, id=i) for i in range(8)]
    monkeypatch.setattr(devices.import_jax(), "devices", lambda kind: cores)
    message = "These are cores of 4 hosts, and TF_CONFIG names 1: give it on each of them"
    with pytest.raises(RuntimeError, match=message):
        devices.find("gpu")
    del cores[2:]
    assert devices.find("gpu") == cores


def test_the_default_is_what_tpu_name_says(monkeypatch):
    monkeypatch.setattr(devices, "_TPU_FILES", ("/nowhere/accel[0-9]*",))
    assert devices.default_master() == ""
    monkeypatch.setenv("TPU_NAME", "rehearse:2")
    assert devices.default_master() == "rehearse:2"


@pytest.mark.parametrize("number", [1, 2, 8])
def test_rehearse_gives_as_many_virtual_cores_as_asked_for(number):
    cores = devices.find(f"rehearse:{number}")
    assert len(set(cores)) == number
    assert {core.platform for core in cores} == {"cpu"}


def test_more_cores_than_jax_was_started_with():
    had = len(devices.import_jax().devices("cpu"))
    with pytest.raises(
        RuntimeError, match=f"'rehearse:{had + 1}': .* with {had} virtual cores.* in a new process"
    ):
        devices.find(f"rehearse:{had + 1}")
    assert len(devices.find(f"rehearse:{had}")) == had


def test_without_jax_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    with pytest.raises(RuntimeError, match=r"needs jax.* pip install 'bert-estimator\[tpu\]'"):
        devices.find("rehearse:2")


def test_a_jax_that_was_not_tried_says_what_to_install(monkeypatch):
    monkeypatch.setattr(devices.import_jax(), "__version__", "0.11.0")
    with pytest.raises(RuntimeError, match=r"tried with jax 0\.10\.2 and .* 0\.11\.0: pip install"):
        devices.find("rehearse:2")


def test_a_libtpu_that_was_not_tried_says_what_to_install(monkeypatch, tmp_path):
    (tmp_path / "accel0").touch()
    monkeypatch.setattr(devices, "_TPU_FILES", (str(tmp_path / "accel[0-9]*"),))
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.1")
    with pytest.raises(RuntimeError, match=r"tried with libtpu .* this is libtpu 0\.0\.1: pip"):
        devices.find("local")


def test_the_extra_installs_what_was_tried():
    path = os.path.join(os.path.dirname(__file__), "..", "..", "..", "pyproject.toml")
    with open(path, encoding="utf-8") as reader:
        text = reader.read()
    assert sorted(re.findall(r'"jax==([\d.]+);', text)) == sorted(devices.TRIED)
    assert set(re.findall(r'"libtpu==([\d.]+);', text)) == set(devices.TRIED.values())
