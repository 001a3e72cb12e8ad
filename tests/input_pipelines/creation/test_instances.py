import collections
import dataclasses
import random
import re

import numpy as np
import pytest

from input_pipelines.creation import instances
from input_pipelines.creation.instances import (
    FlatText,
    Pairs,
    Span,
    make_pairs,
    places,
    spans_of_document,
    truncated,
)
from input_pipelines.creation.settings import CreationSettings


def settings(**changes):
    defaults = {"max_seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 3}
    return CreationSettings(**{**defaults, "random_seed": 1, **changes})


def ids_of(documents, tokenizer):
    return [
        [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(sentence)) for sentence in document]
        for document in documents
    ]


def pairs_of(documents, number, changed, turn=0):
    """Returns (A, B, label) of each pair of a document."""
    text = FlatText.of(documents)
    return [
        (text.ids[a:a_end].tolist(), text.ids[b:b_end].tolist(), label)
        for a, a_end, b, b_end, label in spans_of_document(text, number, changed, turn)
    ]


def pairs_of_all(documents, changed):
    """Returns the pairs of all documents and turns."""
    return [
        pair
        for turn in range(changed.dupe_factor)
        for number in range(len(documents))
        for pair in pairs_of(documents, number, changed, turn)
    ]


def contains(document, part):
    text = [token for sentence in document for token in sentence]
    return any(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


def test_pinned_pairs(tokenizer, documents):
    # The first document is 5 6 7 8 | 8 9 10 11 | 11 12 13 14 | 14 15 16 17 | 17 18 19 20. The first
    # pair lost tokens at both ends; the second has a segment of the other document.
    assert pairs_of(ids_of(documents[:2], tokenizer), 0, settings(max_seq_length=16))[:2] == [
        ([6, 7, 8, 8, 9, 10, 11], [11, 12, 13, 14, 14, 15], False),
        ([17, 18, 19, 20], [18, 19, 20, 21, 21, 22, 23, 24, 24], True),
    ]


def test_meaning_of_the_pairs(tokenizer, documents):
    tokenized = ids_of(documents, tokenizer)
    labels = collections.Counter()
    for turn in range(20):
        for number, document in enumerate(tokenized):
            for a, b, label in pairs_of(tokenized, number, settings(), turn):
                assert a and b and len(a) + len(b) <= 29
                assert contains(document, a)
                assert label or contains(document, b)
                labels[label] += 1
    assert min(labels.values()) > 0.3 * labels.total()


def test_all_pairs_as_arrays(tokenizer, documents):
    tokenized = ids_of(documents, tokenizer)
    text = FlatText.of(tokenized)
    text.numbers = [number + 100 for number in text.numbers]  # these are a part of some text
    made = [make_pairs(text, settings(), turn) for turn in range(3)]
    whole = [pairs for pairs, _ in made]
    assert len(
        {(key, turn) for pairs in whole for key, turn in zip(pairs.keys, pairs.turns, strict=True)}
    ) == (sum(map(len, whole)))
    pairs = Pairs.joined(whole)
    assert {key >> 24 for key in pairs.keys.tolist()} == {100, 101, 102, 103, 104, 105}
    expected = [
        (text.ids[a:a_end].tolist(), text.ids[b:b_end].tolist(), int(label))
        for turn in range(3)
        for index in range(6)
        for a, a_end, b, b_end, label in spans_of_document(text, index, settings(), turn)
    ]
    assert as_lists(pairs) == expected
    for turn, (_, used) in enumerate(made):
        places = set()
        for index in range(6):
            for a, a_end, b, b_end, _ in spans_of_document(text, index, settings(), turn):
                places |= {*range(a, a_end), *range(b, b_end)}
        assert np.flatnonzero(used).tolist() == sorted(places)
    order = np.random.RandomState(0).permutation(len(pairs))
    assert as_lists(pairs.chosen(order)) == [expected[row] for row in order]
    assert [row for block in pairs.blocks(5) for row in as_lists(block)] == expected
    assert {len(block) for block in pairs.blocks(5)} <= {5, len(pairs) % 5}
    assert pairs.chosen(order).keys.tolist() == pairs.keys[order].tolist()
    pairs, used = make_pairs(FlatText.of([]), settings(), 0)
    assert len(pairs) == len(used) == 0


def as_lists(pairs):
    tokens = pairs.tokens.tolist()
    rows, end = [], 0
    for (a, b), label in zip(pairs.lengths.tolist(), pairs.labels.tolist(), strict=True):
        rows.append((tokens[end : end + a], tokens[end + a : end + a + b], label))
        end += a + b
    assert end == len(tokens)
    return rows


def test_places():
    assert places(np.array([7, 0, 3]), np.array([2, 0, 3])).tolist() == [7, 8, 3, 4, 5]
    assert places(np.array([], int), np.array([], int)).tolist() == []


def test_taken(monkeypatch):
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1000, 200).astype(np.uint16)
    starts, lengths = rng.integers(0, 190, 30), rng.integers(0, 10, 30)
    lengths[:8] = 0
    expected = values[places(starts, lengths)]
    for at_once in (1, 4, 29, 30, 1000):
        monkeypatch.setattr(instances, "_RANGES_AT_ONCE", at_once)
        result = instances.taken(values, starts, lengths)
        assert result.dtype == np.uint16 and result.tolist() == expected.tolist()
    assert instances.taken(values, starts[:0], lengths[:0]).tolist() == []


