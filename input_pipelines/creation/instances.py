"""Pretraining instances: two segments for next-sentence prediction, before they are masked.

The segments are chosen as in google-research/bert's data creation (BERT paper, appendix A.2), with
three differences:

1. Each document has a random generator of its own, derived from (seed, turn, document number), so
   that documents can be processed in any order.
2. If there is no other document to draw a random next segment from, the label stays true to the
   text.
3. Whether an instance is short is drawn for each instance, not once for a whole document.

If the objective is "mlm_sop", the task is sentence order instead (ALBERT paper, section 3.1): B is
always a neighbour of A in the text, and half of the time the two are swapped. If it is "mlm", there
are masked words alone: A is whole sentences, and B is empty.

On disk, pairs are dealt to buckets, the parts of the records that are shuffled in memory. A file is
`<path>.pairs`, with the pairs of each residue of their places divided by the number of buckets, and
`<path>.npz`, which says where each residue's pairs are and which tokens are in pairs, and is
written last.
"""

import dataclasses
import functools
import itertools
import os
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_estimator.command_line.choices import MLM
from bert_estimator.system import disk_files
from bert_estimator.system.splitmix import keys
from input_pipelines.creation.settings import CreationSettings

TokenizedDocument = Sequence[Sequence[int]]
"""A document as a sequence of sentences, each a non-empty sequence of token ids."""


class FlatText:
    """Holds documents as one array of ids, with the places at which their sentences begin."""

    def __init__(
        self,
        ids: np.ndarray,  # integers [number of tokens]
        sentence_lengths: np.ndarray,  # integers [number of sentences], in tokens, positive
        document_lengths: np.ndarray,  # integers [number of documents], in sentences, positive
        numbers: np.ndarray,  # integers [number of documents], their places in the whole text
    ):
        self.ids = ids
        # Single elements of lists are read several times as fast as elements of arrays.
        # The last element of both is the end of the last sentence or document.
        self.starts: list[int] = [0, *np.cumsum(sentence_lengths, dtype=np.int64).tolist()]
        self.first_sentences: list[int] = [0, *np.cumsum(document_lengths).tolist()]
        self.numbers: list[int] = numbers.tolist()

    @classmethod
    def of(cls, documents: Iterable[TokenizedDocument]) -> "FlatText":
        """Returns documents in this form, numbered from 0."""
        documents = list(documents)
        sentences = [sentence for document in documents for sentence in document]
        return cls(
            np.array(list(itertools.chain.from_iterable(sentences)), np.int64),
            np.array([len(sentence) for sentence in sentences], np.int64),
            np.array([len(document) for document in documents], np.int64),
            np.arange(len(documents)),
        )

    def __len__(self) -> int:
        return len(self.numbers)

    def joined(self, separator: int) -> "tuple[FlatText, np.ndarray]":
        """Returns a text whose only document is all documents, with a separator, a sentence of its
        own, between two; and the places of the separators, int64 [number of documents - 1]."""
        sentences = np.array(self.first_sentences[1:-1], np.int64)
        places = np.array(self.starts)[sentences]
        lengths = np.insert(np.diff(self.starts), sentences, 1)
        ids = np.insert(self.ids, places, separator)
        text = FlatText(ids, lengths, np.array([len(lengths)]), np.array(self.numbers[:1]))
        return text, places + np.arange(len(places))

    def end_of(self, first: int, last: int, length: int) -> int:
        """Returns the end of the fewest sentences from `first` on that have `length` tokens, a
        positive number; `last` if the sentences before it have fewer."""
        starts = self.starts
        return min(bisect_left(starts, starts[first] + length, first, last + 1), last)


# The key of an instance is the number of its document, then its number within the document.
_INSTANCE_BITS = 24
_RANGES_AT_ONCE = 1024


