import numpy as np
import pytest

from input_pipelines.flat_document import FlatDocument


def test_a_document_as_one_array():
    sentences = [[5, 6], [7], [8, 9, 10]]
    whole = FlatDocument.of(sentences)
    part = FlatDocument(np.array([1, 2, 5, 6, 7, 8, 9, 10, 3], np.int32), np.array([2, 4, 5, 8]))
    for document in (whole, part):
        assert FlatDocument.of(document) is document
        assert list(document) == sentences and document[1:] == sentences[1:]
        assert len(document) == 3 and type(document[0][0]) is int
        assert document.tokens(0, 2) == [5, 6, 7] and document.tokens(3, 3) == []
        with pytest.raises(IndexError, match="sentence 3 of 3"):
            document[3]
        for first in range(3):
            for length in range(1, 9):
                end = first + 1
                while end < 3 and len(document.tokens(first, end)) < length:
                    end += 1
                assert document.end_of(first, length) == end
    assert list(FlatDocument.of([])) == []