def test_true_next_segments_follow_directly():
    # Tokens ascend through the document, and nothing is cut: B starts after A's last token.
    tokenized = [[[5 + 3 * s + t for t in range(3)] for s in range(12)], [[41]]]
    seen = 0
    for turn in range(30):
        changed = settings(max_seq_length=43, short_seq_prob=0.0)
        for a, b, label in pairs_of(tokenized, 0, changed, turn):
            if label:
                assert b == [41]
            else:
                assert a + b == list(range(a[0], b[-1] + 1))
                seen += 1
    assert seen > 10


def test_sentence_order():
    # Tokens ascend through the document: B borders on A, after it or, when swapped, before it.
    tokenized = [[[5 + 3 * s + t for t in range(3)] for s in range(12)], [[41, 42]]]
    changed = settings(max_seq_length=43, short_seq_prob=0.3, random_next_sentence=False)
    labels = collections.Counter()
    for turn in range(100):
        for a, b, label in pairs_of(tokenized, 0, changed, turn):
            first, second = (b, a) if label else (a, b)
            assert first + second == list(range(first[0], second[-1] + 1))
            labels[label] += 1
        for a, b, label in pairs_of(tokenized, 1, changed, turn):
            # A sentence alone: its halves.
            assert (a, b) == (([42], [41]) if label else ([41], [42]))
    assert 0.4 < labels[True] / labels.total() < 0.6


def test_random_segments_come_from_other_documents():
    tokenized = [[[10 * d + 5] * 3 for _ in range(4)] for d in range(4)]
    sources = set()
    for turn in range(50):
        for _, b, label in pairs_of(tokenized, 1, settings(), turn):
            if label:
                sources |= set(b)
    assert sources == {5, 25, 35}


def test_unused_sentences_are_not_lost():
    tokenized = [[[5 + s] * 4 for s in range(10)], [[40] * 4] * 10]
    for turn in range(20):
        seen = set()
        for a, b, _ in pairs_of(
            tokenized, 0, settings(max_seq_length=50, short_seq_prob=0.0), turn
        ):
            seen |= {*a, *b}
        assert set(range(5, 15)) <= seen


def test_short_sequences():
    tokenized = [[[5 + s % 40] for s in range(400)], [[6] * 100]]
    lengths = {
        probability: [
            len(a) + len(b) + 3
            for turn in range(5)
            for a, b, _ in pairs_of(tokenized, 0, settings(short_seq_prob=probability), turn)
        ]
        for probability in (0.0, 1.0)
    }
    # All but the last of each turn are full.
    assert lengths[0.0].count(32) >= len(lengths[0.0]) - 5
    assert min(lengths[1.0]) == 5 and len(set(lengths[1.0])) > 20


@pytest.mark.parametrize("document", [[[5, 6, 7, 8]], [[5, 6, 7, 8], [9, 10]]])
def test_a_short_document_alone_keeps_its_text(document):
    # Without other text, a segment that is labelled as the next one is the next one.
    pairs = pairs_of_all([document], settings())
    assert pairs
    for a, b, label in pairs:
        assert not label
        assert contains(document, a + b)
    a, b, _ = pairs[0]
    assert a + b == [token for sentence in document for token in sentence]


def test_a_lone_sentence_is_halved():
    changed = settings(dupe_factor=1, short_seq_prob=0.0)
    assert pairs_of_all([[[5, 6, 7]]], changed) == [([5, 6], [7], False)]


def test_a_lone_token_gives_nothing():
    assert pairs_of_all([[[5]]], settings()) == []


def test_a_long_document_alone_has_random_segments_of_its_own():
    document = [[5 + s] * 8 for s in range(20)]
    labels = set()
    for a, b, label in pairs_of_all([document], settings()):
        labels.add(label)
        if label:
            assert b[0] != a[-1] and b[0] != a[-1] + 1
    assert labels == {False, True}


