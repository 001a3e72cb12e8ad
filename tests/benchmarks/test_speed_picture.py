"""Tests the picture of the speed of training."""

import csv
import xml.etree.ElementTree

import pytest

from benchmarks import speed_picture, training_speed

TEXT = "{http://www.w3.org/2000/svg}text"


def write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as writer:
        rows_writer = csv.DictWriter(writer, training_speed.COLUMNS)
        rows_writer.writeheader()
        for network, precision, side, secs in rows:
            values = {"network": network, "length": 128, "batch": 32, "precision": precision}
            rows_writer.writerow({**values, "side": side, "secs": secs})


def test_the_best_round_of_each_side_is_drawn(tmp_path):
    rows = [
        ("base", "bfloat16", "products by TensorFlow", 4.0),
        ("base", "bfloat16", "ours", 8.0),
        ("base", "bfloat16", "ours", 6.4),
        ("base", "float32", "Hugging Face, float32", 16.0),
        ("base", "float32", "products by torch", 1.0),
        ("tiny", "float32", "ours", 0.1),
    ]
    write(tmp_path / "results.csv", rows)
    rates = speed_picture.rates(tmp_path / "results.csv")
    assert rates == {
        "bfloat16": {"ours": 5.0, "products by TensorFlow": 8.0},
        "float32": {"Hugging Face, float32": 2.0},
    }
    picture = xml.etree.ElementTree.fromstring(speed_picture.svg(rates))
    assert [text.text for text in picture.iter(TEXT)][1:] == [
        "bfloat16", "this project", "5.00", "the matrix products alone", "8.00",
        "float32", "Hugging Face on torch", "2.00",
    ]  # fmt: skip
    widths = [float(bar.get("width")) for bar in picture if bar.get("height") == "16"]
    assert [width / widths[0] for width in widths] == pytest.approx([1.0, 1.6, 0.4], abs=1e-3)


def test_the_picture_of_the_docs_is_of_the_results():
    with open(speed_picture.PICTURE, encoding="utf-8") as reader:
        assert reader.read() == speed_picture.svg(speed_picture.rates(training_speed.RESULTS))
