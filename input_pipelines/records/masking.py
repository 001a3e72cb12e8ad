"""Pairs of segments laid out as examples, and masked, by google-research/bert's rules.

Masks are drawn when records are made or, fresh in each epoch, while they are read. They are a pure
function of (seed, epoch, number of the record), so a resumed training, and one on several hosts,
sees the masks of an uninterrupted one on one host (RoBERTa paper, section 4.1).

Tokens are chosen alone, by words, or by spans of words. Spans are SpanBERT's (Joshi et al., 2020,
section 3.1): their lengths are geometric, and what replaces a token is drawn for the whole span.
ALBERT's n-grams of up to 3 words are 1.6 words on average, and so hardly more than words.

Letters: B batch size, F sequence length, P predictions per sequence.
"""

import dataclasses

import numpy as np

from bert_estimator.command_line.choices import SPAN, TOKEN
from bert_estimator.system.splitmix import GOLDEN, keys, mix
from bert_estimator.tokenization import Tokenizer

_MASKS_SEED = 0x3A5C0DE  # tells the masks from the order of the records
_LENGTHS_SEED = 0x59A25  # tells the lengths of spans from what replaces their tokens
# The chances of spans of 1 to 10 words: geometric with p = 0.2, so that the mean is 3.8 words.
_CHANCES = 0.2 * 0.8 ** np.arange(10)
_UP_TO = np.cumsum(_CHANCES / _CHANCES.sum())[:-1]  # of at most 1 word, 2 words and so on to 9


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


def budgets(lengths: np.ndarray, masked_lm_prob: float, most: int) -> np.ndarray:
    """Returns how many tokens of sequences are to be predicted, int64 [B], by their lengths, [B],
    with `[CLS]` and `[SEP]`."""
    return np.clip(np.rint(lengths * masked_lm_prob).astype(np.int64), 1, most)


