"""Packed rows: several sequences in a row, so that little padding is computed.

Letters of the shapes: S sequences of a global batch, R rows, F length of a row in tokens, N slots.

A batch has the sequences that it would have without packing. The rows of a global batch are divided
into equal parts, one after the other: one for each core, or for each micro-batch of a core. A part
has a slot for each of its sequences, and a number of words to predict, which are at places of its
tokens. All parts have the same number of slots and of words, so some of them are empty.
"""

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from input_pipelines.records.order import BatchOrder

# The features that have a value for each token of a row; the others have a value for each slot.
TOKEN_FEATURES = ("input_ids", "input_mask", "segment_ids")
PREDICTION_FEATURES = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
"""The features that have a value for each word to predict."""

_UNPACKED = (
    "Give --nopack with another --output_dir; --init_checkpoint starts it from this run's weights"
)
_GOLDEN = 2654435769  # 2^32 times the golden ratio: places that it steps over lie evenly


class PackingError(ValueError):
    """Says that a batch does not fit into the rows that were planned, and what to do."""


class Deal(NamedTuple):
    """Says where the sequences of a global batch are."""

    rows: np.ndarray  # int64 [S], the row of each sequence; -1 for sequences without tokens
    offsets: np.ndarray  # int64 [S], the place of its first token in the row
    num_rows: int  # of the rows that have a token


def deal(lengths: np.ndarray, row_length: int) -> Deal:
    """Deals sequences to rows by their lengths, ints [S]; 0 is for what only pads a batch."""
    lengths = np.asarray(lengths)
    longest = lengths.max(initial=0)
    if longest > row_length:
        raise ValueError(f"a sequence has {longest} tokens, and a row has {row_length}")
    # Longest first, each sequence goes into the fullest row that has room for it: "best fit
    # decreasing" needs at most 11/9 of the fewest rows, and 4 more (Johnson, 1973), and about the
    # fewest in practice (Krell et al., 2021, "Efficient sequence packing without
    # cross-contamination", section 3.1). The lengths alone decide, so a resumed training deals as
    # an uninterrupted one does.
    order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    rows, offsets = np.full(len(lengths), -1), np.zeros(len(lengths), np.int64)
    num_rows, taken, begins = 0, [], []
    rows_with, rooms = {}, []  # how many tokens are free -> rows; the keys, sorted
    for length in lengths[order].tolist():
        place = bisect.bisect_left(rooms, length)
        if place < len(rooms):
            room = rooms[place]
            row = rows_with[room].pop()
            if not rows_with[room]:
                del rows_with[room], rooms[place]
        else:
            room, row = row_length, num_rows
            num_rows += 1
        taken.append(row)
        begins.append(row_length - room)
        # A row that is full is forgotten: the search looks at rows with room alone.
        if room > length:
            if room - length not in rows_with:
                rows_with[room - length] = []
                bisect.insort(rooms, room - length)
            rows_with[room - length].append(row)
    # Neighbours are rows of any kind: the first have long sequences, and the last have short ones.
    numbers = np.empty(num_rows, np.int64)
    numbers[np.argsort(np.arange(num_rows, dtype=np.uint64) * _GOLDEN % 2**32)] = range(num_rows)
    rows[order], offsets[order] = numbers[np.array(taken, int)], begins
    return Deal(rows, offsets, num_rows)


