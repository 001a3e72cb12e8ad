"""Tests the picture and the table of packed rows."""

import os
import xml.etree.ElementTree

import pytest

from benchmarks import packed_rows

RECT = "{http://www.w3.org/2000/svg}rect"


def test_the_picture_of_the_docs_is_of_the_code():
    with open(packed_rows.PICTURE, encoding="utf-8") as reader:
        assert reader.read() == packed_rows.svg()


def test_every_sequence_is_drawn_twice_at_its_length():
    picture = xml.etree.ElementTree.fromstring(packed_rows.svg())
    bars = [bar for bar in picture.iter(RECT) if bar.get("fill").startswith("#")]
    rows = [bar for bar in bars if bar.get("stroke")]
    sequences = [float(bar.get("width")) for bar in bars if not bar.get("stroke")]
    number = len(packed_rows._LENGTHS)
    assert len(sequences) == 2 * number and len(rows) == number + 7
    assert sorted(sequences[:number]) == sorted(sequences[number:])


@pytest.mark.parametrize("batch", packed_rows.BATCHES[:4])
def test_the_table_of_the_docs_is_of_the_code(batch):
    path = os.path.join(os.path.dirname(packed_rows.PICTURE), "pretraining.md")
    with open(path, encoding="utf-8") as reader:
        assert packed_rows.line(*batch) in reader.read().splitlines()
