"""Tests that the benchmark of fine-tuning measures what it says, on a tiny network."""

import json
import os

import numpy as np
import pytest

from benchmarks import fine_tuning_speed
from tests.support.fixtures import needs_transformers


def test_the_table_has_the_best_of_the_rounds():
    rows = [
        {"side": side, "precision": "float32", "train_secs": secs, "predict_rate": rate}
        for side, secs, rate in (("a", 2.0, 10.0), ("b", 1.0, 20.0), ("a", 4.0, 30.0))
    ]
    rows = [{**row, "peak_gib": 3 + number} for number, row in enumerate(rows)]
    rows[1]["token_share"] = 0.93
    lines = fine_tuning_speed.table(rows, batch=32).splitlines()
    assert lines[2:] == ["| a | float32 | 16 | 30 | 3 |  |", "| b | float32 | 32 | 20 | 4 | 93% |"]


@pytest.mark.slow
def test_every_figure_is_there(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("TRANSFORMERS_PYTHON", raising=False)
    results = tmp_path / "results.json"
    fine_tuning_speed.main(
        ["--network=tiny", "--steps=2", "--texts=128", "--rounds=1", f"--results={results}"]
    )
    result = json.loads(results.read_text(encoding="utf-8"))
    assert 10 < result["mean_length"] < 60
    sides = [(row["side"], row["precision"]) for row in result["rows"]]
    flags = ("", ", --nopack", ", --use_tpu")
    names = [f"this project{flag}" for flag in flags]
    assert [("token_share" in row) for row in result["rows"]] == [True, False, True] * 2
    assert sides == [(name, p) for p in ("float32", "bfloat16") for name in names]
    assert all(row["train_secs"] > 0 and row["peak_gib"] > 0.1 for row in result["rows"])
    assert all("predict_rate" in row for row in result["rows"])


@needs_transformers
@pytest.mark.parametrize("order", ["shuffled", "grouped"])
@pytest.mark.parametrize("precision", ["float32", "autocast", "bfloat16"])
def test_torch_is_timed_on_the_same_texts(tmp_path, precision, order):
    work = fine_tuning_speed.Work(str(tmp_path), "tiny", length=32, batch=4, steps=2, texts=16)
    with np.load(tmp_path / "texts.npz") as arrays:
        assert arrays["train_ids"].shape == (200, 32) and set(arrays["train_labels"]) == {0, 1}
    figures = work.torch(os.environ["TRANSFORMERS_PYTHON"], precision, order)
    assert set(figures) == {"train_secs", "predict_rate", "peak_gib"}
    assert all(value > 0 for value in figures.values())
