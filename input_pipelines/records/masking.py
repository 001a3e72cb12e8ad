"""Pairs of segments laid out as examples, and masked, by google-research/bert's rules.

Masks are drawn when records are made or, fresh in each epoch, while they are read. They are a pure
function of (seed, epoch, number of the record), so a resumed training, and one on several hosts,
sees the masks of an uninterrupted one on one host (RoBERTa paper, section 4.1).

Letters: B batch size, F sequence length, P predictions per sequence.
"""

import dataclasses

import numpy as np

from bert_estimator.system.splitmix import GOLDEN, keys, mix
from bert_estimator.tokenization import Tokenizer

_MASKS_SEED = 0x3A5C0DE  # tells the masks from the order of the records


@dataclasses.dataclass(frozen=True)
class MaskedBatch:
    """Holds the masked sequences of a batch."""

    input_ids: np.ndarray  # int64 [B, F], with masked tokens replaced
    positions: np.ndarray  # int64 [B, P], of the tokens to predict, ascending, then zeros
    labels: np.ndarray  # int64 [B, P], their original ids
    weights: np.ndarray  # float32 [B, P], 1 for predictions, 0 for padding


def num_tokens(lengths: np.ndarray) -> np.ndarray:
    """Returns the lengths of examples, int64 [B], by the lengths of A and B, [B, 2]: there is a
    `[CLS]`, and a `[SEP]` after A and, unless it is empty, after B."""
    return lengths.sum(axis=1) + 2 + (lengths[:, 1] > 0)