class Span(NamedTuple):
    """Says which tokens are segments: A begins at `a` and ends before `a_end`, and so does B."""

    a: int
    a_end: int
    b: int
    b_end: int
    is_random_next: bool  # also if B comes before A


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Holds n pairs of segments."""

    # Ids of A, then of B, of each pair in turn; integers [number of tokens].
    tokens: np.ndarray
    lengths: np.ndarray  # int64 [n, 2], of A and of B, which is 0 for masked words alone
    labels: np.ndarray  # int64 [n], 1 if B is random or comes before A, else 0
    keys: np.ndarray  # int64 [n], which differ between the pairs of a turn
    turns: np.ndarray  # int64 [n], the pass over the text that made each pair

    def __len__(self) -> int:
        return len(self.labels)

    def chosen(self, rows: np.ndarray) -> "Pairs":
        """Returns the pairs with these numbers, in their order."""
        sizes = self.lengths.sum(axis=1)
        starts = np.cumsum(sizes) - sizes
        return Pairs(
            taken(self.tokens, starts[rows], sizes[rows]),
            self.lengths[rows],
            self.labels[rows],
            self.keys[rows],
            self.turns[rows],
        )

    def blocks(self, number: int) -> "Iterator[Pairs]":
        """Yields the pairs in order, this number of pairs at a time."""
        ends = np.cumsum(self.lengths.sum(axis=1)).tolist()
        for first in range(0, len(self), number):
            rows = slice(first, first + number)
            tokens = self.tokens[ends[first - 1] if first else 0 : ends[rows][-1]]
            yield Pairs(
                tokens, self.lengths[rows], self.labels[rows], self.keys[rows], self.turns[rows]
            )

    @classmethod
    def joined(cls, parts: list["Pairs"]) -> "Pairs":
        """Returns the pairs of all parts, one part after the other."""
        return cls(
            *(
                np.concatenate([getattr(part, field.name) for part in parts])
                for field in dataclasses.fields(cls)
            )
        )


def places(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the numbers from each start on, as many as its length, one range after the other."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if ends.size else 0)


def taken(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns `values[places(starts, lengths)]`, with less memory: 24 bytes a place otherwise."""
    ends = np.cumsum(lengths).tolist()
    result = np.empty(ends[-1] if ends else 0, values.dtype)
    begin = 0
    for first in range(0, len(ends), _RANGES_AT_ONCE):
        some = slice(first, first + _RANGES_AT_ONCE)
        end = ends[some][-1]
        result[begin:end] = values[places(starts[some], lengths[some])]
        begin = end
    return result


