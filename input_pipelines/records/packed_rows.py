"""Packed rows: several sequences in a row, so that little padding is computed.

Letters of the shapes: S sequences of a global batch, R rows, F length of a row in tokens, N slots.

A batch has the sequences that it would have without packing. How they are dealt to rows is a
function of their lengths alone, so a resumed training deals as an uninterrupted one does. Longest
first, each sequence goes into the fullest row that has room for it: "best fit decreasing" needs at
most 11/9 of the fewest rows, and 4 more (Johnson, 1973), and about the fewest in practice (Krell et
al., 2021, "Efficient sequence packing without cross-contamination", section 3.1).

The rows of a global batch are divided into equal parts, one after the other: one for each core, or
for each micro-batch of a core. In training the whole batch is dealt, and then divided. So what is
in a row, and with it the row's dropout, does not depend on the number of parts. A part has a slot
for each of its sequences, and empty slots, because all parts have the same number. Otherwise the
sequences are divided, and each part is dealt by itself: then the slots are the batch.
"""

import bisect
import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

# The features that have a value for each token of a row; the others have a value for each slot.
TOKEN_FEATURES = ("input_ids", "input_mask", "segment_ids")
FEATURES_OF_ROWS = (*TOKEN_FEATURES, "position_ids")
"""The features of a packed batch that have a row for each row of the batch."""


class Deal(NamedTuple):
    """Says where the sequences of a global batch are.

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


class Slots(NamedTuple):
    """Says which sequences some parts hold, and where.

    Attributes:
      numbers: int64 [N], the number of each slot's sequence in the global batch; -1: empty.
      starts: int64 [N], the place of its first token among the tokens of its part; 0: empty.
      rows_of_part: the number of rows of a part.
      num_parts: the number of parts.
    """

    numbers: np.ndarray
    starts: np.ndarray
    rows_of_part: int
    num_parts: int

    def share(self, number: int, num_shares: int) -> "Slots":
        """Returns the slots of one of several equal shares of the parts, such as a host's."""
        size = len(self.numbers) // num_shares
        place = slice(number * size, (number + 1) * size)
        num_parts = self.num_parts // num_shares
        return Slots(self.numbers[place], self.starts[place], self.rows_of_part, num_parts)


