"""Tests the picture of the speed of training."""

import csv
import json

import pytest

from benchmarks import fine_tuning_speed, speed_picture, training_speed
from bert_estimator.command_line import charts
from tests.support.pictures import Picture, words


def write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as writer:
        rows_writer = csv.DictWriter(writer, training_speed.COLUMNS)
        rows_writer.writeheader()
        rows_writer.writerows(rows)


def test_the_best_round_of_each_side_is_drawn(tmp_path, monkeypatch):
    rows = [
        ("base", "bfloat16", "products by TensorFlow", 4.0),
        ("base", "bfloat16", "ours", 8.0),
        ("base", "bfloat16", "ours", 6.4),
        ("base", "float32", "Hugging Face, float32", 16.0),
        ("base", "float32", "products by torch", 1.0),
        ("tiny", "float32", "ours", 0.1),
    ]
    names, cell = ("network", "precision", "side", "secs"), {"length": 128, "batch": 32}
    write(tmp_path / "results.csv", [dict(zip(names, row, strict=True)) | cell for row in rows])
    rates = speed_picture.rates(tmp_path / "results.csv")
    assert rates == {
        "bfloat16": {"ours": 5.0, "products by TensorFlow": 8.0},
        "float32": {"Hugging Face, float32": 2.0},
    }
    monkeypatch.setattr(charts, "svg", Picture)
    picture = speed_picture.svg(rates)
    assert {
        *("bfloat16", "this project", "5.00", "the matrix products alone", "8.00"),
        *("float32", "Hugging Face on torch", "2.00"),
    } < {*picture.words()}
    widths = [bar.get_width() for axes in picture.panels for bar in axes.patches]
    assert widths == pytest.approx([5.0, 8.0, 2.0])


def test_useful_tokens_are_drawn(tmp_path):
    settings = {"network": "base", "precision": "bfloat16", "length": 512, "mean_tokens": 256}
    settings["machine"] = "2 cores, Intel(R) Xeon(R) Processor, Python 3.11.7"
    rows = [
        {**settings, "side": side, "batch": batch, "secs": secs}
        for side, batch, secs in (
            ("ours", 32, 8),
            ("ours", 32, 16),
            ("ours, packed, --use_tpu", 32, 4),
            ("products by torch", 32, 1),
            ("ours", 8, 1),  # another batch
        )
    ]
    write(tmp_path / "pretraining.csv", rows)
    rows = [
        {"side": side, "precision": precision, "train_secs": secs}
        for side, precision, secs in (
            ("this project, --nopack", "bfloat16", 10),
            ("Hugging Face, autocast, shuffled", "bfloat16", 8),
            ("Hugging Face, bfloat16, shuffled", "bfloat16", 5),
            ("Hugging Face, autocast, grouped", "bfloat16", 4),
            ("this project, --use_tpu", "bfloat16", 2),
            ("this project, --use_tpu", "float32", 1),
        )
    ]
    with open(tmp_path / "fine_tuning.json", "w", encoding="utf-8") as writer:
        values = {"batch": 32, "mean_length": 25, "machine": "2 cores, AMD EPYC", "rows": rows}
        json.dump(values, writer)
    found = speed_picture.useful_rates(tmp_path / "pretraining.csv", tmp_path / "fine_tuning.json")
    assert found == {
        "pretraining, documents in records of 512 tokens, Intel Xeon": {
            "packed": 2048, "unpacked": 1024,
        },
        "fine-tuning, sentences of 25 tokens in the mean, AMD EPYC": {
            "packed": 400, "unpacked": 80, "grouped": 200, "padded": 160,
        },
    }  # fmt: skip
    assert {"this project, packed rows", "2,048"} < {*words(speed_picture.useful_svg(found))}


def test_the_pictures_of_the_docs_are_of_the_results():
    """Another version of matplotlib may write the same pictures otherwise."""
    with open(speed_picture.PICTURE, encoding="utf-8") as reader:
        drawn = speed_picture.svg(speed_picture.rates(training_speed.RESULTS))
        assert sorted(words(reader.read())) == sorted(words(drawn))
    useful = speed_picture.useful_rates(training_speed.RESULTS, fine_tuning_speed.RESULTS)
    drawn = speed_picture.useful_svg(useful)
    with open(speed_picture.USEFUL_PICTURE, encoding="utf-8") as reader:
        assert sorted(words(reader.read())) == sorted(words(drawn))
