"""Tokenized parts of a text, in files; any of their documents can be loaded together.

A part is two files: `<path>.ids` has the ids, marked if a segmenter says what a word is, and
`<path>.npz` has the lengths of words, sentences and documents, the counts of the ids and a hash of
the text. `<path>.npz` is written last.
"""

import array
import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from bert_estimator.system import disk_files
from bert_estimator.tokenization import Tokenizer
from input_pipelines.creation.instances import FlatText, taken
from input_pipelines.records.encoding import id_type
from input_pipelines.text import segmenters, sentences

_NO_SENTENCE = 512  # tokens
_LONGEST_WORD = 512  # tokens; longer words are counted together with words of this length


def write_part(
    documents: Iterable[Sequence[str]],
    tokenizer: Tokenizer,
    path: str,
    # Reason -> number of documents that are not among `documents`, once all are read.
    left_out: Mapping[str, int] | None = None,
    # A sentence with more tokens is split, as `_Splitter` says; None for no splitting.
    longest: int | None = None,
    segmenter: str | None = None,  # says what a word is; None for the tokenizer
    source: str = "",  # begins a message about the documents
) -> None:
    """Tokenizes documents of sentences to the files of a path; skips sentences of 0 tokens."""
    words = segmenters.Words(tokenizer, segmenter)
    encode = _Splitter(words, longest).encode if longest else lambda s: [words.encode(s)]
    dtype = segmenters.ID_TYPE if segmenter else id_type(tokenizer.vocab_size)
    digest = hashlib.sha256()
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    num_read, of_words = 0, np.zeros(_LONGEST_WORD + 1, np.int64)
    sentence_lengths, document_lengths = array.array("I"), array.array("I")
    with disk_files.writer(path + ".ids", "wb") as file:
        for document in documents:
            num_read += 1
            digest.update(("\n".join(document) + "\n\n").encode())
            try:
                encoded = [ids for sentence in document for ids in encode(sentence) if ids]
            except ValueError as error:  # of a segmenter
                raise ValueError(f"{source}document {num_read}: {error}") from error
            if not encoded:
                continue
            sentence_lengths.extend(map(len, encoded))
            document_lengths.append(len(encoded))
            ids = np.array([i for sentence in encoded for i in sentence])
            counts += np.bincount(segmenters.unmarked(ids)[0], minlength=len(counts))
            firsts = np.flatnonzero(words.begin(ids)[1:]) + 1
            sizes = np.diff([0, *firsts, len(ids)])
            np.add.at(of_words, np.minimum(sizes, _LONGEST_WORD), sizes)
            file.write(ids.astype(dtype).tobytes())
    # It is written last: the ids without it are not a part.
    with disk_files.writer(path + ".npz", "wb") as file:
        np.savez(
            file,
            sentence_lengths=np.array(sentence_lengths, np.uint32),
            document_lengths=np.array(document_lengths, np.uint32),
            counts=counts,
            num_read=num_read,
            of_words=of_words,
            digest=np.frombuffer(digest.digest(), np.uint8),
            reasons=np.array(list(left_out or ()), np.str_),
            left_out=np.array(list((left_out or {}).values()), np.int64),
        )