def test_seeds_turns_and_documents_differ():
    tokenized = [[[5 + s] * 3 for s in range(30)]] * 2
    first = pairs_of(tokenized, 0, settings())
    assert first == pairs_of(tokenized, 0, settings())
    assert first != pairs_of(tokenized, 0, settings(), 1)
    assert first != pairs_of(tokenized, 0, settings(random_seed=2))
    assert first != pairs_of(tokenized, 1, settings())


def test_truncation_shortens_the_longer_at_both_ends():
    rng = random.Random(0)
    starts, ends = set(), set()
    for _ in range(100):
        span = truncated(Span(0, 20, 100, 105, True), 12, rng)
        assert (span.b, span.b_end, span.is_random_next) == (100, 105, True)
        assert span.a_end - span.a == 7 and 0 <= span.a <= 13
        starts.add(span.a)
        ends.add(span.a_end)
    assert len(starts) > 4 and len(ends) > 4


def test_truncation_of_equal_lengths_takes_from_b():
    a, a_end, b, b_end, _ = truncated(Span(1, 4, 4, 7, False), 5, random.Random(0))
    assert (a, a_end, b_end - b) == (1, 4, 2)
    a, a_end, b, b_end, _ = truncated(Span(a, a_end, b, b_end, False), 4, random.Random(0))
    assert a_end - a + b_end - b == 4


def test_documents_as_arrays():
    text = FlatText.of([[[5, 6], [7]], [[8, 9, 10]]])
    assert len(text) == 2
    assert text.ids.tolist() == [5, 6, 7, 8, 9, 10]
    assert text.starts == [0, 2, 3, 6]
    assert text.first_sentences == [0, 2, 3]
    assert text.numbers == [0, 1]


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


def rows_of(pairs):
    starts = np.cumsum(pairs.lengths.sum(axis=1)).tolist()
    return [
        (key, turn, label, lengths, pairs.tokens[start:end].tolist())
        for key, turn, label, lengths, start, end in zip(
            pairs.keys.tolist(),
            pairs.turns.tolist(),
            pairs.labels.tolist(),
            pairs.lengths.tolist(),
            [0, *starts],
            starts,
            strict=False,
        )
    ]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("num_buckets", [1, 3, 50])
def test_all_pairs_are_dealt_evenly(tmp_path, documents, tokenizer, dtype, num_buckets):
    text = FlatText.of([[tokenizer.encode(s) for s in document] for document in documents])
    text.ids = text.ids.astype(dtype)
    settings = CreationSettings(max_seq_length=16, max_predictions_per_seq=4)
    made = [make_pairs(text, settings, turn) for turn in range(2)]
    pairs, used = Pairs.joined([pairs for pairs, _ in made]), made[0][1] | made[1][1]
    path = str(tmp_path / "some")
    assert not instances.pairs_are_written(path)
    instances.write_pairs(pairs, used, path, num_buckets, seed=1)
    assert instances.num_used([path, path]) == used.sum()
    assert instances.pairs_are_written(path) and instances.num_pairs(path) == len(pairs)
    dealt = [instances.read_pairs(path, residue, np.dtype(dtype)) for residue in range(num_buckets)]
    sizes = [len(some) for some in dealt]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1
    found = [row for some in dealt for row in rows_of(some)]
    assert sorted(found) == sorted(rows_of(pairs))
    assert found != rows_of(pairs)  # the order is random
    instances.write_pairs(pairs, used, path, num_buckets, seed=2)
    other = [
        row
        for residue in range(num_buckets)
        for row in rows_of(instances.read_pairs(path, residue, np.dtype(dtype)))
    ]
    assert sorted(other) == sorted(found) and other != found


def whole(**changes):
    return settings(objective="mlm", **changes)


def rows_of_whole_sentences(documents, changed, separator=None):
    """Returns the tokens of each example of masked words alone, and how many tokens are in none."""
    text = FlatText.of(documents)
    pairs, used = make_pairs(text, changed, 0, separator)
    rows = [tokens for tokens, b, label in as_lists(pairs) if (b, label) == ([], 0)]
    assert len(rows) == len(pairs) == len(set(pairs.keys.tolist()))
    assert used.shape == text.ids.shape
    return rows, np.count_nonzero(~used)


def numbered(*lengths, first=10):
    """Returns sentences of these lengths, whose tokens ascend through all of them."""
    ends = np.cumsum(lengths).tolist()
    return [list(range(first + end - n, first + end)) for n, end in zip(lengths, ends, strict=True)]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([4, 4, 4], [8, 4]),  # two fit, three do not
        ([3, 5, 2, 8], [8, 2, 8]),
        ([8], [8]),
        ([9], [8]),  # a token alone is in no example
        ([19, 2], [8, 8, 5]),  # the rest of a sentence that is cut goes on
        ([1, 8, 1, 1], [8, 2]),
        ([1], []),
    ],
)
def test_whole_sentences_fill_an_example(lengths, expected):
    sentences = numbered(*lengths)
    tokens = [token for sentence in sentences for token in sentence]
    rows, left_out = rows_of_whole_sentences([sentences], whole(max_seq_length=10))
    assert [len(row) for row in rows] == expected
    assert all(row == list(range(row[0], row[-1] + 1)) for row in rows)
    assert left_out == len(tokens) - sum(expected)
    assert left_out or [token for row in rows for token in row] == tokens


