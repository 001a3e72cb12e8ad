"""Tests the picture of packed rows."""

import xml.etree.ElementTree

from benchmarks import packing_picture

RECT = "{http://www.w3.org/2000/svg}rect"


def test_the_picture_of_the_docs_is_of_the_code():
    with open(packing_picture.PICTURE, encoding="utf-8") as reader:
        assert reader.read() == packing_picture.svg()


def test_every_sequence_is_drawn_twice_at_its_length():
    picture = xml.etree.ElementTree.fromstring(packing_picture.svg())
    bars = [bar for bar in picture.iter(RECT) if bar.get("fill").startswith("#")]
    rows = [bar for bar in bars if bar.get("stroke")]
    sequences = [float(bar.get("width")) for bar in bars if not bar.get("stroke")]
    number = len(packing_picture._LENGTHS)
    assert len(sequences) == 2 * number and len(rows) == number + 7
    assert sorted(sequences[:number]) == sorted(sequences[number:])
