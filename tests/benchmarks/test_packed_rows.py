"""Tests the picture and the table of packed rows."""

import os

import pytest

from benchmarks import packed_rows
from bert_estimator.command_line import charts
from tests.support.pictures import Picture, words


def test_the_picture_of_the_docs_is_of_the_code():
    """Another version of matplotlib may write the same picture otherwise."""
    with open(packed_rows.PICTURE, encoding="utf-8") as reader:
        assert sorted(words(reader.read())) == sorted(words(packed_rows.svg()))


def test_every_sequence_is_drawn_twice_at_its_length(monkeypatch):
    monkeypatch.setattr(charts, "svg", lambda draw: Picture(draw))
    own, packed = packed_rows.svg().panels
    number = len(packed_rows._LENGTHS)
    for axes, rows in ((own, number), (packed, 7)):
        bars = [round(bar.get_width()) for bar in axes.patches]
        assert bars == [packed_rows._ROW_LENGTH] * rows + list(packed_rows._LENGTHS)


@pytest.mark.parametrize("batch", packed_rows.BATCHES[:4])
def test_the_table_of_the_docs_is_of_the_code(batch):
    path = os.path.join(os.path.dirname(packed_rows.PICTURE), "pretraining.md")
    with open(path, encoding="utf-8") as reader:
        line = " | ".join(packed_rows.line(*batch))
        assert f"| {line} |" in reader.read().splitlines()
