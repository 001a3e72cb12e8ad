import functools

import numpy as np
import pytest

from bert_estimator.command_line.choices import MASKING_UNITS
from input_pipelines.records.masking import MaskedExamples

CLS, SEP, MASK = 2, 3, 4


def rules(tokenizer, prob=0.15, most=20, unit="token"):
    """Returns a function of a seed that returns what masks by these rules."""
    return functools.partial(MaskedExamples, tokenizer, 32, prob, most, unit)


def rows_of(sequences, length):
    """Pads sequences; returns (ids, what may be masked, lengths)."""
    ids = np.zeros([len(sequences), length], np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
    return ids, ids > MASK, np.array([len(sequence) for sequence in sequences])


def mask(masking, sequences, length, seed=1, epoch=0, first=0):
    ids, is_maskable, lengths = rows_of(sequences, length)
    numbers = np.arange(first, first + len(ids))
    masked = masking(seed).mask(ids, is_maskable, lengths, numbers, np.full(len(ids), epoch))
    return ids, masked


def assert_meaning(ids, masked, is_maskable):
    for row in range(len(ids)):
        number = int(masked.weights[row].sum())
        positions = masked.positions[row, :number]
        assert (np.diff(positions) > 0).all() and is_maskable[row, positions].all()
        np.testing.assert_array_equal(masked.labels[row, :number], ids[row, positions])
        assert not masked.weights[row, number:].any() and not masked.labels[row, number:].any()
        assert not masked.positions[row, number:].any()
        unchosen = np.setdiff1d(np.arange(ids.shape[1]), positions)
        np.testing.assert_array_equal(masked.input_ids[row, unchosen], ids[row, unchosen])


@pytest.mark.parametrize("unit", MASKING_UNITS)
def test_meaning_and_numbers(tokenizer, unit):
    sequences = [
        [CLS, *[5 + i % 40 for i in range(a)], SEP, *[25 + i % 20 for i in range(b)], SEP]
        for a, b in [(1, 1), (9, 8), (17, 17), (60, 60), (2, 120), (1, 0)]
    ]
    ids, masked = mask(rules(tokenizer, unit=unit), sequences, 130)
    assert_meaning(ids, masked, ids > MASK)
    expected = [min(20, max(1, round(0.15 * len(sequence)))) for sequence in sequences]
    assert masked.weights.sum(axis=1).tolist() == expected
    _, few = mask(rules(tokenizer, 1.0, 9, unit), sequences, 130)
    assert few.weights.sum(axis=1).tolist() == [2, 9, 9, 9, 9, 1]


def test_padding_is_not_masked(tokenizer):
    for unit in MASKING_UNITS:
        _, masked = mask(rules(tokenizer, unit=unit), [[], [CLS, 5, SEP, 6, SEP]], 8)
        assert masked.weights.sum(axis=1).tolist() == [0, 1]
        assert not masked.input_ids[0].any()


@pytest.mark.parametrize("unit", ["token", "word"])
def test_statistics(tokenizer, unit):
    sequence = [CLS, *[5] * 50, SEP, *[5] * 50, SEP]
    ids, masked = mask(rules(tokenizer, unit=unit), [sequence] * 2000, 110)
    assert (masked.weights.sum(axis=1) == 15).all()  # 15 % of 103
    rows = np.arange(len(ids))[:, None]
    replaced = masked.input_ids[rows, masked.positions][masked.weights > 0]
    shares = {kind: (replaced == kind).mean() for kind in (MASK, 5)}
    # Five standard deviations of 30,000 draws; a random token is either in 2 of 50 cases.
    assert abs(shares[MASK] - 0.802) < 0.0115 and abs(shares[5] - 0.102) < 0.0088
    assert set(replaced) == set(range(50))  # random tokens come from the whole vocabulary
    random_ids = np.bincount(replaced[(replaced != MASK) & (replaced != 5)], minlength=50)
    assert random_ids[random_ids > 0].min() > 30 and random_ids.max() < 100  # 60 on average
    # Every place is masked as often as any other, and neighbours independently of each other.
    is_masked = np.zeros(ids.shape, bool)
    is_masked[rows, masked.positions] = masked.weights > 0
    shares = is_masked[:, (ids[0] == 5)].mean(axis=0)
    assert abs(shares - 0.15).max() < 5 * np.sqrt(0.15 * 0.85 / 2000)
    together = (is_masked[:, 1:50] & is_masked[:, 2:51]).mean()
    assert abs(together - 15 * 14 / (100 * 99)) < 0.003


def test_whole_words_are_masked_together(tokenizer):
    # Words: 5 | 6 45 46 | 7 | 8 47, and in the second segment 9 48 | 10.
    ids = [CLS, 5, 6, 45, 46, 7, 8, 47, SEP, 9, 48, 10, SEP]
    words = [{1}, {2, 3, 4}, {5}, {6, 7}, {9, 10}, {11}]
    _, masked = mask(rules(tokenizer, 0.3, unit="word"), [ids] * 300, 16)
    seen = set()
    for row in range(300):
        chosen = set(masked.positions[row, masked.weights[row] > 0].tolist())
        # After the three single tokens no word of two pieces fits into four.
        assert len(chosen) == 4 or chosen == {1, 5, 11}
        for number, word in enumerate(words):
            assert word <= chosen or not word & chosen
            if word <= chosen:
                seen.add(number)
    assert seen == set(range(len(words)))


def test_a_cut_word_does_not_join_the_segment_before(tokenizer):
    ids = [CLS, 45, 5, SEP, 46, 6, SEP]
    _, masked = mask(rules(tokenizer, unit="word"), [ids] * 20, 8)
    assert (masked.weights.sum(axis=1) == 1).all()


def test_a_word_longer_than_what_may_be_masked_stays(tokenizer):
    sequence = [CLS, 5, 45, 46, SEP, 6, 47, SEP]
    ids, masked = mask(rules(tokenizer, 0.01, unit="word"), [sequence], 8)
    assert not masked.weights.any()
    np.testing.assert_array_equal(masked.input_ids, ids)


@pytest.mark.parametrize("unit", MASKING_UNITS)
def test_masks_are_a_function_of_seed_epoch_and_record(tokenizer, unit):
    masking = rules(tokenizer, unit=unit)
    sequences = [[CLS, *range(5, 25), SEP, *range(25, 45), SEP]] * 12

    def masks(**changes):
        _, masked = mask(masking, sequences, 48, **changes)
        return masked

    whole = masks()
    for row in range(12):  # Other records of the batch do not matter, nor does padding.
        ids, is_maskable, lengths = rows_of(sequences[:1], 60)
        alone = masking(1).mask(ids, is_maskable, lengths, np.array([row]), np.array([0]))
        np.testing.assert_array_equal(alone.input_ids[0, :48], whole.input_ids[row])
        np.testing.assert_array_equal(alone.positions[0], whole.positions[row])
    for changes in ({"seed": 2}, {"epoch": 1}, {"first": 12}):
        other = masks(**changes)
        assert (other.positions != whole.positions).any(axis=1).all()
    np.testing.assert_array_equal(masks().input_ids, whole.input_ids)
    np.testing.assert_array_equal(masks(seed=1 + 2**64).input_ids, whole.input_ids)


PINNED = {
    "token": (
        [1, 2, 12, 13, 16, 18],
        [2, 4, 4, 7, 8, 9, 10, 11, 12, 13, 14, 3, 4, 4, 27, 28, 4, 30, 4, 32, 3, 0],
    ),
    "word": (
        [1, 2, 3, 12, 13, 14],
        [2, 4, 4, 45, 8, 9, 10, 46, 12, 13, 14, 3, 4, 4, 4, 28, 29, 48, 31, 32, 3, 0],
    ),
    "span": (
        [2, 3, 4, 5, 6, 7],
        [2, 5, 4, 4, 4, 4, 4, 4, 12, 13, 14, 3, 25, 26, 47, 28, 29, 48, 31, 32, 3, 0],
    ),
}


@pytest.mark.parametrize("unit", MASKING_UNITS)
def test_pinned_masks(tokenizer, unit):
    """Masks of records stay as they are, whatever becomes of the code: runs go on with them."""
    sequence = [CLS, *range(5, 15), SEP, *range(25, 33), SEP]
    if unit != "token":
        sequence[3], sequence[7], sequence[14], sequence[17] = 45, 46, 47, 48
    _, masked = mask(rules(tokenizer, 0.3, unit=unit), [sequence], 22, seed=7)
    positions, ids = PINNED[unit]
    assert masked.positions[0, : len(positions) + 1].tolist() == [*positions, 0]
    assert masked.input_ids[0].tolist() == ids


def spans_of(masked, row):
    """Returns the runs of masked places of a row, as arrays."""
    places = masked.positions[row, masked.weights[row] > 0]
    return np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)


