"""Tests that the benchmark of reading measures what it says, and that plans go by its results."""

import json

import pytest

from benchmarks import input_speed
from input_pipelines.records import pretraining_input


def test_plans_go_by_what_was_measured():
    with open(input_speed.RESULTS, encoding="utf-8") as file:
        rates = json.load(file)["rates"]
    for length in input_speed.PREDICTIONS:
        measured = 1 / rates[f"dynamic_{length}"]["examples_per_cpu_sec"]
        assert 0.95 < pretraining_input.core_secs(length) / measured < 1.05


@pytest.mark.slow
def test_the_last_line_is_json(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(input_speed, "PREDICTIONS", {128: 20})
    path = tmp_path / "result.json"
    input_speed.main(["--batches=2", f"--results={path}"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == json.loads(path.read_text())
    assert set(result["rates"]) == {"dynamic_128", "static_128"}
    assert all(rate > 0 for rates in result["rates"].values() for rate in rates.values())
