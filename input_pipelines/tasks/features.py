"""Examples as ids: [CLS] text [SEP], or [CLS] text [SEP] text [SEP], truncated to a length.

Letters: B batch size, F sequence length, L labels.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from bert_estimator.tokenization import Tokenizer
from input_pipelines.tasks.examples import Example


class Features:
    """Holds the features of examples; padding is added when a batch is asked for.

    A pair that is too long loses tokens from the end of its longer text, one by one, as in
    google-research/bert (`_truncate_seq_pair`).

    Args:
      examples: the examples; either all have labels, or none has.
      tokenizer: the tokenizer.
      max_seq_length: F.

    Attributes:
      num_cut: number of examples that had to be truncated.
      lengths: int64 [number of examples], tokens with [CLS] and [SEP].
      labels: int32 [number of examples], float32 for regression, int32 [.., L] for multi_label;
        None without labels.
    """

    def __init__(self, examples: Sequence[Example], tokenizer: Tokenizer, max_seq_length: int):
        self.max_seq_length = max_seq_length
        self.num_cut = 0
        self.labels = None
        if examples and examples[0].label is not None:
            labels = [example.label for example in examples]
            self.labels = np.array(labels, np.float32 if isinstance(labels[0], float) else np.int32)
        ids, lengths, first_lengths = [], [], []
        for example in examples:
            first, second = self._segments(example, tokenizer)
            ids += first + second
            first_lengths.append(len(first))
            lengths.append(len(first) + len(second))
        # One array for all: padded to F, a large task would take several times the memory.
        self._ids = np.array(ids, np.int32)
        self._ends = np.cumsum(lengths)
        self.lengths = np.array(lengths, np.int64)
        self._first_lengths = np.array(first_lengths, np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def digest(self) -> bytes:
        """Returns a hash of ids, segments and labels."""
        digest = hashlib.sha256(str(self.max_seq_length).encode())
        for array in (self._ids, self.lengths, self._first_lengths, self.labels):
            digest.update(b"" if array is None else array.tobytes())
        return digest.digest()

    def describe_cuts(self) -> str:
        """Returns in words what did not fit max_seq_length; "" if everything did."""
        if not self.num_cut:
            return ""
        return f"{self.num_cut} of {len(self)} examples were cut to {self.max_seq_length} tokens"

    def bag_of_words(self, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the words of all examples without their order.

        A word has different numbers in the first and in the second segment.

        Returns:
          (numbers of examples, numbers of words below 2 * vocab_size), an entry for each word.
        """
        owners = np.repeat(np.arange(len(self)), self.lengths)
        places = np.arange(len(self._ids)) - np.repeat(self._ends - self.lengths, self.lengths)
        in_second = places >= self._first_lengths[owners]
        return owners, self._ids + vocab_size * in_second

    def batch(self, numbers: np.ndarray, length: int | None = None) -> dict[str, np.ndarray]:
        """Returns the features of the examples with these numbers; -1 gives a padding of zeros.

        Args:
          numbers: the numbers [B].
          length: F of the batch, at least the length of each example; None for max_seq_length.

        Returns:
          `input_ids`, `input_mask`, `segment_ids` int32 [B, F]; `unique_ids`, the numbers, and
          `is_real_example` int32 [B]; and `label_ids` [B, ...] if labels are known.
        """
        is_real, unique_ids = numbers >= 0, numbers.astype(np.int32)
        numbers = np.where(is_real, numbers, 0)
        places = np.arange(length or self.max_seq_length)
        lengths = np.where(is_real, self.lengths[numbers], 0)[:, np.newaxis]
        mask = places < lengths
        # Any id may be read for places beyond an example's end, since these places are masked.
        starts = (self._ends - self.lengths)[numbers][:, np.newaxis]
        ids = self._ids[np.minimum(starts + places, len(self._ids) - 1)]
        second = mask & (places >= self._first_lengths[numbers][:, np.newaxis])
        features = {
            "input_ids": np.where(mask, ids, 0).astype(np.int32),
            "input_mask": mask.astype(np.int32),
            "segment_ids": second.astype(np.int32),
            "unique_ids": unique_ids,
            "is_real_example": is_real.astype(np.int32),
        }
        if self.labels is not None:
            shape = [-1] + [1] * (self.labels.ndim - 1)
            labels = np.where(is_real.reshape(shape), self.labels[numbers], 0)
            features["label_ids"] = labels.astype(self.labels.dtype)
        return features

    def _segments(self, example: Example, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
        """Returns the ids of both segments, with special tokens; the second may be empty."""
        first = tokenizer.encode(example.text_a)
        second = tokenizer.encode(example.text_b) if example.text_b is not None else []
        room = self.max_seq_length - (2 if example.text_b is None else 3)
        self.num_cut += len(first) + len(second) > room
        while len(first) + len(second) > room:
            (first if len(first) > len(second) else second).pop()
        first = [tokenizer.cls_id, *first, tokenizer.sep_id]
        return first, [*second, tokenizer.sep_id] if example.text_b is not None else []
