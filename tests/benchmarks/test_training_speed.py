"""Tests what the benchmark of training says of its measurements, and its parts that time things."""

import argparse
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import csv_rows, matrix_products, torch_bert, training_speed
from bert_estimator.bert_config import BertConfig
from tests.support.fixtures import needs_transformers

CELL = {"network": "base", "length": 128, "batch": 32, "precision": "bfloat16"}


def row(side, secs, round_number=1, **values):
    empty = dict.fromkeys(training_speed.COLUMNS, "")
    return {**empty, **CELL, "side": side, "secs": str(secs), "round": round_number, **values}


def ours(secs, cpu_secs, round_number):
    values = {"cpu_secs": cpu_secs, "peak_gib": 8, "first_step_secs": 40, "wait_share": 0.01}
    return row("ours", secs, round_number, **values)


ROWS = [
    ours(8.0, 15.0, 1),
    row("products by TensorFlow", 1.0),
    row("Hugging Face, autocast", 12.0, cpu_secs="20"),
    row("Hugging Face, bfloat16", 10.0, cpu_secs="21"),
    ours(4.0, 7.5, 2),
    row("products by TensorFlow", 1.5, 2),
]


def test_the_summary_is_about_the_fastest_rounds():
    assert training_speed.summary(ROWS) == {
        **CELL,
        "examples_per_second": 8.0,
        "roofline_share": 0.25,
        "ratio_to_huggingface": 2.5,
        "wait_share": 0.01,
        "first_step_seconds": 40.0,
        "peak_gib": 8.0,
        "cpu_seconds": 7.5,
    }


def test_the_table_has_a_line_for_each_side():
    with_tokens = [{**row, "mean_tokens": "90.5" if row["side"] == "ours" else ""} for row in ROWS]
    lines = training_speed.table(with_tokens).splitlines()
    assert lines[2:4] == [
        "| base, 128, 32 | bfloat16 | ours | 4 (8) | 8 | 724 | 7.5 | 8 | 40 |",
        "| base, 128, 32 | bfloat16 | products by TensorFlow | 1 (1.5) | 32 |  |  |  |  |",
    ]
    assert len(lines) == 6


def test_rows_replace_those_with_the_same_settings(tmp_path):
    path = str(tmp_path / "speed.csv")
    other = {**row("ours", 3.0), "length": 512}
    training_speed.write(path, [*ROWS, other])
    training_speed.write(path, [row("ours", 5.0)])
    with open(path, encoding="utf-8") as reader:
        lines = reader.read().splitlines()
    assert [line.split(",")[:7] for line in lines[1:]] == [
        ["base", "512", "32", "bfloat16", "ours", "1", "3.0"],
        ["base", "128", "32", "bfloat16", "ours", "1", "5.0"],
    ]


def test_a_failure_of_a_side_ends_the_benchmark_with_its_error():
    with pytest.raises(SystemExit, match=r"no such side\n.* ended with 1"):
        training_speed.Process([sys.executable, "-c", "import sys; sys.exit('no such side')"])


class KilledCell:
    """Stands for a `Cell`, of whose sides one is killed."""

    batch, mean_tokens = 2, 20.0

    def __init__(self, *arguments):
        pass

    def sides(self, *arguments):
        code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
        return {
            "ours": lambda: {"secs": 2.0},
            "Hugging Face, autocast": lambda: training_speed.Process([sys.executable, "-c", code]),
            "Hugging Face, bfloat16": lambda: {"secs": 3.0},
        }


def test_a_side_that_is_killed_costs_no_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training_speed, "Cell", KilledCell)
    path = tmp_path / "speed.csv"
    arguments = argparse.Namespace(
        networks=["tiny"], lengths=[32], precisions=["bfloat16"], tokens=64, steps=1, rounds=1,
        packed=False, results=path,
    )  # fmt: skip
    training_speed.measure(arguments, str(tmp_path))
    assert [row["side"] for row in csv_rows.read(path)] == ["ours", "Hugging Face, bfloat16"]
    assert "autocast, round 1: killed" in capsys.readouterr().out


def test_the_products_are_those_of_the_network():
    sizes = BertConfig.preset("base", 30522).to_dict()
    counts = matrix_products.products(sizes, batch=32, length=128, predictions=20)
    # BERT-base at 128 tokens: 69.9 GFLOP an example, and three products for each of these.
    flops = sum(6 * m * r * i * c * number for (m, r, i, c), number in counts.items())
    assert flops / 32 == pytest.approx(69.9e9, rel=0.01)
    secs = {matrix_products.key(shape): 0.5 for shape in counts}
    assert matrix_products.step_secs(counts, secs) == 0.5 * (12 * 8 + 2)


def test_products_are_timed_with_their_gradients(monkeypatch):
    monkeypatch.setattr(matrix_products, "_SECS", 0)
    sizes = dict(vocab_size=30, hidden_size=8, intermediate_size=16)
    sizes.update(num_hidden_layers=1, num_attention_heads=2)
    counts = matrix_products.products(sizes, batch=3, length=5, predictions=2)
    times = matrix_products.time_products("tensorflow", counts, "bfloat16")
    assert list(times) == ["15x8x8", "15x8x16", "15x16x8", "6*5x4x5", "6*5x5x4", "6x8x8", "6x8x30"]
    assert all(0 < secs < 10 for secs in times.values())


def test_joined_texts_fill_rows_with_the_same_tokens():
    lengths = np.array([[3, 4, 1], [4, 2, 3]])
    mask = (np.arange(4) < lengths[:, :, None]).astype(np.int32)
    ids = np.arange(100, 124, dtype=np.int32).reshape(2, 3, 4) * mask
    positions = np.zeros([2, 3, 2], np.int32)
    joined = torch_bert._joined(
        {"input_ids": ids, "input_mask": mask, "masked_lm_positions": positions}
    )
    # 17 tokens fill 4 rows of 4, two in each batch.
    assert joined["input_ids"].flatten().tolist() == ids[mask == 1][:16].tolist()
    assert joined["input_ids"].shape == joined["input_mask"].shape == (2, 2, 4)
    assert joined["input_mask"].all() and not joined["segment_ids"].any()
    assert joined["masked_lm_positions"].tolist() == [[[0, 3]] * 2] * 2
    assert (joined["masked_lm_ids"] == joined["input_ids"][:, :, [0, 3]]).all()
    assert joined["next_sentence_labels"].shape == (2, 2, 1)


@pytest.mark.slow
@needs_transformers
def test_all_sides_train_the_same_network(tmp_path):
    command = [sys.executable, "-m", "benchmarks.training_speed", "--networks=tiny", "--rounds=1"]
    command += ["--lengths=32", "--tokens=64", "--steps=2"]
    command += ["--packed", f"--results={tmp_path / 'speed.csv'}"]
    root = os.path.dirname(os.path.dirname(training_speed.__file__))
    done = subprocess.run(command, check=True, cwd=root, stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result.items() >= {"network": "tiny", "length": 32, "precision": "bfloat16"}.items()
    assert result["examples_per_second"] > 0
    assert 0 < result["roofline_share"] < 1
    assert result["ratio_to_huggingface"] > 0
    assert 0 <= result["wait_share"] < 1
    assert result["first_step_seconds"] > 0 and result["peak_gib"] > 0
    in_float32 = result["cells"][0]
    assert in_float32["precision"] == "float32" and in_float32["ratio_to_huggingface"] > 0
    assert "| Hugging Face, autocast, joined |" in done.stdout
    assert "| ours, packed |" in done.stdout and "| ours, packed, --use_tpu |" in done.stdout
