"""Tests which cores a master names, and which versions of jax and libtpu it needs."""

import types
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from bert_estimator.tpu.program import devices
from tests.support import project

pytestmark = pytest.mark.usefixtures("xla_runtime")


@pytest.mark.parametrize(
    "master",
    ["my-tpu", "rehearse", "rehearse:", "rehearse:0", "rehearse:-1", "rehearse:two", "rehearse:2 ",
     "Rehearse:2", "tpu", "cpu"],
)  # fmt: skip
def test_a_master_that_does_not_name_cores(master):
    with pytest.raises(RuntimeError) as raised:
        devices.find(master)
    assert f"master={master!r} does not name a TPU that this program can reach" in str(raised.value)
    assert "Allowed: local " in str(raised.value) and "rehearse:N" in str(raised.value)


@pytest.mark.parametrize("master", ["grpc://10.0.0.2:8470", "10.0.0.2:8470", "pod:8470"])
def test_the_address_of_a_worker_says_where_to_run_instead(master):
    with pytest.raises(
        RuntimeError, match=r"is the address of a TPU's worker, .* on the TPU's own machine"
    ):
        devices.find(master)


def test_local_without_a_tpu(monkeypatch):
    monkeypatch.setattr(devices, "_TPU_FILES", ("/nowhere/accel[0-9]*",))
    message = r"'local': this machine does not have a TPU .*/nowhere/accel"
    with pytest.raises(RuntimeError, match=message):
        devices.find("local")


def test_local_with_a_device_that_is_not_a_usable_tpu(monkeypatch, tmp_path):
    (tmp_path / "accel0").touch()
    monkeypatch.setattr(devices, "_TPU_FILES", (str(tmp_path / "accel[0-9]*"),))
    with pytest.raises(RuntimeError, match=r"the TPU of this machine cannot be used: .*libtpu"):
        devices.find("local")
    with pytest.warns(UserWarning, match="seems to have a TPU, but running without it: .*libtpu"):
        assert devices.default_master() == ""


def test_gpu_without_a_gpu():
    with pytest.raises(RuntimeError, match=r"'gpu': jax does not find a GPU: .*'jax\[cuda12\]'"):
        devices.find("gpu")


def test_hosts_that_tf_config_does_not_name(monkeypatch):
    """On one host of a TPU slice of four hosts, jax finds the cores of all four."""
    cores = [types.SimpleNamespace(process_index=i // 2, id=i) for i in range(8)]
    monkeypatch.setattr(devices.import_jax(), "devices", lambda kind: cores)
    message = "These cores belong to 4 hosts, but TF_CONFIG names 1: set TF_CONFIG on each host"
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
    had = devices.import_jax().devices("cpu")
    cores = devices.find(f"rehearse:{len(had) + 1}")
    assert len(set(cores)) == len(had) + 1
    assert not set(cores) & set(had)
    assert devices.find(f"rehearse:{len(had) + 1}") == cores
    assert devices.find(f"rehearse:{len(had)}") == had


def test_hosts_with_other_numbers_of_cores(monkeypatch):
    cores = [types.SimpleNamespace(process_index=i // 2, id=i) for i in range(3)]
    jax = devices.import_jax()
    monkeypatch.setattr(jax, "devices", lambda kind: cores)
    monkeypatch.setattr(jax, "local_devices", lambda backend: cores[:2])
    monkeypatch.setattr(devices.hosts, "find", lambda: types.SimpleNamespace(number=2))
    monkeypatch.setattr(devices.hosts, "join", lambda jax, secs: None)
    message = r"same number of cores, but host 0 has 2, host 1 has 1\. "
    with pytest.raises(RuntimeError, match=f"'rehearse:4'.*{message}Give all of them the same mas"):
        devices.find("rehearse:4")
    with pytest.raises(RuntimeError, match=f"'gpu'.*{message}Hide some from the hosts with more"):
        devices.find("gpu")


def test_several_hosts_cannot_get_more_cores(monkeypatch):
    had = len(devices.import_jax().devices("cpu"))
    monkeypatch.setattr(devices.hosts, "find", lambda: types.SimpleNamespace(number=2))
    monkeypatch.setattr(devices.hosts, "join", lambda jax, secs: None)
    with pytest.raises(
        RuntimeError, match=rf"'rehearse:{2 * had + 2}': .* {had} virtual cores.* a new process"
    ):
        devices.find(f"rehearse:{2 * had + 2}")


def test_without_jax_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    with pytest.raises(RuntimeError, match=r"needs jax.* pip install 'bert-estimator\[tpu\]'"):
        devices.find("rehearse:2")


def test_a_jax_that_was_not_tested_says_what_to_install(monkeypatch):
    monkeypatch.setattr(devices.import_jax(), "__version__", "0.11.0")
    message = r"tested with jax 0\.10\.2 and .* this is jax 0\.11\.0: pip install"
    with pytest.raises(RuntimeError, match=message):
        devices.find("rehearse:2")


def test_a_libtpu_that_was_not_tested_says_what_to_install(monkeypatch, tmp_path):
    (tmp_path / "accel0").touch()
    monkeypatch.setattr(devices, "_TPU_FILES", (str(tmp_path / "accel[0-9]*"),))
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.1")
    with pytest.raises(RuntimeError, match=r"tested with libtpu .* this is libtpu 0\.0\.1: pip"):
        devices.find("local")


def test_the_extra_installs_tested_versions():
    extra = map(Requirement, project.read()["optional-dependencies"]["tpu"])
    allowed = {requirement.name: requirement.specifier for requirement in extra}
    released = ["0.10.0", "0.10.2", "0.11.0", "0.11.2", "0.12.0", "0.12.0.1", "0.12.1"]
    assert {v for v in released if v in allowed["jax"]} == set(devices.TRIED)
    assert {f"=={version}" for version in devices.TRIED.values()} == {str(allowed["libtpu"])}