def test_whole_sentences_end_with_their_document():
    documents = [numbered(3, 3), numbered(2, first=50), numbered(4, 5, 3, first=70)]
    rows, left_out = rows_of_whole_sentences(documents, whole(max_seq_length=12))
    assert [(row[0], len(row)) for row in rows] == [(10, 6), (50, 2), (70, 9), (79, 3)]
    assert not left_out


def test_whole_sentences_go_across_documents():
    """A separator stands between two documents, and neither begins nor ends an example."""
    documents = [numbered(3, 3), numbered(2, first=50), numbered(4, 5, 3, first=70), [[90, 91]]]
    changed = whole(max_seq_length=12, across_documents=True)
    rows, left_out = rows_of_whole_sentences(documents, changed, separator=3)
    assert rows == [
        [10, 11, 12, 13, 14, 15, 3, 50, 51],
        [70, 71, 72, 73, 74, 75, 76, 77, 78],
        [79, 80, 81, 3, 90, 91],
    ]
    assert not left_out
    rng = np.random.default_rng(0)
    for length in range(5, 30):
        documents = [numbered(*rng.integers(1, 9, 4), first=100 * d) for d in range(1, 9)]
        changed = whole(max_seq_length=length, across_documents=True)
        rows, left_out = rows_of_whole_sentences(documents, changed, separator=3)
        found = [token for row in rows for token in row]
        assert all(3 not in (row[0], row[-1]) and 2 <= len(row) <= length - 2 for row in rows)
        tokens = [token for document in documents for sentence in document for token in sentence]
        kept = [token for token in found if token != 3]
        assert len(tokens) - len(kept) == left_out <= 0.4 * len(tokens)
        assert kept == [token for token in tokens if token in set(kept)]
    assert rows_of_whole_sentences([], changed, separator=3) == ([], 0)


def test_some_examples_of_whole_sentences_may_be_short():
    document = [[5, 6]] * 3000
    changed = whole(short_seq_prob=0.5)
    rows, left_out = rows_of_whole_sentences([document], changed)
    lengths = collections.Counter(map(len, rows))
    assert lengths[30] > 0.4 * len(rows) and len(lengths) > 10
    assert left_out == 0 and not any(length % 2 for length in lengths)
    assert rows_of_whole_sentences([document], changed)[0] == rows  # by the seed alone
    assert rows_of_whole_sentences([document], whole(short_seq_prob=0.5, random_seed=2))[0] != rows


@pytest.mark.parametrize(
    ("given", "objective", "draws_next", "short"),
    [
        ({}, "mlm_nsp", True, 0.1),
        ({"objective": "mlm_nsp"}, "mlm_nsp", True, 0.1),
        ({"random_next_sentence": False}, "mlm_sop", False, 0.1),
        ({"objective": "mlm_sop"}, "mlm_sop", False, 0.1),
        ({"objective": "mlm"}, "mlm", True, 0.0),
        ({"objective": "mlm", "short_seq_prob": 0.3}, "mlm", True, 0.3),
        ({"objective": "mlm_sop", "short_seq_prob": 0.0}, "mlm_sop", False, 0.0),
    ],
)
def test_the_objective_of_settings(given, objective, draws_next, short):
    made = CreationSettings(**given)
    assert (made.objective, made.random_next_sentence) == (objective, draws_next)
    assert made.short_seq_prob == short
    assert dataclasses.replace(made, dupe_factor=3).objective == objective
    # Pairs are described as before there was a choice, and so count as the same records.
    expected = {"masked_lm_prob", "short_seq_prob", "dupe_factor", "do_whole_word_mask"}
    expected |= {"max_seq_length", "max_predictions_per_seq", "random_next_sentence", "random_seed"}
    assert made.described().keys() == expected | ({"objective"} if objective == "mlm" else set())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"objective": "nsp"}, "objective is nsp; it must be one of mlm, mlm_nsp, mlm_sop."),
        (
            {"objective": "mlm", "random_next_sentence": False},
            "random_next_sentence is False; it must be True, since the objective is mlm.",
        ),
        (
            {"objective": "mlm_sop", "across_documents": True},
            "across_documents is True; it must be False, since the objective is mlm_sop.",
        ),
    ],
)
def test_objectives_that_do_not_go_together(given, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        CreationSettings(**given)
