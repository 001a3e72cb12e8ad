import functools

import numpy as np
import pytest

from input_pipelines.records.masking import MaskedExamples

CLS, SEP, MASK = 2, 3, 4


def rules(tokenizer, prob=0.15, most=20, whole_words=False):
    """Returns a function of a seed that returns what masks by these rules."""
    return functools.partial(MaskedExamples, tokenizer, 32, prob, most, whole_words)


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


@pytest.mark.parametrize("whole_words", [False, True])
def test_meaning_and_numbers(tokenizer, whole_words):
    sequences = [
        [CLS, *[5 + i % 40 for i in range(a)], SEP, *[25 + i % 20 for i in range(b)], SEP]
        for a, b in [(1, 1), (9, 8), (17, 17), (60, 60), (2, 120), (1, 0)]
    ]
    ids, masked = mask(rules(tokenizer, whole_words=whole_words), sequences, 130)
    assert_meaning(ids, masked, ids > MASK)
    expected = [min(20, max(1, round(0.15 * len(sequence)))) for sequence in sequences]
    assert masked.weights.sum(axis=1).tolist() == expected
    _, few = mask(rules(tokenizer, 1.0, 9, whole_words), sequences, 130)
    assert few.weights.sum(axis=1).tolist() == [2, 9, 9, 9, 9, 1]


def test_padding_is_not_masked(tokenizer):
    for whole_words in (False, True):
        _, masked = mask(rules(tokenizer, whole_words=whole_words), [[], [CLS, 5, SEP, 6, SEP]], 8)
        assert masked.weights.sum(axis=1).tolist() == [0, 1]
        assert not masked.input_ids[0].any()


@pytest.mark.parametrize("whole_words", [False, True])
def test_statistics(tokenizer, whole_words):
    sequence = [CLS, *[5] * 50, SEP, *[5] * 50, SEP]
    ids, masked = mask(rules(tokenizer, whole_words=whole_words), [sequence] * 2000, 110)
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
    _, masked = mask(rules(tokenizer, 0.3, whole_words=True), [ids] * 300, 16)
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
    _, masked = mask(rules(tokenizer, whole_words=True), [ids] * 20, 8)
    assert (masked.weights.sum(axis=1) == 1).all()


def test_a_word_longer_than_what_may_be_masked_stays(tokenizer):
    sequence = [CLS, 5, 45, 46, SEP, 6, 47, SEP]
    ids, masked = mask(rules(tokenizer, 0.01, whole_words=True), [sequence], 8)
    assert not masked.weights.any()
    np.testing.assert_array_equal(masked.input_ids, ids)


@pytest.mark.parametrize("whole_words", [False, True])
def test_masks_are_a_function_of_seed_epoch_and_record(tokenizer, whole_words):
    masking = rules(tokenizer, whole_words=whole_words)
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


def test_pinned_masks(tokenizer):
    sequence = [CLS, *range(5, 15), SEP, *range(25, 33), SEP]
    _, masked = mask(rules(tokenizer, 0.3), [sequence], 22, seed=7)
    assert masked.positions[0, :7].tolist() == [1, 2, 12, 13, 16, 18, 0]
    assert masked.input_ids[0].tolist() == [
        2, 4, 4, 7, 8, 9, 10, 11, 12, 13, 14, 3, 4, 4, 27, 28, 4, 30, 4, 32, 3, 0,
    ]  # fmt: skip