def make_pairs(
    text: FlatText, settings: CreationSettings, turn: int, separator: int | None = None
) -> tuple[Pairs, np.ndarray]:
    """Makes the pairs of all documents of a text, in order, in a pass; returns them, and which
    tokens of the text are in any of them, bool [number of tokens]. With a separator, which stands
    between documents, they go across documents."""
    spans_of, added = spans_of_document, np.zeros(0, np.int64)
    if settings.objective == MLM:
        spans_of = functools.partial(rows_of_document, separator=separator)
    if separator is not None:
        text, added = text.joined(separator)
    spans: list[int] = []
    counts = []
    for index in range(len(text)):
        before = len(spans)
        for span in spans_of(text, index, settings, turn):
            spans += span
        counts.append((len(spans) - before) // 5)
    table = np.array(spans, np.int64).reshape(-1, 5)
    counts = np.array(counts, np.int64)
    first_of_document = np.repeat(np.cumsum(counts) - counts, counts)
    within = np.arange(len(table)) - first_of_document
    numbers = np.repeat(np.array(text.numbers, np.int64), counts)
    starts, ends = table[:, [0, 2]], table[:, [1, 3]]
    lengths = ends - starts
    # Each segment adds 1 where it begins and takes 1 where it ends: the running sum says how many
    # segments a token is in, without a loop over the tokens.
    depths = np.zeros(len(text.ids) + 1, np.int32)
    np.add.at(depths, starts, 1)
    np.add.at(depths, ends, -1)
    used = np.cumsum(depths, out=depths)[:-1] > 0
    pairs = Pairs(
        taken(text.ids, starts.reshape(-1), lengths.reshape(-1)),
        lengths,
        table[:, 4],
        numbers << _INSTANCE_BITS | within,
        np.full(len(table), turn),
    )
    return pairs, np.delete(used, added)


def spans_of_document(
    text: FlatText, index: int, settings: CreationSettings, turn: int
) -> Iterator[Span]:
    """Yields the pairs of a document, of 2 to `max_seq_length` - 3 tokens; no segment is empty."""
    rng = random.Random(f"{settings.random_seed}/{turn}/{text.numbers[index]}")
    uniform, starts = rng.random, text.starts
    longest = settings.max_seq_length - 3
    draws_next = settings.random_next_sentence
    start, last = text.first_sentences[index : index + 2]
    while start < last:
        target = longest
        if uniform() < settings.short_seq_prob:
            target = rng.randint(2, longest)
        end = text.end_of(start, last, target)
        is_single = end - start == 1
        between = start + 1 if is_single else rng.randint(start + 1, end - 1)
        a, a_end = starts[start], starts[between]
        other = None
        if draws_next and (is_single or uniform() < 0.5):
            other = _random_sentence(text, index, start, end, rng)
        if other is not None:
            b, last_of_other = other
            b_end = text.end_of(b, last_of_other, max(1, target - (a_end - a)))
            yield truncated(Span(a, a_end, starts[b], starts[b_end], True), longest, rng)
            # The sentences that would have followed are used by the next instance.
            start = between
            continue
        start, b_end = end, starts[end]
        if is_single:
            # A single sentence without other text is split in halves.
            a_end = a + (b_end - a + 1) // 2
        # The rest of a document may be one token, which does not give a pair.
        if a_end == b_end:
            continue
        if not draws_next and uniform() < 0.5:
            yield truncated(Span(a_end, b_end, a, a_end, True), longest, rng)
        else:
            yield truncated(Span(a, a_end, a_end, b_end, False), longest, rng)


def rows_of_document(
    text: FlatText,
    index: int,
    settings: CreationSettings,
    turn: int,
    separator: int | None = None,
) -> Iterator[Span]:
    """Yields what a document gives for masked words alone (RoBERTa paper, section 4.2): as many
    whole sentences as fit, of 2 to `max_seq_length` - 2 tokens, as A; B is empty. A sentence that
    does not fit by itself is cut. No row begins or ends with a separator."""
    rng = random.Random(f"{settings.random_seed}/{turn}/{text.numbers[index]}")
    starts, longest = text.starts, settings.max_seq_length - 2
    first, last = text.first_sentences[index : index + 2]
    start = starts[first]
    while start < starts[last]:
        if text.ids[start] == separator:
            start += 1
            continue
        target = longest
        if rng.random() < settings.short_seq_prob:
            target = rng.randint(2, longest)
        following = bisect_right(starts, start + target, first, last + 1)
        end = starts[following - 1]
        if end <= start:
            end = min(starts[following], start + longest)
        a_end = end - int(text.ids[end - 1] == separator)
        # A token alone does not have a context to be predicted from.
        if a_end - start > 1:
            yield Span(start, a_end, a_end, a_end, False)
        start = end


def truncated(span: Span, most: int, rng: random.Random) -> Span:
    """Shortens the longer segment, token by token, at a random one of its two ends."""
    a, a_end, b, b_end, is_random_next = span
    # Tokens go at both ends, so that neither beginnings nor ends of sentences are favoured.
    for _ in range(a_end - a + b_end - b - most):
        at_begin = rng.random() < 0.5
        if a_end - a > b_end - b:
            if at_begin:
                a += 1
            else:
                a_end -= 1
        elif at_begin:
            b += 1
        else:
            b_end -= 1
    return Span(a, a_end, b, b_end, is_random_next)


def _random_sentence(
    text: FlatText, index: int, start: int, end: int, rng: random.Random
) -> tuple[int, int] | None:
    """Draws a random sentence of another document; returns it and the end of its document, or None
    if there is no other sentence."""
    if len(text) > 1:
        other = rng.randrange(len(text) - 1)
        other += other >= index
        first, last = text.first_sentences[other : other + 2]
        return first + rng.randrange(last - first), last
    # The only document: not from `start` to `end`, and not the sentence after them, which is the
    # true next one.
    last = text.first_sentences[1]
    before, after = start, max(0, last - end - 1)
    if before + after == 0:
        return None
    position = rng.randrange(before + after)
    return (position if position < before else position + end + 1 - before), last


_DEALING_SEED = 0xDEA1  # tells the order in which pairs are dealt from other orders
_ROWS = np.dtype(
    [("key", "<i8"), ("turn", "<i4"), ("a", "<i4"), ("b", "<i4"), ("label", "i1")], align=False
)


def write_pairs(pairs: Pairs, used: np.ndarray, path: str, num_buckets: int, seed: int) -> None:
    """Writes pairs to the files of a path without suffix; the seed decides which pairs meet in a
    bucket, and `used` says which tokens of the text are in pairs."""
    # In a random order, pairs are dealt to the buckets in turn. Which bucket is the first depends
    # on how many pairs the files before have, so all buckets have the same number, give or take
    # one.
    order = np.argsort(keys(seed ^ _DEALING_SEED, pairs.turns, pairs.keys), kind="stable")
    offsets, counts = [0], []
    with disk_files.writer(path + ".pairs", "wb") as file:
        for residue in range(num_buckets):
            dealt = pairs.chosen(order[residue::num_buckets])
            rows = np.empty(len(dealt), _ROWS)
            rows["key"], rows["turn"], rows["label"] = dealt.keys, dealt.turns, dealt.labels
            rows["a"], rows["b"] = dealt.lengths.T
            file.write(rows.tobytes())
            file.write(dealt.tokens.tobytes())
            offsets.append(file.tell())
            counts.append(len(dealt))
    with disk_files.writer(path + ".npz", "wb") as file:
        # It is written last, since a file of pairs without it does not count.
        np.savez(
            file,
            offsets=np.array(offsets),
            counts=np.array(counts),
            num_pairs=len(pairs),
            used=np.packbits(used),
        )


def pairs_are_written(path: str) -> bool:
    """Returns whether a file is complete: a kill while it is removed may leave one of its files."""
    return all(os.path.exists(path + suffix) for suffix in (".pairs", ".npz"))


def num_pairs(path: str) -> int:
    """Returns the number of pairs in a file."""
    with np.load(path + ".npz") as index:
        return int(index["num_pairs"])


def num_used(paths: Sequence[str]) -> int:
    """Returns how many tokens of a text are in the pairs of any of its files, one for a turn."""
    whole = np.uint8(0)
    for path in paths:
        with np.load(path + ".npz") as index:
            whole = whole | index["used"]
    return int(np.unpackbits(whole).sum())


def read_pairs(path: str, residue: int, id_type: np.dtype) -> Pairs:
    """Reads the pairs whose places have a residue, of the file at a path without suffix."""
    with np.load(path + ".npz") as index:
        start, end = index["offsets"][residue : residue + 2].tolist()
        count = int(index["counts"][residue])
    with open(path + ".pairs", "rb") as file:
        file.seek(start)
        content = file.read(end - start)
    rows = np.frombuffer(content, _ROWS, count)
    tokens = np.frombuffer(content, id_type, offset=count * _ROWS.itemsize)
    lengths = np.stack([rows["a"], rows["b"]], axis=1).astype(np.int64)
    return Pairs(
        tokens,
        lengths,
        rows["label"].astype(np.int64),
        rows["key"].astype(np.int64),
        rows["turn"].astype(np.int64),
    )