class MaskedExamples:
    """Makes the features of examples of the tokens of two segments, masked by the rules of a
    creation; of the seed, the lower 64 bits count."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_seq_length: int,
        masked_lm_prob: float,  # share of a sequence's tokens to predict (0.15 in the BERT paper)
        max_predictions_per_seq: int,
        unit: str,  # one of `choices.MASKING_UNITS`: what is masked as a whole
        seed: int,
    ):
        self.vocab_size = tokenizer.vocab_size  # random replacements are drawn from all ids
        self.max_seq_length = max_seq_length
        self._cls_id, self._sep_id = tokenizer.cls_id, tokenizer.sep_id
        self._mask_id = tokenizer.mask_id
        self._prob, self._most = masked_lm_prob, max_predictions_per_seq
        self._unit = unit
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
        # bool [number of tokens], which continue a word; None if the vocabulary tells it.
        continues: np.ndarray | None = None,
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
        of_words = {}
        if continues is not None:
            of_words["continues_word"] = np.zeros_like(ids)
            of_words["continues_word"][is_token] = continues
        continues = of_words.get("continues_word")
        masked = self.mask(ids, is_maskable, ends, numbers, epochs, continues)
        is_used = places < ends[:, None]
        return {
            **of_words,
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
        continues: np.ndarray | None = None,  # 0 or 1 [B, F]; None if the vocabulary tells it
    ) -> MaskedBatch:
        """Masks a batch of ids, int64 [B, F]."""
        row_keys = keys(self._seed, epochs, numbers)
        places = np.arange(input_ids.shape[1], dtype=np.uint64) * np.uint64(GOLDEN)
        place_keys = mix(row_keys[:, None] + places)
        # The number of chosen tokens is `masked_lm_prob` of the sequence's length, `[CLS]` and
        # `[SEP]` included, at least 1 and at most `max_predictions_per_seq`. It is smaller if whole
        # words do not fit, or if the sequence has too few tokens.
        wanted = budgets(lengths, self._prob, self._most)
        kind_keys = place_keys  # by which a token is replaced: its own place's, or its span's
        if self._unit == TOKEN:
            chosen = _smallest(place_keys, is_maskable, wanted)
        else:
            if continues is None:
                continues = self.continues[input_ids]
            chosen, of_spans = self._words(continues, is_maskable, place_keys, wanted)
            kind_keys = of_spans if self._unit == SPAN else place_keys
        return self._replaced(input_ids, chosen, place_keys, kind_keys)

    def _words(self, continues, is_maskable, place_keys, budgets):
        """Chooses words, or spans of them, in the order of random keys while they fit; returns
        which places are chosen, bool [B, F], and the key of the place where the unit of each chosen
        place begins, uint64 [B, F]."""
        after_maskable = np.zeros_like(is_maskable)
        after_maskable[:, 1:] = is_maskable[:, :-1]
        # If a truncated segment begins inside a word, its first piece begins a word.
        begins = is_maskable & ~(after_maskable & (continues > 0))
        rows, columns = np.nonzero(begins)
        # The number of each token's word, from 1, across the batch; 0 for what is not masked.
        words = np.where(is_maskable, np.cumsum(begins).reshape(begins.shape), 0)
        sizes = np.bincount(words.reshape(-1), minlength=len(rows) + 1)
        per_row = np.bincount(rows, minlength=len(begins))
        keys_of_words = place_keys[rows, columns]
        order = np.lexsort((keys_of_words, rows))
        first = np.cumsum(per_row) - per_row
        lengths = self._lengths(keys_of_words, np.cumsum(~after_maskable[rows, columns]))
        # The number of the word with which the unit of each word begins; 0 if it is not chosen.
        unit_of = np.zeros(len(rows) + 1, np.int64)
        left = np.where(per_row > 0, budgets, 0)
        # All rows try their next units together, in at most as many rounds as a row has words.
        for rank in range(int(per_row.max(initial=0))):
            active = np.flatnonzero((left > 0) & (rank < per_row))
            if not active.size:
                break
            begin = order[first[active] + rank]
            # A unit ends before a word that does not fit, or is chosen. A later one may still fit.
            for offset in range(int(lengths[begin].max())):
                word = np.minimum(begin + offset + 1, len(rows))
                fits = (offset < lengths[begin]) & (sizes[word] <= left[active])
                fits &= unit_of[word] == 0
                active, begin, word = active[fits], begin[fits], word[fits]
                unit_of[word] = begin + 1
                left[active] -= sizes[word]
        units = unit_of[words]
        chosen, unit_keys = units > 0, place_keys.copy()
        unit_keys[chosen] = keys_of_words[units[chosen] - 1]
        return chosen, unit_keys

    def _lengths(self, keys_of_words, segments):
        """Returns how many words a unit has that begins with each word, int64 [number of words]; of
        each word, there are a random key and the number of its segment in the batch."""
        if self._unit != SPAN:
            return np.ones(len(segments), np.int64)
        draws = _shares(mix(keys_of_words ^ np.uint64(_LENGTHS_SEED)))
        ends = np.searchsorted(segments, segments, side="right")
        lengths = 1 + np.searchsorted(_UP_TO, draws, side="right")
        return np.minimum(lengths, ends - np.arange(len(ends)))

    def _replaced(self, input_ids, chosen, place_keys, kind_keys):
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
        # (BERT paper, section 3.1, task 1).
        kinds = _shares(mix(kind_keys[rows, columns]))
        random_ids = ((mix(draws) >> np.uint64(32)) * np.uint64(self.vocab_size)) >> np.uint64(32)
        masked = np.where(kinds < 0.9, originals, random_ids.astype(np.int64))
        masked_ids = input_ids.copy()
        masked_ids[rows, columns] = np.where(kinds < 0.8, self._mask_id, masked)
        return MaskedBatch(masked_ids, positions, labels, weights)


def _shares(draws):
    """Returns random numbers from 0 to 1, float64, of the upper 53 bits of draws, uint64."""
    return (draws >> np.uint64(11)) * 2.0**-53


def _smallest(place_keys, is_maskable, budgets):
    """Chooses the places with the smallest keys, at most each row's budget, bool [B, F]."""
    # The lowest bit makes the keys of other places larger than all others.
    sortable = np.where(is_maskable, place_keys >> np.uint64(1), np.uint64(2**64 - 1))
    budgets = np.minimum(budgets, is_maskable.sum(axis=1))
    in_order = np.sort(sortable, axis=1)
    last = np.take_along_axis(in_order, np.maximum(budgets - 1, 0)[:, None], axis=1)
    return is_maskable & (sortable <= last) & (budgets > 0)[:, None]