def test_lengths_of_spans(tokenizer):
    """They are geometric, of 1 to 10 words; so little is masked that spans seldom touch."""
    sequence = [CLS, *[5] * 1000, SEP, 6, SEP]
    _, masked = mask(rules(tokenizer, 1.0, 40, "span"), [sequence] * 2000, 1005)
    assert (masked.weights.sum(axis=1) == 40).all()
    lengths = np.array([len(span) for row in range(2000) for span in spans_of(masked, row)])
    counts = np.bincount(lengths, minlength=11)
    expected = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)
    # The last span of a row is cut, and some spans meet, which makes few much longer.
    assert abs(counts[1:11] / counts.sum() - expected).max() < 0.035
    assert counts[11:].sum() < 0.07 * counts.sum()
    assert abs(lengths.mean() - 3.8) < 0.25


def test_spans_are_of_whole_words_and_stay_in_their_segment(tokenizer):
    # A word of one token and of three in turn, and a segment of one word.
    sequence = [CLS, *[5, 6, 45, 46] * 10, SEP, 7, SEP]
    _, masked = mask(rules(tokenizer, 0.5, 20, "span"), [sequence] * 400, 44)
    assert (masked.weights.sum(axis=1) <= 20).all() and masked.weights.sum() > 0.95 * 20 * 400
    longest = 0
    for row in range(400):
        chosen = set(masked.positions[row, masked.weights[row] > 0].tolist())
        for first in range(2, 42, 4):
            assert {first, first + 1, first + 2} <= chosen or not {first, first + 1} & chosen
        longest = max(longest, *map(len, spans_of(masked, row)))
    assert longest > 10


