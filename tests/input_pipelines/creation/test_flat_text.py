import numpy as np

from input_pipelines.creation.instances import FlatText


def test_documents_as_arrays():
    text = FlatText.of([[[5, 6], [7]], [[8, 9, 10]]])
    assert len(text) == 2
    assert text.ids.tolist() == [5, 6, 7, 8, 9, 10]
    assert text.starts == [0, 2, 3, 6]
    assert text.first_sentences == [0, 2, 3]
    assert text.numbers == [0, 1]


def test_no_documents():
    text = FlatText.of([])
    assert (len(text), text.starts, text.first_sentences) == (0, [0], [0])


def test_end_of():
    rng = np.random.RandomState(0)
    lengths = rng.randint(1, 6, 30)
    text = FlatText(np.zeros(lengths.sum(), int), lengths, np.array([12, 18]), np.arange(2))
    for first, last in ((0, 12), (5, 12), (12, 30), (20, 30)):
        for length in range(1, 80):
            end = first + 1
            while end < last and text.starts[end] - text.starts[first] < length:
                end += 1
            assert text.end_of(first, last, length) == end