class MaskedExamples:
    """Makes the features of examples of the tokens of two segments, masked by the rules of a
    creation; of the seed, the lower 64 bits count."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_seq_length: int,
        masked_lm_prob: float,  # share of a sequence's tokens to predict (0.15 in the BERT paper)
        max_predictions_per_seq: int,
        do_whole_word_mask: bool,  # either all pieces of a word are masked or none of them
        seed: int,
    ):
        self.vocab_size = tokenizer.vocab_size  # random replacements are drawn from all ids
        self.max_seq_length = max_seq_length
        self._cls_id, self._sep_id = tokenizer.cls_id, tokenizer.sep_id
        self._mask_id = tokenizer.mask_id
        self._prob, self._most = masked_lm_prob, max_predictions_per_seq
        self._do_whole_word_mask = do_whole_word_mask
        tokens = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
        # Whether each id is of a piece that continues a word.
        self.continues = np.array(list(map(tokenizer.is_continuation, tokens)))
        self._seed = seed ^ _MASKS_SEED

    def features(
        self,
        tokens: np.ndarray,  # integers [number of tokens]: ids of A, then of B, of each example
        # Int64 [B, 2], of A and of B, at most F - 3 together; or of A, at most F - 2, and 0.
        lengths: np.ndarray,
        labels: np.ndarray,  # int64 [B, 1], the next-sentence labels
        numbers: np.ndarray,  # int64 [B]; the masks depend on it and on the epoch
        epochs: np.ndarray,  # int64 [B]
    ) -> dict[str, np.ndarray]:
        """Returns the features that `pretraining_records` describes, int64 or float32 [B, ...]."""
        a, b = lengths[:, 0, None], lengths[:, 1, None]
        places = np.arange(self.max_seq_length)
        is_token = ((places > 0) & (places <= a)) | ((places > a + 1) & (places < a + b + 2))
        ids = np.zeros([len(numbers), self.max_seq_length], np.int64)
        ids[is_token] = tokens
        rows, ends = np.arange(len(ids)), num_tokens(lengths)
        ids[:, 0] = self._cls_id
        ids[rows, a[:, 0] + 1] = ids[rows, ends - 1] = self._sep_id
        # A text may contain `[CLS]` or `[SEP]` themselves, which are not masked either.
        is_maskable = is_token & (ids != self._cls_id) & (ids != self._sep_id)
        masked = self.mask(ids, is_maskable, ends, numbers, epochs)
        is_used = places < ends[:, None]
        return {
            "input_ids": masked.input_ids,
            "input_mask": is_used.astype(np.int64),
            "segment_ids": (is_used & (places > a + 1)).astype(np.int64),
            "masked_lm_positions": masked.positions,
            "masked_lm_ids": masked.labels,
            "masked_lm_weights": masked.weights,
            "next_sentence_labels": labels,
        }

    def mask(
        self,
        input_ids: np.ndarray,
        is_maskable: np.ndarray,  # bool [B, F]; False for `[CLS]`, `[SEP]` and padding
        lengths: np.ndarray,  # int64 [B], with `[CLS]` and `[SEP]`; 0 for padding
        numbers: np.ndarray,  # int64 [B], of the records
        epochs: np.ndarray,  # int64 [B], how often each record has come before
    ) -> MaskedBatch:
        """Masks a batch of ids, int64 [B, F]."""
        row_keys = keys(self._seed, epochs, numbers)
        places = np.arange(input_ids.shape[1], dtype=np.uint64) * np.uint64(GOLDEN)
        place_keys = mix(row_keys[:, None] + places)
        # The number of chosen tokens is `masked_lm_prob` of the sequence's length, `[CLS]` and
        # `[SEP]` included, at least 1 and at most `max_predictions_per_seq`. It is smaller if whole
        # words do not fit, or if the sequence has too few tokens.
        budgets = np.rint(lengths * self._prob).astype(np.int64)
        budgets = np.clip(budgets, 1, self._most)
        if self._do_whole_word_mask:
            chosen = self._whole_words(input_ids, is_maskable, place_keys, budgets)
        else:
            chosen = _smallest(place_keys, is_maskable, budgets)
        return self._replaced(input_ids, chosen, place_keys)

    def _whole_words(self, input_ids, is_maskable, place_keys, budgets):
        """Chooses whole words in the order of random keys while they fit; bool [B, F]."""
        after_maskable = np.zeros_like(is_maskable)
        after_maskable[:, 1:] = is_maskable[:, :-1]
        # If a truncated segment begins inside a word, its first piece begins a word.
        continues = is_maskable & after_maskable & self.continues[input_ids]
        begins = is_maskable & ~continues
        rows, columns = np.nonzero(begins)
        # The number of each token's word, from 1, across the batch; 0 for what is not masked.
        words = np.where(is_maskable, np.cumsum(begins).reshape(begins.shape), 0)
        sizes = np.bincount(words.reshape(-1), minlength=len(rows) + 1)
        per_row = np.bincount(rows, minlength=len(begins))
        order = np.lexsort((place_keys[rows, columns], rows))
        first = np.cumsum(per_row) - per_row
        # All rows try their next words together, so there are as many rounds as a row has words.
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
        rows, columns = np.nonzero(chosen)
        per_row = np.bincount(rows, minlength=len(chosen))
        slots = np.arange(len(rows)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
        shape = [len(chosen), self._most]
        positions, labels = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        weights = np.zeros(shape, np.float32)
        positions[rows, slots] = columns
        labels[rows, slots] = originals = input_ids[rows, columns]
        weights[rows, slots] = 1
        draws = mix(place_keys[rows, columns])
        # Of the chosen tokens, 80 % become `[MASK]`, 10 % stay, and 10 % become a random token
        # (BERT paper, section 3.1, task 1). The upper 53 bits of a draw are a float64 from 0 to 1.
        kinds = (draws >> np.uint64(11)) * 2.0**-53
        random_ids = ((mix(draws) >> np.uint64(32)) * np.uint64(self.vocab_size)) >> np.uint64(32)
        masked = np.where(kinds < 0.9, originals, random_ids.astype(np.int64))
        masked_ids = input_ids.copy()
        masked_ids[rows, columns] = np.where(kinds < 0.8, self._mask_id, masked)
        return MaskedBatch(masked_ids, positions, labels, weights)


def _smallest(place_keys, is_maskable, budgets):
    """Chooses the places with the smallest keys, at most each row's budget, bool [B, F]."""
    # The lowest bit makes the keys of other places larger than all others.
    sortable = np.where(is_maskable, place_keys >> np.uint64(1), np.uint64(2**64 - 1))
    budgets = np.minimum(budgets, is_maskable.sum(axis=1))
    in_order = np.sort(sortable, axis=1)
    last = np.take_along_axis(in_order, np.maximum(budgets - 1, 0)[:, None], axis=1)
    return is_maskable & (sortable <= last) & (budgets > 0)[:, None]
