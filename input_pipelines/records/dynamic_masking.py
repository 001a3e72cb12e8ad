"""Masks, drawn when records are made or, fresh in each epoch, while they are read.

The masks of a record are a pure function of (seed, epoch, number of the record), so a resumed
training, and one on several hosts, sees the masks of an uninterrupted one on one host (RoBERTa
paper, section 4.1).

The number of chosen tokens is `masked_lm_prob` of the sequence's length, `[CLS]` and `[SEP]`
included, at least 1 and at most `max_predictions_per_seq`. It is smaller if whole words do not fit,
or if the sequence has too few tokens. Of the chosen tokens, 80 % become `[MASK]`, 10 % stay, and
10 % become a random token (BERT paper, section 3.1, task 1).

Letters: B batch size, F sequence length, P predictions per sequence.
"""

import dataclasses

import numpy as np

from bert_estimator.system.splitmix import GOLDEN, keys, mix
from input_pipelines.records.masking import Masking

_MASKS_SEED = 0x3A5C0DE  # tells the masks from the order of the records


@dataclasses.dataclass(frozen=True)
class MaskedBatch:
    """Holds the masked sequences of a batch.

    Attributes:
      input_ids: the ids with masked tokens replaced, int64 [B, F].
      positions: positions of the tokens to predict, ascending, then zeros, int64 [B, P].
      labels: their original ids, int64 [B, P].
      weights: 1 for predictions, 0 for padding, float32 [B, P].
    """

    input_ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


class DynamicMasking:
    """Draws the masks of batches.

    Args:
      masking: the rules.
      seed: any integer; its lower 64 bits count.
    """

    def __init__(self, masking: Masking, seed: int):
        self._masking = masking
        self._seed = seed ^ _MASKS_SEED
        self._continues = np.zeros(masking.vocab_size, bool)
        self._continues[list(masking.continuations)] = True

    def mask(
        self,
        input_ids: np.ndarray,
        is_maskable: np.ndarray,
        lengths: np.ndarray,
        numbers: np.ndarray,
        epochs: np.ndarray,
    ) -> MaskedBatch:
        """Masks a batch.

        Args:
          input_ids: int64 [B, F], in [0, vocab_size).
          is_maskable: bool [B, F]; False for `[CLS]`, `[SEP]` and padding.
          lengths: int64 [B], numbers of tokens, `[CLS]` and `[SEP]` included; 0 for padding.
          numbers, epochs: int64 [B], the records, and how often each has come before.
        """
        rules = self._masking
        row_keys = keys(self._seed, epochs, numbers)
        places = np.arange(input_ids.shape[1], dtype=np.uint64) * np.uint64(GOLDEN)
        place_keys = mix(row_keys[:, None] + places)
        budgets = np.rint(lengths * rules.masked_lm_prob).astype(np.int64)
        budgets = np.clip(budgets, 1, rules.max_predictions_per_seq)
        if rules.do_whole_word_mask:
            chosen = self._whole_words(input_ids, is_maskable, place_keys, budgets)
        else:
            chosen = _smallest(place_keys, is_maskable, budgets)
        return self._replaced(input_ids, chosen, place_keys)

    def _whole_words(self, input_ids, is_maskable, place_keys, budgets):
        """Chooses whole words in the order of random keys while they fit; bool [B, F]."""
        after_maskable = np.zeros_like(is_maskable)
        after_maskable[:, 1:] = is_maskable[:, :-1]
        # If a truncated segment begins inside a word, its first piece begins a word.
        continues = is_maskable & after_maskable & self._continues[input_ids]
        begins = is_maskable & ~continues
        rows, columns = np.nonzero(begins)
        # The number of each token's word, from 1, across the batch; 0 for what is not masked.
        words = np.where(is_maskable, np.cumsum(begins).reshape(begins.shape), 0)
        sizes = np.bincount(words.reshape(-1), minlength=len(rows) + 1)
        per_row = np.bincount(rows, minlength=len(begins))
        order = np.lexsort((place_keys[rows, columns], rows))
        first = np.cumsum(per_row) - per_row
        is_chosen = np.zeros(len(rows) + 1, bool)
        left = np.where(per_row > 0, budgets, 0)
        for rank in range(int(per_row.max(initial=0))):
            active = np.flatnonzero((left > 0) & (rank < per_row))
            if not active.size:
                break
            word = order[first[active] + rank] + 1
            fits = sizes[word] <= left[active]  # if not, a shorter word may still fit
            is_chosen[word[fits]] = True
            left[active[fits]] -= sizes[word[fits]]
        return is_chosen[words]

    def _replaced(self, input_ids, chosen, place_keys):
        rules = self._masking
        rows, columns = np.nonzero(chosen)
        per_row = np.bincount(rows, minlength=len(chosen))
        slots = np.arange(len(rows)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
        shape = [len(chosen), rules.max_predictions_per_seq]
        positions, labels = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        weights = np.zeros(shape, np.float32)
        positions[rows, slots] = columns
        labels[rows, slots] = originals = input_ids[rows, columns]
        weights[rows, slots] = 1
        draws = mix(place_keys[rows, columns])
        kinds = (draws >> np.uint64(11)) * 2.0**-53
        random_ids = ((mix(draws) >> np.uint64(32)) * np.uint64(rules.vocab_size)) >> np.uint64(32)
        masked = np.where(kinds < 0.9, originals, random_ids.astype(np.int64))
        masked_ids = input_ids.copy()
        masked_ids[rows, columns] = np.where(kinds < 0.8, rules.mask_id, masked)
        return MaskedBatch(masked_ids, positions, labels, weights)


def _smallest(place_keys, is_maskable, budgets):
    """Chooses the places with the smallest keys: of each row as many as its budget, bool [B, F].

    If there are fewer places, all are chosen.
    """
    # The lowest bit makes the keys of other places larger than all others.
    sortable = np.where(is_maskable, place_keys >> np.uint64(1), np.uint64(2**64 - 1))
    budgets = np.minimum(budgets, is_maskable.sum(axis=1))
    in_order = np.sort(sortable, axis=1)
    last = np.take_along_axis(in_order, np.maximum(budgets - 1, 0)[:, None], axis=1)
    return is_maskable & (sortable <= last) & (budgets > 0)[:, None]
