"""Pairs of segments as the features of examples: laid out, with special tokens, and masked.

Letters: B number of examples, F sequence length.
"""

import numpy as np

from bert_estimator.tokenization import Tokenizer
from input_pipelines.records.dynamic_masking import DynamicMasking


class MaskedExamples:
    """Makes the features of examples of the tokens of two segments.

    Args:
      tokenizer: tokenizer of the tokens.
      max_seq_length: F.
      masking: draws the masks.
    """

    def __init__(self, tokenizer: Tokenizer, max_seq_length: int, masking: DynamicMasking):
        self._cls_id, self._sep_id = tokenizer.cls_id, tokenizer.sep_id
        self._max_seq_length = max_seq_length
        self._masking = masking

    def features(
        self,
        tokens: np.ndarray,
        lengths: np.ndarray,
        labels: np.ndarray,
        numbers: np.ndarray,
        epochs: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Returns the features that `pretraining_records` describes, int64 or float32 [B, ...].

        Args:
          tokens: ids of A, then of B, of each example in turn; integers [number of tokens].
          lengths: int64 [B, 2], numbers of tokens of A and of B, at most F - 3 together.
          labels: int64 [B, 1], the next-sentence labels.
          numbers, epochs: int64 [B], what the masks depend on; see `DynamicMasking.mask`.
        """
        a, b = lengths[:, 0, None], lengths[:, 1, None]
        places = np.arange(self._max_seq_length)
        is_token = ((places > 0) & (places <= a)) | ((places > a + 1) & (places < a + b + 2))
        ids = np.zeros([len(numbers), self._max_seq_length], np.int64)
        ids[is_token] = tokens
        rows, ends = np.arange(len(ids)), (a + b)[:, 0] + 3
        ids[:, 0] = self._cls_id
        ids[rows, a[:, 0] + 1] = ids[rows, ends - 1] = self._sep_id
        is_maskable = is_token & (ids != self._cls_id) & (ids != self._sep_id)
        masked = self._masking.mask(ids, is_maskable, ends, numbers, epochs)
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
