"""Tests the topologies of TPUs that need not be there, and the facts of each generation."""

import importlib.util
import sys

import pytest

from bert_estimator.tpu.program import compile_report
from bert_estimator.tpu.program.compile_report import GENERATIONS

pytestmark = pytest.mark.usefixtures("xla_runtime")


@pytest.mark.usefixtures("tpu_compiler")
@pytest.mark.parametrize(
    ("name", "tpu", "cores"),
    [
        ("v2:2x2", "v2", 8),
        ("v3:2x2", "v3", 8),
        ("v3:32x32", "v3", 2048),
        ("v4:2x2x1", "v4", 8),
        ("v5e:4x4", "v5e", 16),
        ("v5p:2x2x1", "v5p", 4),
        ("v6e:2x2", "v6e", 4),
    ],
)
def test_the_cores_of_a_topology(name, tpu, cores):
    found = compile_report.find(name)
    assert len(set(found)) == cores
    generation = compile_report.GENERATIONS[found[0].device_kind]
    assert generation.name == tpu
    chips = cores // generation.cores_a_chip
    assert chips == {"v3:32x32": 1024, "v5e:4x4": 16}.get(name, 4)


@pytest.mark.usefixtures("tpu_compiler")
@pytest.mark.parametrize("name", ["v3", "v3:", "v3:banana", "v3:3x5", "v99:2x2", "rehearse:2"])
def test_a_topology_that_the_compiler_does_not_know(name):
    with pytest.raises(ValueError, match="Examples of topologies: v2:2x2, v3:2x2"):
        compile_report.find(name)


def test_without_libtpu_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "libtpu", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"libtpu, .* pip install 'bert-estimator\[tpu\]'"):
        compile_report.find("v3:2x2")


def test_the_time_of_an_all_reduce():
    v3 = GENERATIONS["TPU v3"]
    # BERT-Large's gradients take about 8 ms over the pod, by the 340 TB/s that Google publishes.
    assert v3.all_reduce_secs(1.345e9, 1024) == pytest.approx(8.2e-3, rel=0.01)
    # Each of two chips sends half of the bytes to the other chip, and gets them back summed.
    assert v3.all_reduce_secs(8e9, 2) == pytest.approx(8e9 / (4 * 82e9))
    assert v3.all_reduce_secs(1e9, 1) == 0
