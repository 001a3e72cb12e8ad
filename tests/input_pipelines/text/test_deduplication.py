import tracemalloc

import numpy as np
import pytest

from input_pipelines.text.deduplication import ExactDuplicates, HashSet, NearDuplicates


def text(generator, number):
    return [f"word{i}" for i in generator.integers(5000, size=number)]


def sentences(words):
    return [" ".join(words[i : i + 9]) for i in range(0, len(words), 9)]


@pytest.mark.parametrize("kind", [ExactDuplicates, NearDuplicates])
def test_documents_with_the_same_words_are_duplicates(kind):
    duplicates, generator = kind(), np.random.default_rng(1)
    documents = [sentences(text(generator, n)) for n in (1, 3, 4, 5, 6, 60, 400)]
    assert all(duplicates.is_new(document) for document in documents)
    assert not any(duplicates.is_new(document) for document in documents)
    assert not duplicates.is_new([" ".join(documents[-1]).upper().replace(" ", "  ")])
    assert duplicates.is_new([*documents[2], "more"])


def test_exact_duplicates_have_all_words():
    duplicates, words = ExactDuplicates(), text(np.random.default_rng(1), 400)
    assert duplicates.is_new(sentences(words))
    assert duplicates.is_new(sentences(words[:-1]))
    assert duplicates.is_new(sentences(words[::-1]))


def similarity(a, b):
    """The share of sequences of 5 words that two lists of words have in common."""
    a, b = ({tuple(w[i : i + 5]) for i in range(len(w) - 4)} for w in (a, b))
    return len(a & b) / len(a | b)


def test_the_signature_estimates_similarity():
    generator = np.random.default_rng(2)
    near = NearDuplicates()
    for changed in (0, 4, 40, 400):
        words = text(generator, 400)
        other = [*words[: 400 - changed], *text(generator, changed)]
        equal = near.signature(sentences(words)) == near.signature(sentences(other))
        assert np.mean(equal) == pytest.approx(similarity(words, other), abs=0.12)


@pytest.mark.parametrize(("share", "least", "most"), [(0.95, 0.97, 1), (0.5, 0, 0.2), (0, 0, 0)])
def test_near_duplicates_by_similarity(share, least, most):
    """With 14 bands of 8, the curve 1 - (1 - s^8)^14 is 1.00, 0.05 and 0 at these shares."""
    generator = np.random.default_rng(3)
    found = []
    for _ in range(60):
        near, words = NearDuplicates(), text(generator, 600)
        # Of n sequences, k in common and k others are k / (2n - k) of the union.
        kept = round(600 * 2 * share / (1 + share))
        near.is_new(sentences(words))
        found.append(not near.is_new(sentences([*words[:kept], *text(generator, 600 - kept)])))
    assert least <= np.mean(found) <= most


def test_long_documents_are_hashed_in_blocks(monkeypatch):
    document = sentences(text(np.random.default_rng(4), 3000))
    whole = NearDuplicates().signature(document)
    monkeypatch.setattr("input_pipelines.text.deduplication._AT_ONCE", 100)
    np.testing.assert_array_equal(NearDuplicates().signature(document), whole)


def test_a_set_of_hashes_is_a_set():
    hashes, expected = HashSet(), set()
    values = np.random.default_rng(5).integers(2**64, size=6000, dtype=np.uint64).tolist()
    for value in [*values, *values[:100], 0, 0, 1, 2**64 - 1, 2**64 - 1]:
        assert hashes.add(value) == (value not in expected)
        expected.add(value)
        assert len(hashes) == len(expected)


def test_memory_is_at_most_32_bytes_for_each_hash_also_while_the_set_grows():
    values = np.random.default_rng(6).integers(2**64, size=30_000, dtype=np.uint64).tolist()
    hashes = HashSet()
    tracemalloc.start()
    for value in values:
        tracemalloc.reset_peak()
        hashes.add(value)
        assert tracemalloc.get_traced_memory()[1] <= 32 * len(hashes) + 200_000
    tracemalloc.stop()
    assert len(hashes) == len(values)
    assert not any(map(hashes.add, values[::100]))
