import types

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from input_pipelines.records import packed_rows

LENGTHS = strategies.lists(strategies.integers(0, 16), max_size=40)


@hypothesis.given(LENGTHS)
def test_every_sequence_has_tokens_of_its_own(lengths):
    dealt = packed_rows.deal(np.array(lengths, int), 16)
    taken = np.zeros([dealt.num_rows, 16], int)
    for row, offset, length in zip(dealt.rows, dealt.offsets, lengths, strict=True):
        assert (row >= 0) == (length > 0)
        if length:
            taken[row, offset : offset + length] += 1
        assert offset + length <= 16
    assert taken.max(initial=0) <= 1 and taken.sum() == sum(lengths)
    assert taken.any(axis=1).all()


@hypothesis.given(LENGTHS)
def test_few_rows_are_needed(lengths):
    dealt = packed_rows.deal(np.array(lengths, int), 16)
    fewest = -(-sum(lengths) // 16)
    assert fewest <= dealt.num_rows <= max(2 * fewest - 1, fewest)  # at most one is below half full


def test_the_longest_come_first_and_the_fullest_row_that_has_room_is_taken():
    dealt = packed_rows.deal(np.array([3, 8, 5, 2, 0, 7]), 10)
    # The second row is numbered last: rows of long and of short sequences alternate.
    assert dealt.rows.tolist() == [2, 0, 1, 0, -1, 2]
    assert dealt.offsets.tolist() == [7, 0, 0, 8, 0, 0]
    assert dealt.num_rows == 3


def test_a_sequence_longer_than_a_row_is_refused():
    with pytest.raises(ValueError, match="a sequence has 17 tokens, and a row has 16"):
        packed_rows.deal(np.array([3, 17]), 16)


TOKENS = np.array([[11, 12, 0, 0, 0], [21, 22, 23, 24, 0], [0] * 5, [41, 0, 0, 0, 0]])
SIZES = np.array([2, 4, 0, 1])
# The lengths of batches are known by the batches' numbers.
ORDER = types.SimpleNamespace(record_numbers=lambda batch_number: batch_number)
BATCH = {
    "input_ids": TOKENS,
    "input_mask": (TOKENS > 0).astype(np.int32),
    "segment_ids": TOKENS % 2,
    "label_ids": np.array([1, 2, 0, 4]),
}


def packed_by(packing):
    slots = packing.slots(SIZES)
    batch = {name: values[slots.numbers] for name, values in BATCH.items()}
    return slots, packing.pack(slots, SIZES, batch)


def test_a_packed_batch():
    slots, packed = packed_by(packed_rows.Packing(5, 1, rows_of_part=3, slots_of_part=4))
    assert slots.numbers.tolist() == [1, 3, 0, -1]
    assert packed["input_ids"].tolist() == [[21, 22, 23, 24, 41], [11, 12, 0, 0, 0], [0] * 5]
    assert packed["input_mask"].tolist() == [[1, 1, 1, 1, 2], [1, 1, 0, 0, 0], [0] * 5]
    assert packed["segment_ids"].tolist() == [[1, 0, 1, 0, 1], [1, 0, 0, 0, 0], [0] * 5]
    assert packed["position_ids"].tolist() == [[0, 1, 2, 3, 0], [0, 1, 0, 0, 0], [0] * 5]
    assert packed["sequence_starts"].tolist() == [0, 4, 5, 0]
    assert packed["sequence_numbers"].tolist() == [1, 3, 0, 0]
    assert packed["label_ids"].tolist()[:3] == [2, 4, 1]
    assert {values.dtype for name, values in packed.items() if name != "label_ids"} == {
        np.dtype(np.int32)
    }


def test_the_rows_of_a_batch_do_not_depend_on_the_number_of_parts():
    _, whole = packed_by(packed_rows.Packing(5, 1))
    slots, parts = packed_by(packed_rows.Packing(5, 2))
    assert slots.numbers.tolist() == [1, 3, 0, -1]
    for name in (*packed_rows.TOKEN_FEATURES, "position_ids"):
        np.testing.assert_array_equal(whole[name], parts[name])
    assert parts["sequence_starts"].tolist() == [0, 4, 0, 0]
    assert whole["sequence_starts"].tolist() == [0, 4, 5]


def test_neighbouring_rows_have_about_as_many_sequences_as_others():
    lengths = np.random.default_rng(1).integers(1, 513, 4096)
    rows = packed_rows.deal(lengths, 512).rows
    in_blocks = np.add.reduceat(np.bincount(rows), range(0, rows.max() + 1, 8))[:-1]
    assert in_blocks.min() >= 0.7 * in_blocks.mean() and in_blocks.max() <= 1.3 * in_blocks.mean()


WORDS = {
    "masked_lm_positions": np.array([[1, 0], [0, 3], [0, 0], [0, 0]]),
    "masked_lm_ids": np.array([[12, 0], [21, 24], [7, 7], [41, 7]]),
    "masked_lm_weights": np.float32([[1, 0], [1, 1], [1, 1], [1, 0]]),  # the third pads the batch
}


def test_words_to_predict_are_of_the_parts():
    packing = packed_rows.Packing(5, 2, predictions_of_part=3)
    slots = packing.slots(SIZES)
    batch = {name: values[slots.numbers] for name, values in (BATCH | WORDS).items()}
    packed = packing.pack(slots, SIZES, batch)
    assert packed["masked_lm_positions"].tolist() == [0, 3, 4, 1, 0, 0]
    assert packed["masked_lm_ids"].tolist() == [21, 24, 41, 12, 0, 0]
    assert packed["masked_lm_weights"].tolist() == [1, 1, 1, 1, 0, 0]
    packing = packed_rows.Packing(5, 2, predictions_of_part=2)
    with pytest.raises(ValueError, match="3 words to predict; 2 were planned"):
        packing.pack(slots, SIZES, batch)


def test_a_plan_by_the_first_batches_has_rows_to_spare():
    """Batches of 15 or 16 rows have as many for each of 4 parts: 4. Later ones may have 17."""
    rng = np.random.default_rng(1)

    def lengths_of(number):  # sequences that need a row each, and padding of the batch
        return np.pad(np.full(16 - rng.integers(2), 32), (0, 2**18 - 16))[: 2**18]

    packing, _ = packed_rows.plan(packed_rows.Packing(32, 4), lengths_of, 10**6, True)
    assert packing.rows_of_part == 5
    packing, _ = packed_rows.plan(packed_rows.Packing(32, 4), lengths_of, 16, True)
    assert packing.rows_of_part == 4  # all batches are planned


@pytest.mark.parametrize("planned", [None, 20 * 24])
def test_the_plan_of_a_training_has_room_for_every_batch(planned, monkeypatch):
    if planned:
        monkeypatch.setattr(packed_rows, "_PLANNED_SEQUENCES", planned)
    asked, words = [], lambda lengths: np.clip(lengths // 6, 1, 4)

    def lengths_of(number):
        asked.append(number)
        return np.random.default_rng(number).integers(0, 33, 24)

    fillings = []
    for skips_empty in (False, True):
        packs = packed_rows.Packs(200, 3, skips_empty=skips_empty, report=fillings.append)
        packing = packs.slot_order(ORDER, lengths_of, 32, 6, 4, predictions=words).packing
    assert packing.num_parts == 8 and max(asked) == (19 if planned else 199)
    tokens, used = 0, 0
    for number in range(200):
        lengths = lengths_of(number)
        slots = packing.slots(lengths)
        weights = np.arange(4) < words(lengths[slots.numbers])[:, np.newaxis]
        batch = {name: np.zeros([len(weights), 32], int) for name in packed_rows.TOKEN_FEATURES}
        batch |= dict.fromkeys(packed_rows.PREDICTION_FEATURES, np.float32(weights))
        packed = packing.pack(slots, lengths, batch)
        tokens, used = tokens + lengths.sum(), used + packed["input_mask"].any(axis=1).sum()
    rows = 8 * packing.rows_of_part
    assert planned or packing.slots_of_part < 24
    assert packing.predictions_of_part < 4 * 24
    if not planned:
        empty_share = pytest.approx(1 - used / (200 * rows))
        unpacked_share = tokens / (200 * 24 * 32)
        assert fillings == [
            (32, rows, tokens / (200 * rows * 32), empty_share, unpacked_share, False),
            (32, rows, tokens / (used * 32), empty_share, unpacked_share, True),
        ]
        sizes = {packing.slots(lengths_of(n)).numbers.size for n in range(200)}
        assert sizes == {8 * packing.slots_of_part}


def test_batches_of_a_single_core_have_as_many_rows_as_they_need():
    lengths = [np.array([3, 3, 3]), np.array([1, 2, 2])]
    packs = packed_rows.Packs(2, is_static=False)
    packing = packs.slot_order(ORDER, lengths.__getitem__, 5, 3, 1).packing
    assert packing == packed_rows.Packing(5, 1)
    assert [packing.slots(of_batch).rows_of_part for of_batch in lengths] == [3, 1]


@pytest.mark.parametrize(("rows", "slots"), [(1, 4), (3, 2)])
def test_what_does_not_fit_is_an_error(rows, slots):
    packing = packed_rows.Packing(5, 1, False, rows, slots)
    with pytest.raises(ValueError, match=r"needs 2 packed rows, with \d sequences for a core"):
        packing.slots(SIZES)


def test_parts_may_be_dealt_by_themselves():
    slots, packed = packed_by(packed_rows.Packing(5, 2, deals_parts=True, slots_of_part=2))
    assert slots.numbers.tolist() == [1, 0, 3, -1]
    assert packed["input_ids"].tolist() == [
        [21, 22, 23, 24, 0], [11, 12, 0, 0, 0], [41, 0, 0, 0, 0], [0] * 5
    ]  # fmt: skip
    assert packed["sequence_starts"].tolist() == [0, 5, 0, 0]


def test_a_batch_of_padding():
    slots = packed_rows.Packing(5, 2).slots(np.zeros(3, int))
    assert slots.numbers.tolist() == [-1, -1]
    assert slots.rows_of_part == 1
