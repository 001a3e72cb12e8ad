"""Which cores a master names."""

import pytest

pytest.importorskip("jax", minversion="0.8")

from bert_estimator.tpu import devices


@pytest.mark.parametrize(
    "master",
    ["grpc://pod:8470", "local", "rehearse", "rehearse:", "rehearse:0", "rehearse:-1",
     "rehearse:two", "rehearse:2 ", "Rehearse:2"],
)  # fmt: skip
def test_a_master_that_names_nothing(master):
    with pytest.raises(RuntimeError) as raised:
        devices.find(master)
    assert f"master={master!r} names a TPU that cannot be reached" in str(raised.value)
    assert "rehearse:N" in str(raised.value)


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