def test_what_replaces_a_span_is_drawn_once_for_it(tokenizer):
    """A span becomes masks, random tokens, or stays (SpanBERT paper, section 3.1)."""
    sequence = [CLS, *range(5, 45), SEP, *range(5, 45), SEP]
    ids, masked = mask(rules(tokenizer, 0.06, 5, "span"), [sequence] * 3000, 84)
    whole = {"masks": 0, "random": 0, "as it was": 0, "mixed": 0}
    for row in range(len(ids)):
        for span in spans_of(masked, row):
            is_mask = masked.input_ids[row, span] == MASK
            is_same = masked.input_ids[row, span] == ids[row, span]
            kinds = np.where(is_mask, "masks", np.where(is_same, "as it was", "random"))
            whole[kinds[0] if len(set(kinds)) == 1 else "mixed"] += 1
    number = sum(whole.values())
    # Two spans of a row may touch, and a random token may be the old one, or a mask.
    assert whole["mixed"] < 0.05 * number
    assert abs(whole["masks"] / number - 0.8) < 0.04
    assert min(whole["random"], whole["as it was"]) > 0.07 * number


def test_what_continues_a_word_may_be_told(tokenizer):
    """Then the pieces of the vocabulary do not matter."""
    sequence = [CLS, 5, 6, 45, 46, 7, 8, SEP, 9, 10, 11, SEP]
    told = np.array([0, 1, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0])  # also of what is not masked
    ids, is_maskable, lengths = rows_of([sequence] * 300, 12)
    masker = rules(tokenizer, 0.3, unit="word")(1)
    masked = masker.mask(
        ids, is_maskable, lengths, np.arange(300), np.zeros(300, int), np.tile(told, (300, 1))
    )
    words, seen = [{1, 2}, {3}, {4, 5}, {6}, {8}, {9, 10}], set()
    for row in range(300):
        chosen = set(masked.positions[row, masked.weights[row] > 0].tolist())
        assert 0 < len(chosen) <= 4
        assert all(word <= chosen or not word & chosen for word in words)
        seen |= chosen
    assert seen == set(range(1, 11)) - {7}
