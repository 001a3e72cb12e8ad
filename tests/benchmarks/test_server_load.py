"""Tests that the benchmark of the server measures what it says, on a tiny network."""

import json

import pytest

from benchmarks import server_load
from tests.benchmarks.test_serving_speed import made_run


@pytest.mark.slow
def test_every_figure_is_there(tmp_path, capsys):
    run = made_run(tmp_path)
    capsys.readouterr()
    server_load.main([run, "--secs=0.5", "--soak=1000"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(result["sides"])[:3] == ["exported", "onnx", "onnx_int8"]
    for side in result["sides"].values():
        assert side["texts_per_sec"] > 0
        assert len(side["server"]) == 6
        for figures in side["server"].values():
            assert figures["texts_per_sec"] > 0 and 0 < figures["p50_ms"] <= figures["p99_ms"]
    for name in "exported", "onnx":
        assert result["sides"][name]["soak"]["requests"] == 1000
        assert len(result["sides"][name]["soak"]["megabytes"]) == 10
