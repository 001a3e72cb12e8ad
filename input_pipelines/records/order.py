"""The order of training: a pure function of (seed, epoch, position), so resuming is arithmetic.

The endless stream of training examples is a random permutation of all records, then another one,
and so on. In a mixture of several sets of records, each set has such a stream of its own. Of each
1000 places of the training stream, a set has its share of places, which lie in a random order.
"""

import sys
from collections.abc import Iterable, Sequence

import numpy as np

from bert_estimator.system.splitmix import GOLDEN, keys, mix
from input_pipelines.records.record_reader import RecordFiles, find_record_sets

_ROUNDS = 8
_MIN_BITS = 6  # With fewer bits the network has too few different permutations.

# The steps of the network cost the same for one number as for a thousand, so small batches are
# ordered many at a time.
_ORDERED_AT_ONCE = 4096
_SHARES_SEED = 0x5A8A7E5  # tells the order of the shares from the order of the records

SHARES = 1000
"""The number of places of the training stream that the sets of a mixture share."""


class BatchOrder:
    """Knows the records of each of the `num_batches` batches of one input pipeline; training is
    endless, which is sys.maxsize."""

    def __init__(
        self,
        num_records: int,
        batch_size: int,  # of this pipeline
        seed: int | None = None,  # of training; None: one pass in the records' own order
        # The number of this pipeline; a global batch has a batch of each pipeline.
        invocation: int = 0,
        num_invocations: int = 1,
        # (batch number, number of batches): from this batch number on, so many batches of the order
        # are left out; the numbers of several pairs add up.
        skipped: Sequence[tuple[int, int]] = (),
        # (number of records, share of `SHARES`) of each set of a mixture, in the order of the
        # record numbers; empty if all records are one set.
        sets: Sequence[tuple[int, int]] = (),
        # Of one pass, how many records are read, spread evenly over all; None means all.
        num_read: int | None = None,
    ):
        self._skipped = tuple(skipped)
        self._num_read = min(num_records, num_read or num_records)
        self._num_records = num_records
        self._batch_size = batch_size
        self._seed = seed
        self._invocation = invocation
        self._num_invocations = num_invocations
        self._sets = tuple(sets) or ((num_records, SHARES),)
        global_batch = batch_size * num_invocations
        self.num_batches = -(-self._num_read // global_batch) if seed is None else sys.maxsize
        self._block_size = max(1, _ORDERED_AT_ONCE // batch_size)
        self._block_number, self._block = -1, (np.empty(0), np.empty(0))

    def record_numbers(self, batch_number: int) -> np.ndarray:
        """Returns the record numbers of a batch, int64 [B]; -1 is padding at the end of a pass."""
        return self.records(batch_number)[0]

    def records(self, batch_number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (record numbers, epochs) of a batch, each int64 [B]; the number of padding is -1,
        and the epoch says how often a record has come before."""
        if self._seed is None:
            places = self._places(np.array([batch_number]))[0]
            numbers = spread(places, self._num_records, self._num_read)
            return np.where(places < self._num_read, numbers, -1), np.zeros_like(numbers)
        # `first` counts the batches that are trained on, so the pairs do not shift each other.
        batch_number += sum(number for first, number in self._skipped if batch_number >= first)
        block_number, in_block = divmod(batch_number, self._block_size)
        if block_number != self._block_number:
            batches = block_number * self._block_size + np.arange(self._block_size)
            self._block = mixed_order(self._places(batches), self._sets, self._seed)
            self._block_number = block_number
        numbers, epochs = self._block
        return numbers[in_block], epochs[in_block]

    def _places(self, batch_numbers: np.ndarray) -> np.ndarray:
        """Returns places in the stream of all pipelines, int64 [number of batches, B]."""
        batches = batch_numbers.astype(np.int64) * self._num_invocations + self._invocation
        return batches[:, None] * self._batch_size + np.arange(self._batch_size)


def spread(places: np.ndarray, num_records: int, num_read: int) -> np.ndarray:
    """Returns the record numbers of places in a pass of `num_read` records, evenly over all."""
    return places * num_records // num_read


def record_order(stream_indices: np.ndarray, num_records: int, seed: int) -> np.ndarray:
    """Maps places in the endless training stream, int64 of any shape, to record numbers of the same
    shape; of the seed, the lower 64 bits count."""
    # Place `i` is place `i % num_records` of epoch `i // num_records`; within an epoch every record
    # occurs once. The values are pinned: they do not depend on library versions.
    flat = np.asarray(stream_indices, np.int64).reshape(-1)
    epochs = (flat // num_records).astype(np.uint64)
    numbers = (flat % num_records).astype(np.uint64)
    bits = max(_MIN_BITS, (num_records - 1).bit_length())
    round_keys = _round_keys(seed, epochs)
    # Any part of a permutation is computed without state and without memory: a Feistel network over
    # the smallest sufficient power of two is applied until the result is the number of a record
    # (cycle walking; Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
    walking = np.arange(flat.size)
    while walking.size:
        numbers[walking] = _feistel(numbers[walking], round_keys[:, walking], bits)
        walking = walking[numbers[walking] >= num_records]
    return numbers.astype(np.int64).reshape(np.shape(stream_indices))


def mixed_order(
    stream_indices: np.ndarray, sets: Sequence[tuple[int, int]], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Maps places in the endless stream of a mixture, int64 of any shape, to (record numbers from 0
    across the sets, epochs); `sets` are as for `BatchOrder`."""
    # One set has the order that it would have without a mixture.
    if len(sets) == 1:
        num_records = sets[0][0]
        return record_order(stream_indices, num_records, seed), stream_indices // num_records
    share_order = record_order(stream_indices, SHARES, seed ^ _SHARES_SEED)
    numbers, epochs = np.empty_like(stream_indices), np.empty_like(stream_indices)
    first_share = first_record = 0
    for set_number, (num_records, share) in enumerate(sets):
        in_share = share_order - first_share
        chosen = (in_share >= 0) & (in_share < share)
        # The place in the set's own stream: its whole shares before, and its places in this one.
        places = stream_indices[chosen] // SHARES * share + in_share[chosen]
        set_seed = int(keys(seed, np.array([set_number]))[0])
        numbers[chosen] = first_record + record_order(places, num_records, set_seed)
        epochs[chosen] = places // num_records
        first_share, first_record = first_share + share, first_record + num_records
    return numbers, epochs


def _round_keys(seed: int, epochs: np.ndarray) -> np.ndarray:
    """Returns the keys of the rounds, uint64 [rounds, *shape of epochs]."""
    state = keys(seed, epochs)
    return np.stack([mix(state + np.uint64(i * GOLDEN % 2**64)) for i in range(_ROUNDS)])


def _feistel(numbers: np.ndarray, round_keys: np.ndarray, bits: int) -> np.ndarray:
    """Applies a bijection of [0, 2**bits): a function of one half changes the other, in turn."""
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    low = numbers & low_mask
    high = numbers >> low_bits
    for i in range(0, _ROUNDS, 2):
        low ^= mix(high + round_keys[i]) & low_mask
        high ^= mix(low + round_keys[i + 1]) & high_mask
    return (high << low_bits) | low


def mixture(records: RecordFiles, patterns: str | Iterable[str]) -> list[tuple[int, int]]:
    """Returns (number of records, share) of each weighted pattern; [] without weights."""
    found = find_record_sets(patterns)
    if found[0][1] is None:
        return []
    shares = shares_of([weight for _, weight in found])
    sets = []
    for (files, weight), share in zip(found, shares, strict=True):
        num_records = sum(records.num_records_of(path) for path in files)
        if not share or not num_records:
            raise ValueError(
                f"{files[0]}: {num_records} records with the weight {weight:g} have "
                f"{share} of {SHARES} examples. Give the pattern more weight, or leave it out."
            )
        sets.append((num_records, share))
    return sets


def shares_of(weights: list[float]) -> list[int]:
    """Rounds weights to shares that add up to `order.SHARES`, by the largest remainders."""
    relative = np.array(weights) / max(weights)  # the sum of huge weights would be infinite
    exact = relative / np.sum(relative) * SHARES
    shares = np.floor(exact).astype(int)
    by_remainder = np.argsort(shares - exact, kind="stable")
    shares[by_remainder[: SHARES - shares.sum()]] += 1
    return shares.tolist()
