"""Tests that sequences on disk have the values that were given."""

import pytest

from input_pipelines.spool import Spool, SpooledDocuments


def test_strings():
    strings = [b"a", b"", bytes(range(256)) * 9]
    spool = Spool(iter(strings))
    assert len(spool) == 3
    assert list(spool) == [spool[number] for number in range(3)] == strings
    for number in (-1, 3):
        with pytest.raises(IndexError, match=f"string {number} of 3"):
            spool[number]
    assert not Spool([])


def test_documents():
    documents = [[[5, 6], [7]], [[2**31 - 1]], []]
    spooled = SpooledDocuments(documents)
    assert [len(document) for document in spooled] == [2, 1, 0]
    assert spooled[0][1:] == [[7]]
    with pytest.raises(IndexError, match="document 3 of 3"):
        spooled[3]
    with pytest.raises(IndexError, match="sentence 2 of 2"):
        spooled[0][2]
    assert not SpooledDocuments([])
    for _ in range(2):
        assert [[list(sentence) for sentence in document] for document in spooled] == documents
    # Ids are Python's numbers, which instances are made of.
    assert type(spooled[0][0][0]) is int
