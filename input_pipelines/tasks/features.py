"""Examples and tagged sentences as ids, between [CLS] and [SEP], cut to a length.

Examples become [CLS] text [SEP], or [CLS] text [SEP] text [SEP]; tagged sentences become windows of
[CLS] pieces [SEP], in which first pieces have the tags.

Letters: B batch size, F sequence length, L labels, T texts or pairs, W windows.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np

from bert_estimator.tokenization import Tokenizer
from input_pipelines.tasks.examples import Example
from input_pipelines.tasks.long_texts import CUT, HEAD_TAIL, WINDOWS, LongTexts, is_shorter_cut
from input_pipelines.tasks.tag_files import Sentence

_Row = TypeVar("_Row")
_USUAL = LongTexts()


class Batches(Protocol):
    """What batches are drawn from: `Features`, `TagFeatures`, `Windows`, or these in another
    order."""

    lengths: np.ndarray  # int64 [number of examples], tokens with [CLS] and [SEP]
    max_seq_length: int  # the greatest length

    def __len__(self) -> int: ...

    def batch(self, numbers: np.ndarray, length: int | None = None) -> dict[str, np.ndarray]:
        """Returns features, int32 [number, length] each, of numbered examples, padded to a length;
        -1 gives zeros."""


class _FlatIds:
    """Holds the ids of examples in one array: padded to F, a large task would take several times
    the memory."""

    def _hold(self, ids, lengths, unk_id):
        self._ids = np.array(ids, np.int32)
        self.unknown_share = np.count_nonzero(self._ids == unk_id) / max(len(ids), 1)
        self.lengths = np.array(lengths, np.int64)
        self._ends = np.cumsum(lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def _batch(self, numbers, length):
        """Returns (the features that all examples have, the numbers with 0 for -1, the places of
        the ids [B, F])."""
        is_real, unique_ids = numbers >= 0, numbers.astype(np.int32)
        numbers = np.where(is_real, numbers, 0)
        positions = np.arange(length)
        mask = positions < np.where(is_real, self.lengths[numbers], 0)[:, np.newaxis]
        # Any id may be read for positions beyond an example's end, since these are masked.
        starts = (self._ends - self.lengths)[numbers][:, np.newaxis]
        places = np.minimum(starts + positions, len(self._ids) - 1)
        features = {
            "input_ids": np.where(mask, self._ids[places], 0).astype(np.int32),
            "input_mask": mask.astype(np.int32),
            "segment_ids": np.zeros(mask.shape, np.int32),
            "unique_ids": unique_ids,
            "is_real_example": is_real.astype(np.int32),
        }
        return features, numbers, places


class Features(_FlatIds):
    """Holds the features of examples, all of them or none with labels; batches add the padding. A
    text that is read in windows has several, which `len` counts."""

    def __init__(
        self,
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        max_seq_length: int,
        long_texts: LongTexts = _USUAL,
    ):
        self.max_seq_length, self.num_texts = max_seq_length, len(examples)
        self.num_cut = self.num_lost = 0  # examples that are longer; that windows do not cover
        self._long_texts = long_texts
        # int32 [T], float32 for regression, int32 [T, L] for multi_label.
        self.labels = None
        if examples and examples[0].label is not None:
            labels = [example.label for example in examples]
            self.labels = np.array(labels, np.float32 if isinstance(labels[0], float) else np.int32)
        ids, lengths, first_lengths, owners = [], [], [], []
        for number, example in enumerate(examples):
            for first, second in self._segments(example, tokenizer):
                ids += first + second
                first_lengths.append(len(first))
                lengths.append(len(first) + len(second))
                owners.append(number)
        self._hold(ids, lengths, tokenizer.unk_id)
        self._first_lengths = np.array(first_lengths, np.int64)
        self._owners = np.array(owners, np.int32)  # [W], the number of each window's text
        of_text = np.bincount(self._owners, self.lengths, self.num_texts)
        num_windows = len(self) / max(self.num_texts, 1)  # of a text, in the mean
        self._weights = np.float32(self.lengths / of_text[self._owners] * num_windows)

    def digest(self) -> bytes:
        """Returns a hash of ids, segments and labels."""
        digest = hashlib.sha256(str(self.max_seq_length).encode())
        owners = None if len(self) == self.num_texts else self._owners
        for array in (self._ids, self.lengths, self._first_lengths, self.labels, owners):
            digest.update(b"" if array is None else array.tobytes())
        return digest.digest()

    def describe_cuts(self) -> str:
        """Returns in words how many texts do not fit max_seq_length, and what is done about it."""
        share, choice = self.num_cut / max(self.num_texts, 1), self._long_texts.choice
        done = {
            CUT: "their ends are cut",
            HEAD_TAIL: "their middles are cut",
            WINDOWS: f"they are read in {len(self) - self.num_texts + self.num_cut} windows",
        }[choice]
        if self.num_lost and choice == WINDOWS:
            done += f", without the end of the shorter text of {self.num_lost} pairs"
        return (
            f"{self.num_cut} of {self.num_texts} texts ({share:.1%}) are longer than "
            f"{self.max_seq_length} tokens (--max_seq_length)"
        ) + f": {done} (--long_texts={choice})" * (self.num_cut > 0)

    def bag_of_words(self, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (number of the text, number of the word below 2 * vocab_size) of all words."""
        windows = np.repeat(np.arange(len(self)), self.lengths)
        places = np.arange(len(self._ids)) - np.repeat(self._ends - self.lengths, self.lengths)
        # A word has different numbers in the first and in the second segment.
        in_second = places >= self._first_lengths[windows]
        return self._owners[windows], self._ids + vocab_size * in_second

    def batch(self, numbers: np.ndarray, length: int | None = None) -> dict[str, np.ndarray]:
        """Returns int32 features of the examples with these numbers [B], padded to a length, at
        least the longest example's (None for max_seq_length): [B, F], and [B] for `unique_ids` (the
        numbers) and `is_real_example`; `label_ids` if labels are known. If long texts are read in
        windows, these have numbers, and there are `text_numbers` and float32 `window_weights`, each
        window's share of its text's tokens, scaled to a mean of 1 over all windows. The number -1
        gives a padding of zeros."""
        features, numbers, _ = self._batch(numbers, length or self.max_seq_length)
        mask, is_real = features["input_mask"], features["is_real_example"]
        in_second = np.arange(mask.shape[1]) >= self._first_lengths[numbers][:, np.newaxis]
        features["segment_ids"] = mask * in_second
        if self._long_texts.choice == WINDOWS:
            features["text_numbers"] = self._owners[numbers] * is_real
            features["window_weights"] = self._weights[numbers] * np.float32(is_real)
        if self.labels is not None:
            shape = [-1] + [1] * (self.labels.ndim - 1)
            labels = np.where(is_real.reshape(shape), self.labels[self._owners[numbers]], 0)
            features["label_ids"] = labels.astype(self.labels.dtype)
        return features

    def by_text(self, rows: Iterable[_Row]) -> Iterator[tuple[list[_Row], np.ndarray]]:
        """Yields, for each text, what its windows have in `rows`, an iterable of all windows in
        order, and their tokens, with the special tokens: int64 [windows of the text]."""
        rows = iter(rows)
        bounds = np.searchsorted(self._owners, np.arange(self.num_texts + 1))
        for first, end in itertools.pairwise(bounds.tolist()):
            yield list(itertools.islice(rows, end - first)), self.lengths[first:end]

    def _segments(
        self, example: Example, tokenizer: Tokenizer
    ) -> Iterator[tuple[list[int], list[int]]]:
        """Yields the ids of both segments of each sequence, with special tokens; the second may be
        empty."""
        is_pair = example.text_b is not None
        texts = (
            tokenizer.encode(example.text_a),
            tokenizer.encode(example.text_b) if is_pair else [],
        )
        room = self.max_seq_length - (3 if is_pair else 2)
        lengths = list(map(len, texts))
        self.num_cut += sum(lengths) > room
        self.num_lost += is_shorter_cut(*lengths, room)
        for first, second in self._long_texts.sequences(*texts, room):
            first = [tokenizer.cls_id, *first, tokenizer.sep_id]
            yield first, [*second, tokenizer.sep_id] if is_pair else []