@dataclasses.dataclass(frozen=True)
class Packing:
    """Says how the global batches of a pipeline are packed.

    Attributes:
      row_length: F.
      num_parts: the number of parts of a global batch.
      deals_parts: whether each part is dealt by itself.
      rows_of_part: the number of rows of a part; None for as many as a batch needs.
      slots_of_part: the number of slots of a part; None for as many as a batch needs.
    """

    row_length: int
    num_parts: int
    deals_parts: bool = False
    rows_of_part: int | None = None
    slots_of_part: int | None = None

    def slots(self, lengths: np.ndarray) -> Slots:
        """Returns the slots of all parts of a global batch.

        Args:
          lengths: ints [S], the tokens of each sequence; 0 for what only pads a batch, and does not
            get a slot.

        Raises:
          ValueError: the sequences do not fit into the rows, or are more than the slots.
        """
        rows, offsets, num_rows = self._dealt(lengths)
        rows_of_part = self.rows_of_part or max(1, -(-num_rows // self.num_parts))
        order = np.lexsort((offsets, rows))[np.count_nonzero(rows < 0) :]
        parts, row_in_part = np.divmod(rows[order], rows_of_part)
        counts = np.bincount(parts, minlength=self.num_parts)
        slots_of_part = self.slots_of_part or max(1, counts.max())
        if len(counts) > self.num_parts or counts.max() > slots_of_part:
            raise ValueError(
                f"the sequences need {num_rows} rows, and {counts.max()} slots in a part; "
                f"there are {self.num_parts * rows_of_part} rows and {slots_of_part} slots"
            )
        firsts = np.cumsum(counts) - counts
        places = parts * slots_of_part + np.arange(len(order)) - firsts[parts]
        numbers = np.full(self.num_parts * slots_of_part, -1)
        starts = np.zeros_like(numbers)
        numbers[places] = order
        starts[places] = row_in_part * self.row_length + offsets[order]
        return Slots(numbers, starts, rows_of_part, self.num_parts)

    def _dealt(self, lengths):
        """Deals the batch, or each part of it; returns a `Deal` with the rows of the batch."""
        if not self.deals_parts:
            return deal(lengths, self.row_length)
        parts = [deal(part, self.row_length) for part in np.split(lengths, self.num_parts)]
        rows_of_part = self.rows_of_part or max(1, *(part.num_rows for part in parts))
        rows = [
            np.where(part.rows < 0, -1, part.rows + number * rows_of_part)
            for number, part in enumerate(parts)
        ]
        offsets = np.concatenate([part.offsets for part in parts])
        return Deal(np.concatenate(rows), offsets, self.num_parts * rows_of_part)

    def pack(
        self, slots: Slots, lengths: np.ndarray, batch: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Packs the sequences of some parts.

        Args:
          slots: the slots of the parts.
          lengths: ints [S], the tokens of each sequence of the global batch.
          batch: features by name, [N, ...], of each slot's sequence. TOKEN_FEATURES are [N, T],
            with T at least F, and each sequence is the beginning of its row there.

        Returns:
          The features. TOKEN_FEATURES are int32 [R, F], where `input_mask` is the number of a
          token's sequence in its row, from 1. There are three more: `position_ids` int32 [R, F],
          from 0 in each sequence; `sequence_starts` int32 [N], the place of each first token among
          the tokens of its part; and `sequence_numbers` int32 [N], the numbers of the sequences in
          the global batch; both are 0 for empty slots.
        """
        num_rows = slots.num_parts * slots.rows_of_part
        parts = np.repeat(np.arange(slots.num_parts), len(slots.numbers) // slots.num_parts)
        firsts = parts * slots.rows_of_part * self.row_length + slots.starts
        lengths = np.where(slots.numbers < 0, 0, lengths[slots.numbers])
        # The slot and the position of every token, and the token's place among all.
        owners = np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(len(owners)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        places = firsts[owners] + positions

        def rows_of(values):
            flat = np.zeros(num_rows * self.row_length, np.int32)
            flat[places] = values
            return flat.reshape(num_rows, self.row_length)

        packed = {name: values for name, values in batch.items() if name not in TOKEN_FEATURES}
        for name in TOKEN_FEATURES:
            packed[name] = rows_of(batch[name][owners, positions])
        packed["input_mask"] = rows_of(self._numbers_in_row(firsts, slots.numbers)[owners])
        packed["position_ids"] = rows_of(positions)
        packed["sequence_starts"] = slots.starts.astype(np.int32)
        packed["sequence_numbers"] = np.maximum(slots.numbers, 0).astype(np.int32)
        return packed

    def _numbers_in_row(self, firsts, numbers):
        """Returns the number of each slot's sequence in its row, from 1; slots are in order."""
        rows = np.where(numbers < 0, -1, firsts // self.row_length)
        used = rows[rows >= 0]
        in_row = np.zeros_like(rows)
        in_row[rows >= 0] = np.arange(len(used)) - np.searchsorted(used, used) + 1
        return in_row


def plan(packing: Packing, lengths: Iterable[np.ndarray], is_static: bool) -> tuple[Packing, float]:
    """Plans the rows of all batches of a pass or a training.

    Args:
      packing: a packing with as many rows and slots as a batch needs.
      lengths: ints [S] for each global batch, as `Packing.slots` takes them.
      is_static: whether all batches are to have the same number of rows, and of slots.

    Returns:
      (the packing, the share of the computed positions that are tokens).
    """
    num_parts, tokens, counts = packing.num_parts, 0, []  # for each batch, sequences of each row
    for of_batch in lengths:
        tokens += int(of_batch.sum())
        rows, _, num_rows = packing._dealt(of_batch)
        num_rows = -(-max(num_rows, 1) // num_parts) * num_parts
        counts.append(np.bincount(rows[rows >= 0], minlength=num_rows).astype(np.int32))
    if is_static:
        most = max(len(of_rows) for of_rows in counts) // num_parts
        slots = len(of_batch) // num_parts
        if not packing.deals_parts:
            slots = max(
                np.add.reduceat(of_rows, range(0, len(of_rows), most)).max() for of_rows in counts
            )
        packing = dataclasses.replace(packing, rows_of_part=most, slots_of_part=max(1, int(slots)))
        computed = len(counts) * most * num_parts
    else:
        computed = sum(map(len, counts))
    return packing, tokens / (computed * packing.row_length)