class Slots(NamedTuple):
    """Says which sequences some parts hold, and where."""

    numbers: np.ndarray  # int64 [N], each slot's sequence in the global batch; -1 if it is empty
    # int64 [N], the place of its first token among the tokens of its part; 0 if it is empty
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
    """Says how the global batches of a pipeline are packed."""

    row_length: int  # F
    num_parts: int
    deals_parts: bool = False  # whether each part is dealt by itself
    # None stands for as many as a batch needs.
    rows_of_part: int | None = None
    slots_of_part: int | None = None
    predictions_of_part: int | None = None

    def slots(self, lengths: np.ndarray) -> Slots:
        """Returns the slots of all parts of a global batch, by its numbers of tokens, ints [S]; a
        sequence of 0 tokens only pads the batch, and does not get a slot."""
        rows, offsets, num_rows = self._dealt(lengths)
        rows_of_part = self.rows_of_part or max(1, -(-num_rows // self.num_parts))
        # Sequences without tokens have the row -1, so they are the first, and are left out.
        order = np.lexsort((offsets, rows))[np.count_nonzero(rows < 0) :]
        parts, row_in_part = np.divmod(rows[order], rows_of_part)
        counts = np.bincount(parts, minlength=self.num_parts)
        slots_of_part = self.slots_of_part or max(1, counts.max())
        if len(counts) > self.num_parts or counts.max() > slots_of_part:
            raise PackingError(
                f"a batch needs {num_rows} packed rows, with {counts.max()} sequences for a core "
                f"or micro-batch; {self.num_parts * rows_of_part} rows and {slots_of_part} "
                f"sequences were planned. {_UNPACKED}"
            )
        firsts = np.cumsum(counts) - counts
        places = parts * slots_of_part + np.arange(len(order)) - firsts[parts]
        numbers = np.full(self.num_parts * slots_of_part, -1)
        starts = np.zeros_like(numbers)
        numbers[places] = order
        # A start counts from the beginning of the part, since a core sees its own rows alone.
        starts[places] = row_in_part * self.row_length + offsets[order]
        return Slots(numbers, starts, rows_of_part, self.num_parts)

    def _dealt(self, lengths):
        """Deals the batch, or each part of it; returns a `Deal` with the rows of the batch."""
        # In training the whole batch is dealt, and then divided. So what is in a row, and with it
        # the row's dropout, does not depend on the number of parts. In a pass each part is dealt by
        # itself, so that its slots are its sequences.
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
        """Packs the sequences of some parts, whose features are [N, ...] by name.

        Args:
          lengths: ints [S], the tokens of each sequence of the global batch.
          batch: the features. TOKEN_FEATURES are [N, T], with T at least F, and each sequence is
            the beginning of its row there. PREDICTION_FEATURES are [N, P]; words whose weight is 0
            are padding.

        Returns:
          The features. TOKEN_FEATURES are int32 [R, F], where `input_mask` is the number of a
          token's sequence in its row, from 1. There are three more: `position_ids` int32 [R, F],
          from 0 in each sequence; `sequence_starts` int32 [N], the place of each first token among
          the tokens of its part; and `sequence_numbers` int32 [N], the numbers of the sequences in
          the global batch; both are 0 for empty slots. PREDICTION_FEATURES are [predictions of the
          parts]; a position is the place among the tokens of the part.
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

        others = (*TOKEN_FEATURES, *PREDICTION_FEATURES)
        packed = {name: values for name, values in batch.items() if name not in others}
        if PREDICTION_FEATURES[0] in batch:
            packed |= self._predictions(slots, parts, batch)
        for name in TOKEN_FEATURES:
            packed[name] = rows_of(batch[name][owners, positions])
        packed["input_mask"] = rows_of(self._numbers_in_row(firsts, slots.numbers)[owners])
        packed["position_ids"] = rows_of(positions)
        packed["sequence_starts"] = slots.starts.astype(np.int32)
        packed["sequence_numbers"] = np.maximum(slots.numbers, 0).astype(np.int32)
        return packed

    def _predictions(self, slots, parts, batch):
        """Returns the words to predict of the parts, each with as many as the others."""
        # An empty slot may hold the last sequence, gathered by the number -1: it does not count.
        is_used = (slots.numbers >= 0)[:, np.newaxis]
        owners, columns = np.nonzero(batch["masked_lm_weights"] * is_used)
        counts = np.bincount(parts[owners], minlength=slots.num_parts)
        of_part = self.predictions_of_part or max(1, counts.max())
        if counts.max() > of_part:
            raise PackingError(
                f"a core or micro-batch has {counts.max()} words to predict; {of_part} were "
                f"planned. {_UNPACKED}"
            )
        in_part = np.arange(len(owners)) - (np.cumsum(counts) - counts)[parts[owners]]
        predictions = {}
        for name in PREDICTION_FEATURES:
            values = batch[name][owners, columns]
            if name == "masked_lm_positions":
                values = values + slots.starts[owners]
            predictions[name] = np.zeros(slots.num_parts * of_part, batch[name].dtype)
            predictions[name][parts[owners] * of_part + in_part] = values
        return predictions

    def _numbers_in_row(self, firsts, numbers):
        """Returns the number of each slot's sequence in its row, from 1; slots are in order."""
        rows = np.where(numbers < 0, -1, firsts // self.row_length)
        used = rows[rows >= 0]
        in_row = np.zeros_like(rows)
        # The search finds the first slot of each row, since the rows of the slots are sorted.
        in_row[rows >= 0] = np.arange(len(used)) - np.searchsorted(used, used) + 1
        return in_row


class Filling(NamedTuple):
    """Says how full the rows of the batches of a pass or a training are."""

    row_length: int  # F
    rows: float  # of a batch, in the mean
    token_share: float  # of the computed positions
    empty_share: float  # of the rows
    unpacked_share: float  # of the positions, if each sequence had a row of its own
    skips_empty: bool  # whether empty rows are not computed

    def __str__(self) -> str:
        skipped = ", and are not computed" if self.skips_empty and self.empty_share else ""
        return (
            f"sequences share rows of {self.row_length} tokens, {self.rows:,.6g} a batch; "
            f"{self.empty_share:.1%} of them are empty{skipped}. {self.token_share:.1%} of the "
            f"computed positions are tokens; if each had a row of its own, "
            f"{self.unpacked_share:.1%} would be."
        )


# A longer training is planned by its first batches, with room for what is rarer than one batch of
# a thousand million: sums of many lengths, in a random order, are distributed normally.
_PLANNED_SEQUENCES = 2**22
_SPARE_DEVIATIONS = 4


def plan(
    packing: Packing,
    lengths_of: Callable[[int], np.ndarray],
    num_batches: int,
    is_static: bool,
    predictions: Callable[[np.ndarray], np.ndarray] | None = None,
    skips_empty: bool = False,
) -> tuple[Packing, Filling]:
    """Plans the rows of all batches; returns the packing, and how full its rows are.

    Args:
      lengths_of: function of a batch's number that returns its lengths, for `Packing.slots`.
      is_static: whether all batches are to have the same number of rows, slots and predictions.
      predictions: function of lengths that returns how many words are to be predicted at most; None
        if there are no words to predict.
    """
    num_parts, tokens, used = packing.num_parts, 0, 0
    counts, words = [], []  # of each batch: the sequences, and the predictions, of each row
    batch_size = max(1, len(lengths_of(0)))
    planned = min(num_batches, max(1, _PLANNED_SEQUENCES // batch_size))
    for number in range(planned):
        lengths = lengths_of(number)
        rows, _, num_rows = packing._dealt(lengths)
        rows, lengths = rows[rows >= 0], lengths[rows >= 0]
        # The parts of a batch have the same number of rows: empty rows are added.
        num_rows = -(-max(num_rows, 1) // num_parts) * num_parts
        counts.append(np.bincount(rows, minlength=num_rows).astype(np.int32))
        tokens += int(lengths.sum())
        used += np.count_nonzero(counts[-1])
        if predictions and is_static:
            of_rows = np.bincount(rows, predictions(lengths), num_rows)
            words.append(of_rows.astype(np.int32))
    all_rows = sum(map(len, counts))
    if is_static:
        spare = _SPARE_DEVIATIONS if planned < num_batches else 0
        packing = _with_static_sizes(packing, batch_size, counts, words, spare)
        # Small batches are padded to the rows of the largest one.
        all_rows = planned * packing.rows_of_part * num_parts
    # A pass without any token would divide by 0.
    computed = max(used, 1) if skips_empty else all_rows
    filling = Filling(
        packing.row_length,
        all_rows / planned,
        tokens / (computed * packing.row_length),
        1 - used / all_rows,
        tokens / (planned * batch_size * packing.row_length),
        skips_empty,
    )
    return packing, filling


def _with_static_sizes(packing, batch_size, counts, words, spare):
    """Returns a packing that has room for batches with these sequences and predictions of rows."""
    num_parts = packing.num_parts
    if packing.deals_parts:
        parts = [np.count_nonzero(rows.reshape(num_parts, -1), axis=1) for rows in counts]
        rows_of_part = max(1, _bound(np.concatenate(parts), spare))
    else:  # The rows of whole batches spread; rounded up to the parts, they may seem to be equal.
        rows = _bound([np.count_nonzero(rows) for rows in counts], spare)
        rows_of_part = max(1, -(-rows // num_parts))

    def most_of_part(of_batches):
        # A part of a batch is `rows_of_part` rows, one after the other; the last one may have
        # fewer.
        parts = [np.add.reduceat(rows, range(0, len(rows), rows_of_part)) for rows in of_batches]
        return max(1, _bound(np.concatenate(parts), spare))

    # A part that is dealt by itself has a slot for each of its sequences, whatever their lengths.
    slots = batch_size // num_parts
    if not packing.deals_parts:
        slots = min(most_of_part(counts), batch_size)
    return dataclasses.replace(
        packing,
        rows_of_part=rows_of_part,
        slots_of_part=max(1, slots),
        predictions_of_part=most_of_part(words) if words else None,
    )


def _bound(values, spare):
    """Returns the greatest of some integers, and this many standard deviations more."""
    return math.ceil(np.max(values) + spare * np.std(values))


@dataclasses.dataclass(frozen=True)
class Packs:
    """Says that rows are packed, and how."""

    num_batches: int | None = None  # of the training; None for one pass
    micro_batch_size: int | None = None  # sequences of a core's batch at a time; None for all
    # Whether all batches have the same number of rows, as by the rules of TPUs; else a batch has as
    # many as it needs.
    is_static: bool = True
    # Whether empty rows are not computed, as in sessions.
    skips_empty: bool = False
    report: Callable[[Filling], None] = lambda filling: None

    def slot_order(
        self,
        order: BatchOrder,  # of the global batches
        # A function of numbers of records that returns their lengths; 0 for the number -1.
        lengths_of: Callable[[np.ndarray], np.ndarray],
        row_length: int,
        core_batch: int,  # sequences of a core's batch
        replicas: int,  # that this pipeline feeds
        share: tuple[int, int] = (0, 1),  # number of this pipeline, and of pipelines
        predictions: Callable[[np.ndarray], np.ndarray] | None = None,  # as for `plan`
    ) -> "SlotOrder":
        """Plans the packing of all batches, or of the training's own number; returns the records of
        this pipeline's slots."""
        parts_of_core = max(1, core_batch // (self.micro_batch_size or core_batch))
        num_parts = replicas * share[1] * parts_of_core
        packing = Packing(row_length, num_parts, deals_parts=self.num_batches is None)
        num_batches = self.num_batches or order.num_batches
        packing, filling = plan(
            packing,
            lambda number: lengths_of(order.record_numbers(number)),
            num_batches,
            self.is_static,
            predictions,
            self.skips_empty,
        )
        self.report(filling)
        return SlotOrder(packing, order, lengths_of, num_batches, share)


# A batch is asked for several times, and some batches are read ahead.
_LEAST_KEPT, _SEQUENCES_KEPT = 4, 1024


class SlotOrder:
    """Knows the records of the slots of packed batches, as a `BatchOrder` does of other batches; of
    the slots, a pipeline has its share."""

    def __init__(
        self,
        packing: Packing,
        order: BatchOrder,
        lengths_of: Callable[[np.ndarray], np.ndarray],
        num_batches: int,
        share: tuple[int, int],
    ):
        self.packing, self.num_batches = packing, num_batches
        self._order, self._lengths_of, self._share = order, lengths_of, share
        slots = packing.slots_of_part
        self.size = slots and slots * packing.num_parts // share[1]  # None if batches differ in it
        kept = max(_LEAST_KEPT, _SEQUENCES_KEPT // (self.size or _SEQUENCES_KEPT))
        self._slots = functools.lru_cache(kept)(self._dealt)

    def _dealt(self, batch_number):
        """Returns (the slots of this pipeline, the lengths of the global batch)."""
        lengths = self._lengths_of(self._order.record_numbers(batch_number))
        return self.packing.slots(lengths).share(*self._share), lengths

    def records(self, batch_number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (record numbers, epochs) of the slots, each int64 [N]; -1 for empty slots."""
        slots, _ = self._slots(batch_number)
        numbers, epochs = self._order.records(batch_number)
        return np.where(slots.numbers < 0, -1, numbers[slots.numbers]), epochs[slots.numbers]

    def lengths(self, batch_number: int) -> np.ndarray:
        """Returns the lengths of the sequences of the slots, ints [N]; 0 for empty slots."""
        slots, lengths = self._slots(batch_number)
        return np.where(slots.numbers < 0, 0, lengths[slots.numbers])

    def packed(self, batch_number: int, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Packs the features of the slots of a batch, [N, ...], as `Packing.pack` does."""
        return self.packing.pack(*self._slots(batch_number), batch)

    def shapes(
        self, zeros: Callable[[int], Mapping[str, np.ndarray]]
    ) -> dict[str, tuple[list[int | None], tf.DType]]:
        """Returns name -> (shape, dtype) of packed batches, None for sizes that differ; `zeros` is
        a function of a number of slots that returns the features of empty ones."""
        no_sequences = np.zeros(self.packing.num_parts, np.int64)
        slots = self.packing.slots(no_sequences).share(*self._share)
        packed = self.packing.pack(slots, no_sequences, zeros(len(slots.numbers)))
        return {
            name: ([self.size and len(value), *value.shape[1:]], tf.as_dtype(value.dtype))
            for name, value in packed.items()
        }
