"""Questions with the windows of their contexts as ids: [CLS] question [SEP] window [SEP].

A context that is longer than the room beside its question is read through windows that overlap, as
in Devlin et al. (2018) and google-research/bert's `run_squad.py`.

Letters: B batch size, F sequence length, W number of windows.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from bert_estimator.tokenization import Tokenizer
from input_pipelines.tasks import squad_files
from input_pipelines.tasks.long_texts import spans
from input_pipelines.tasks.squad_files import Answer, Question


class Context:
    """Holds the tokens of a context."""

    def __init__(self, text: str, tokenizer: Tokenizer):
        tokens = tokenizer.tokenize_with_offsets(text)
        ids = tokenizer.convert_tokens_to_ids([token.string for token in tokens])
        self.text = text
        # int32 [tokens], with the range of the characters that each token comes from.
        self.ids = np.array(ids, np.int32)
        self.starts = np.array([token.start for token in tokens], np.int32)
        self.ends = np.array([token.end for token in tokens], np.int32)

    def tokens_of(self, answer: Answer) -> tuple[int, int] | None:
        """Returns the numbers of an answer's first and last token; None if it has no tokens."""
        end = answer.start + len(answer.text)
        (tokens,) = np.nonzero((self.ends > answer.start) & (self.starts < end))
        return (int(tokens[0]), int(tokens[-1])) if len(tokens) else None

    def characters_of(self, first: int, last: int) -> tuple[int, int]:
        """Returns the range of characters of tokens `first` to `last`, without white space around
        it."""
        # A token that only stands for a space comes from an empty range beside that space.
        part = self.text[self.starts[first] : self.ends[last]]
        start = int(self.starts[first]) + len(part) - len(part.lstrip())
        return start, start + len(part.strip())


class Windows:
    """Holds the windows of questions, which begin at most `doc_stride` tokens after one another;
    batches add the padding, and the positions of first answers if all are known. Questions are
    cut to `max_query_length` tokens; there must be room for a token beside them and 3 special
    tokens."""

    def __init__(
        self,
        questions: Sequence[Question],
        tokenizer: Tokenizer,
        max_seq_length: int,
        doc_stride: int,
        max_query_length: int,
    ):
        self.questions = list(questions)
        self.max_seq_length = max_seq_length
        # Questions that were cut; questions whose first answer does not have tokens.
        self.num_cut = self.num_lost = 0
        self._tokenizer = tokenizer
        of_text: dict[str, Context] = {}
        # Questions share their context, so each text is split once.
        for text in dict.fromkeys(question.context for question in self.questions):
            of_text[text] = Context(text, tokenizer)
        self.contexts = [of_text[question.context] for question in self.questions]
        ids = [context.ids for context in of_text.values()]
        unknown = sum(np.count_nonzero(part == tokenizer.unk_id) for part in ids)
        self.unknown_share = unknown / max(sum(map(len, ids)), 1)
        self._queries, rows = [], []
        for number, question in enumerate(self.questions):
            query = tokenizer.encode(question.text)
            self.num_cut += len(query) > max_query_length
            query = query[:max_query_length]
            self._queries.append(np.array(query, np.int32))
            context, place = self.contexts[number], len(query) + 2
            tokens = context.tokens_of(question.answers[0]) if question.answers else None
            self.num_lost += bool(question.answers) and tokens is None
            for start, length in spans(len(context.ids), max_seq_length - place - 1, doc_stride):
                rows.append((number, start, length, place, *_positions(tokens, start, length)))
        table = np.array(rows, np.int64).reshape(-1, 6).T
        # int64 [W] each: the number of the window's question, in order; the number of its first
        # token of the context, and how many there are; the position of this token in the sequence.
        self.owners, self.starts, self.sizes, self.places = table[:4]
        self.lengths = self.places + self.sizes + 1  # int64 [W], with [CLS], question and [SEP]
        self._positions = None
        if all(question.answers is not None for question in self.questions):
            # In a window that does not hold the whole answer both positions are 0, [CLS], and so
            # are the positions in all windows of a question without answer.
            in_sequence = np.where(table[4:] < 0, 0, table[4:] + self.places)
            self._positions = in_sequence.astype(np.int32)

    def __len__(self) -> int:
        return len(self.owners)

    def digest(self) -> bytes:
        """Returns a hash of the questions and of all that batches are made of."""
        digest = hashlib.sha256(squad_files.digest(self.questions))
        for array in (self.owners, self.starts, self.sizes, self.places, self._positions):
            digest.update(b"" if array is None else array.tobytes())
        for query, context in zip(self._queries, self.contexts, strict=True):
            digest.update(query.tobytes() + context.ids.tobytes())
        return digest.digest()

    def of_question(self, number: int) -> slice:
        """Returns the windows of a question."""
        return slice(*np.searchsorted(self.owners, [number, number + 1]))

    def batch(self, numbers: np.ndarray, length: int | None = None) -> dict[str, np.ndarray]:
        """Returns int32 features of the windows with these numbers [B], padded to a length, at
        least the longest window's (None for max_seq_length): [B, F], and [B] for `unique_ids` (the
        numbers), `is_real_example` and, if answers are known, `start_positions` and
        `end_positions`. The number -1 gives a padding of zeros."""
        shape = len(numbers), length or self.max_seq_length
        ids, mask, segments = (np.zeros(shape, np.int32) for _ in range(3))
        for row, number in enumerate(numbers):
            if number < 0:
                continue
            owner, start, size = self.owners[number], self.starts[number], self.sizes[number]
            place, query = self.places[number], self._queries[self.owners[number]]
            end = place + size
            ids[row, 0] = self._tokenizer.cls_id
            ids[row, 1 : place - 1] = query
            ids[row, place - 1] = ids[row, end] = self._tokenizer.sep_id
            ids[row, place:end] = self.contexts[owner].ids[start : start + size]
            mask[row, : end + 1] = 1
            # [CLS] question [SEP] is segment 0; the window and its [SEP] are segment 1.
            segments[row, place : end + 1] = 1
        features = {
            "input_ids": ids,
            "input_mask": mask,
            "segment_ids": segments,
            "unique_ids": numbers.astype(np.int32),
            "is_real_example": (numbers >= 0).astype(np.int32),
        }
        if self._positions is not None:
            positions = np.where(numbers >= 0, self._positions[:, numbers], 0)
            features["start_positions"], features["end_positions"] = positions
        return features

    def best_contexts(self, number: int) -> list[np.ndarray]:
        """Returns which tokens of each window of a question have most context there, bool
        [length]."""
        windows = self.of_question(number)
        bounds = list(zip(self.starts[windows], self.sizes[windows], strict=True))
        best = np.full(len(self.contexts[number].ids), -1.0)
        winner = np.full(best.shape, -1)
        for index, (start, length) in enumerate(bounds):
            left = np.arange(length)
            # A token of several windows counts in the window where the smaller number of tokens to
            # its left or right is largest; longer windows, and then earlier ones, win ties.
            score = np.minimum(left, left[::-1]) + 0.01 * length
            inside = slice(start, start + length)
            is_better = score > best[inside]
            best[inside] = np.where(is_better, score, best[inside])
            winner[inside] = np.where(is_better, index, winner[inside])
        return [winner[start : start + length] == i for i, (start, length) in enumerate(bounds)]


def _positions(tokens, start, length):
    """Returns where in a window an answer's first and last token are; -1 for both if outside."""
    if tokens is None or tokens[0] < start or tokens[1] >= start + length:
        return -1, -1
    return tokens[0] - start, tokens[1] - start
