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
    assert dealt.rows.tolist() == [1, 0, 2, 0, -1, 1]
    assert dealt.offsets.tolist() == [7, 0, 0, 8, 0, 0]
    assert dealt.num_rows == 3


def test_a_sequence_longer_than_a_row_is_refused():
    with pytest.raises(ValueError, match="a sequence has 17 tokens, and a row has 16"):
        packed_rows.deal(np.array([3, 17]), 16)


TOKENS = np.array([[11, 12, 0, 0, 0], [21, 22, 23, 24, 0], [0] * 5, [41, 0, 0, 0, 0]])
SIZES = np.array([2, 4, 0, 1])
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
    for name in packed_rows.FEATURES_OF_ROWS:
        np.testing.assert_array_equal(whole[name], parts[name])
    assert parts["sequence_starts"].tolist() == [0, 4, 0, 0]
    assert whole["sequence_starts"].tolist() == [0, 4, 5]


@pytest.mark.parametrize(("rows", "slots"), [(1, 4), (3, 2)])
def test_what_does_not_fit_is_an_error(rows, slots):
    packing = packed_rows.Packing(5, 1, False, rows, slots)
    with pytest.raises(ValueError, match=r"need 2 rows, and \d slots in a part; there are"):
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
