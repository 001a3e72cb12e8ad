"""Packed rows: several sequences in a row, so that little padding is computed.

Letters of the shapes: S sequences of a batch, R rows, F length of a row in tokens.

A batch has the sequences that it would have without packing. How they are dealt to rows is a
function of their lengths alone, so a resumed training deals as an uninterrupted one does. Longest
first, each sequence goes into the fullest row that has room for it: "best fit decreasing" needs at
most 11/9 of the fewest rows, and 4 more (Johnson, 1973), and about the fewest in practice (Krell et
al., 2021, "Efficient sequence packing without cross-contamination", section 3.1).
"""

import bisect
import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

# The features that have a value for each token of a row; the others have a row for each sequence.
TOKEN_FEATURES = ("input_ids", "input_mask", "segment_ids")
FEATURES_OF_ROWS = (*TOKEN_FEATURES, "position_ids")
"""The features of a packed batch that have a row for each row of the batch."""


class Deal(NamedTuple):
    """Says where the sequences of a batch are.

    Attributes:
      rows: int64 [S], the row of each sequence; -1 for sequences without tokens.
      offsets: int64 [S], the place of its first token in the row.
      num_rows: the number of rows that have a token.
    """

    rows: np.ndarray
    offsets: np.ndarray
    num_rows: int


def deal(lengths: np.ndarray, row_length: int) -> Deal:
    """Deals sequences to rows.

    Args:
      lengths: ints [S], the tokens of each sequence; 0 for what only pads a batch.
      row_length: F.

    Raises:
      ValueError: a sequence is longer than a row.
    """
    longest = max(lengths, default=0)
    if longest > row_length:
        raise ValueError(f"a sequence has {longest} tokens, and a row has {row_length}")
    rows = np.full(len(lengths), -1)
    offsets = np.zeros(len(lengths), np.int64)
    num_rows = 0
    free = []  # (tokens that are free, row), sorted; among equal rows the first is taken
    for sequence in np.argsort(-np.asarray(lengths), kind="stable"):
        length = int(lengths[sequence])
        if not length:
            break
        place = bisect.bisect_left(free, (length, 0))
        if place < len(free):
            left, row = free.pop(place)
        else:
            left, row = row_length, num_rows
            num_rows += 1
        rows[sequence], offsets[sequence] = row, row_length - left
        if left > length:
            bisect.insort(free, (left - length, row))
    return Deal(rows, offsets, num_rows)


@dataclasses.dataclass(frozen=True)
class Packing:
    """Says how the batches of a pipeline are packed.

    Attributes:
      row_length: F.
      part_size: sequences that are dealt together: those of a core, or of a micro-batch of it.
      num_rows: R of each part; None for as many as a batch needs, the same number for each part.
    """

    row_length: int
    part_size: int
    num_rows: int | None

    def pack(self, batch: Mapping[str, np.ndarray], lengths: np.ndarray) -> dict[str, np.ndarray]:
        """Packs the parts of a batch, each by itself; see `pack`.

        Sequence starts are places among the tokens of the sequence's own part.
        """
        parts = [slice(n, n + self.part_size) for n in range(0, len(lengths), self.part_size)]
        num_rows = self.num_rows or most_rows((lengths[part] for part in parts), self.row_length)
        packed = [
            pack(
                {name: values[part] for name, values in batch.items()},
                lengths[part],
                self.row_length,
                num_rows,
            )
            for part in parts
        ]
        return {name: np.concatenate([part[name] for part in packed]) for name in packed[0]}


def most_rows(lengths_of_parts: Iterable[np.ndarray], row_length: int) -> int:
    """Returns the number of rows that suffices for each part; at least 1."""
    return max((deal(lengths, row_length).num_rows for lengths in lengths_of_parts), default=1) or 1


def pack(
    batch: Mapping[str, np.ndarray], lengths: np.ndarray, row_length: int, num_rows: int
) -> dict[str, np.ndarray]:
    """Packs the sequences of a batch.

    Args:
      batch: features by name, [S, ...]. TOKEN_FEATURES are [S, T], and each sequence is the
        beginning of its row there.
      lengths: ints [S], the tokens of each sequence.
      row_length: F, at most T.
      num_rows: R, at least as many as `deal` needs; rows that are left are padding.

    Returns:
      The features. TOKEN_FEATURES are int32 [R, F], where `input_mask` is the number of a token's
      sequence in its row, from 1. There are two more: `position_ids` int32 [R, F], from 0 in each
      sequence, and `sequence_starts` int32 [S], the place of each first token among the R * F
      tokens; 0 for sequences without tokens.

    Raises:
      ValueError: the sequences do not fit into the rows.
    """
    dealt = deal(lengths, row_length)
    if dealt.num_rows > num_rows:
        raise ValueError(f"the sequences need {dealt.num_rows} rows, and there are {num_rows}")
    starts = np.maximum(dealt.rows, 0) * row_length + dealt.offsets
    # The sequence and the position of every token, and the token's place in the rows.
    lengths = np.asarray(lengths)
    sequences = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(sequences)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = starts[sequences] + positions

    def rows_of(values):
        flat = np.zeros(num_rows * row_length, np.int32)
        flat[places] = values
        return flat.reshape(num_rows, row_length)

    packed = {name: values for name, values in batch.items() if name not in TOKEN_FEATURES}
    for name in TOKEN_FEATURES:
        packed[name] = rows_of(batch[name][sequences, positions])
    packed["input_mask"] = rows_of(_numbers_in_row(dealt)[sequences])
    packed["position_ids"] = rows_of(positions)
    packed["sequence_starts"] = starts.astype(np.int32)
    return packed


def _numbers_in_row(dealt):
    """Returns the number of each sequence in its row, from 1, in the order of the offsets."""
    order = np.lexsort((dealt.offsets, dealt.rows))
    rows = dealt.rows[order]
    firsts = np.searchsorted(rows, rows)  # where the sequence's row begins in the order
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order)) - firsts + 1
    return numbers