_NOT_FIRST = -1  # at a piece that is not the first piece of a word


class TagFeatures(_FlatIds):
    """Holds the features of tagged sentences, all or none with tags at the first pieces of words
    (Devlin et al., 2018, section 5.3); batches add the padding, and a sentence that is too long for
    F becomes several windows of whole words, which `len` counts."""

    def __init__(self, sentences: Sequence[Sentence], tokenizer: Tokenizer, max_seq_length: int):
        self.max_seq_length = max_seq_length
        self.num_sentences = len(sentences)
        # Words that lost pieces; sentences that became several windows.
        self.num_cut = self.num_split = 0
        self.labels = None  # int32 [number of words]; None without tags
        if sentences and sentences[0].tags is not None:
            self.labels = np.array([tag for s in sentences for tag in s.tags or ()], np.int32)
        ids: list[int] = []
        words: list[int] = []  # for each id, the number of its word, or _NOT_FIRST
        lengths: list[int] = []
        continues: list[bool] = []  # for each window, whether it continues a sentence
        num_words = 0
        for sentence in sentences:
            windows = self._windows(sentence.words, tokenizer)
            self.num_split += len(windows) > 1
            for place, window in enumerate(windows):
                ids.append(tokenizer.cls_id)
                words.append(_NOT_FIRST)
                for pieces in window:
                    ids += pieces
                    words += [num_words] + [_NOT_FIRST] * (len(pieces) - 1)
                    num_words += 1
                ids.append(tokenizer.sep_id)
                words.append(_NOT_FIRST)
                lengths.append(sum(map(len, window)) + 2)
                continues.append(place > 0)
        self._hold(ids, lengths, tokenizer.unk_id)
        self._words = np.array(words, np.int32)
        self._continues = np.array(continues, np.int32)

    def digest(self) -> bytes:
        """Returns a hash of ids, words and tags."""
        digest = hashlib.sha256(f"tags {self.max_seq_length}".encode())
        for array in (self._ids, self._words, self.lengths, self._continues, self.labels):
            digest.update(b"" if array is None else array.tobytes())
        return digest.digest()

    def describe_cuts(self) -> str:
        """Returns in words what did not fit max_seq_length; "" if everything did."""
        parts = []
        if self.num_split:
            parts.append(f"{self.num_split} of {self.num_sentences} sentences were split")
        if self.num_cut:
            parts.append(f"{self.num_cut} words lost their last pieces")
        fits = f" to fit {self.max_seq_length} tokens (--max_seq_length)"
        return " and ".join(parts) + fits if parts else ""

    def batch(self, numbers: np.ndarray, length: int | None = None) -> dict[str, np.ndarray]:
        """Returns what `Features.batch` does for the windows with these numbers, with the tags at
        first pieces as `label_ids` [B, F], and int32 `label_mask` [B, F], 1 at first pieces, and
        `continues_sentence` [B], 1 if the sentence began in the window with the number before."""
        features, numbers, places = self._batch(numbers, length or self.max_seq_length)
        words = np.where(features["input_mask"], self._words[places], _NOT_FIRST)
        features["label_mask"] = (words != _NOT_FIRST).astype(np.int32)
        features["continues_sentence"] = features["is_real_example"] * self._continues[numbers]
        if self.labels is not None:
            labels = np.where(words != _NOT_FIRST, self.labels[words], 0)
            features["label_ids"] = labels.astype(np.int32)
        return features

    def by_sentence(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Joins values of positions, [F, ...] for each window in order, to values of words, [number
        of words, ...] for each sentence."""
        sentences: list[list[np.ndarray]] = []
        for number, row in enumerate(rows):
            end = self._ends[number]
            words = self._words[end - self.lengths[number] : end]
            if not self._continues[number]:
                sentences.append([])
            sentences[-1].append(np.asarray(row)[: len(words)][words != _NOT_FIRST])
        return [np.concatenate(parts) for parts in sentences]

    def _windows(self, words: Sequence[str], tokenizer: Tokenizer) -> list[list[list[int]]]:
        """Returns the windows of a sentence, each a list of words, each a list of ids."""
        room = self.max_seq_length - 2
        windows: list[list[list[int]]] = [[]]
        free = room
        for word in words:
            # Every word needs a piece for its tag: a word without pieces, such as a control
            # character, becomes the unknown token, and a word of more than F - 2 pieces loses its
            # last ones.
            pieces = tokenizer.encode(word) or [tokenizer.unk_id]
            self.num_cut += len(pieces) > room
            pieces = pieces[:room]
            if len(pieces) > free:
                windows.append([])
                free = room
            windows[-1].append(pieces)
            free -= len(pieces)
        return windows