class _Splitter:
    """Tokenizes lines that may hold several sentences."""

    def __init__(self, words: segmenters.Words, longest: int):
        self._words, self._longest = words, longest

    def encode(self, line: str) -> list[list[int]]:
        """Returns the ids of each sentence of a line."""
        ids = self._words.encode(line)
        # A line is split only if it is long, so that lines that are sentences stay as they are.
        if len(ids) <= self._longest:
            return [ids]
        encoded = list(map(self._words.encode, sentences.split(line)))
        return [part for ids in encoded for part in self._parts(ids)]

    def _parts(self, ids):
        # What is longer does not have marks of sentences, as Thai does not: it is cut between
        # words.
        if len(ids) <= _NO_SENTENCE:
            return [ids]
        begins = self._words.begin(np.array(ids))
        ends = [0]
        size = max(1, self._longest // 4)  # tokens, about as many as a sentence has
        while len(ids) - ends[-1] > size:
            first, last = ends[-1] + 1, ends[-1] + size
            ends.append(next((end for end in range(last, first, -1) if begins[end]), last))
        return [ids[start:end] for start, end in itertools.pairwise([*ends, len(ids)])]


def is_written(path: str) -> bool:
    """Returns whether a part is complete: a kill while it is removed may leave one of its files."""
    return all(os.path.exists(path + suffix) for suffix in (".ids", ".npz"))


class TokenizedText:
    """Describes the text of some parts together, by their paths."""

    def __init__(self, paths: Sequence[str]):
        self.paths = list(paths)
        digests = []
        # The number of the first document of each part, and of what follows the last.
        self.first_documents = [0]
        # Documents with and without tokens; sentences with tokens.
        self.num_read = self.num_sentences = 0
        # int64: how many tokens are of words with 0, 1, 2 and so on tokens; the last, with more.
        self._of_words = np.zeros(_LONGEST_WORD + 1, np.int64)
        # int64 [vocab_size]
        self.token_counts = np.zeros(0, np.int64)
        # reason -> number of documents
        self.left_out: Counter[str] = Counter()
        for path in paths:
            with np.load(path + ".npz") as part:
                counts = part["counts"]
                self.token_counts = counts + (self.token_counts if digests else 0)
                self.num_read += int(part["num_read"])
                self._of_words += part["of_words"]
                self.num_sentences += len(part["sentence_lengths"])
                self.first_documents.append(
                    self.first_documents[-1] + len(part["document_lengths"])
                )
                digests.append(part["digest"].tobytes())
                reasons = part["reasons"].tolist()
                self.left_out.update(dict(zip(reasons, part["left_out"].tolist(), strict=True)))
        self.num_documents = self.first_documents[-1]
        # One part has the hash of its text, whichever files it came from; more have a hash of
        # hashes.
        whole = digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()
        self.sha256 = whole.hex()

    @property
    def num_tokens(self) -> int:
        return int(self.token_counts.sum())

    def tokens_of_words(self, least: int) -> int:
        """Returns how many tokens are of words with at least so many tokens."""
        return int(self._of_words[min(least, _LONGEST_WORD) :].sum())

    def load(
        self, is_chosen: Callable[[np.ndarray], np.ndarray], dtype: np.dtype | None = None
    ) -> FlatText:
        """Loads the documents that a function of their numbers, int64 [n], chooses, bool [n], with
        ids of a type, by default of ids without marks."""
        dtype = dtype or id_type(len(self.token_counts))
        ids, sentences, documents, numbers = [], [], [], []
        for path, first, end in zip(
            self.paths, self.first_documents, self.first_documents[1:], strict=False
        ):
            of_part = np.arange(first, end)
            chosen = is_chosen(of_part)
            if not chosen.any():
                continue
            with np.load(path + ".npz") as part:
                sentence_lengths = part["sentence_lengths"].astype(np.int64)
                document_lengths = part["document_lengths"].astype(np.int64)
            starts = np.concatenate([[0], np.cumsum(sentence_lengths)])
            firsts = np.concatenate([[0], np.cumsum(document_lengths)])
            begins, ends = starts[firsts[:-1]], starts[firsts[1:]]
            # The chosen documents lie anywhere: only the pages that hold them are read.
            tokens = np.memmap(path + ".ids", dtype, "r")
            ids.append(taken(tokens, begins[chosen], (ends - begins)[chosen]))
            sentences.append(taken(sentence_lengths, firsts[:-1][chosen], document_lengths[chosen]))
            documents.append(document_lengths[chosen])
            numbers.append(of_part[chosen])
        lists = (ids, sentences, documents, numbers)
        return FlatText(*(np.concatenate(some or [np.zeros(0, np.int64)]) for some in lists))
