"""WordPiece as operations of a TensorFlow graph: the tokens of `tokenization.FullTokenizer`.

The operations are TensorFlow's own, so an exported model needs nothing else. TensorFlow has none
for Unicode's normal forms, and other libraries know other versions of Unicode. So cleaning,
lower-casing, decomposition and the removal of accents are a table of the characters that they
change, which Python's own functions make.

A single text takes the time of the number of operations. So texts, words and pieces are flat
tensors here, since ragged operations check their arguments with many more. Many texts take the time
of the operations on strings, so characters stay numbers until the words are known.

The canonical order of several marks on one letter is not done here. It matters only for the few
marks that are not removed with the accents, such as the tone marks of old Hangul.

Letters: T texts, N characters of all texts, W words of all texts, P pieces of all words.
"""

import functools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.tokenization import UNK, FullTokenizer
from bert_estimator.tokenization.casing import case_beside_sigma
from bert_estimator.tokenization.wordpiece import (
    CONTINUATION,
    cleaned,
    is_punctuation,
    without_accents,
)

_CODES, _SURROGATES = 0x110000, range(0xD800, 0xE000)
_HASHES = (1 << 63) - 1
_MOST_CHARACTERS_OF_A_WORD = 200
_SPACE = ord(" ")
_SIGMA, _SMALL_SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C3, 0x3C2
# In the rows of a table: the character itself, and nothing.
_ITSELF, _NOTHING = -2, -1
# Among the pieces of a word: pieces cannot cover the word.
_LOST = -2


class _Table(NamedTuple):
    """Says what characters become."""

    # int32, the first code of each range of codes, and the range's row.
    starts: np.ndarray
    rows: np.ndarray
    codes: np.ndarray  # int32 [rows, most characters], the codes that a character becomes


class _Words(NamedTuple):
    """Holds the words of texts."""

    strings: tf.Tensor  # [W]
    lengths: tf.Tensor  # int64 [W], the number of characters of each
    texts: tf.Tensor  # int64 [W], the number of each word's text


class _Pieces(NamedTuple):
    """Holds the pieces of words."""

    ids: tf.Tensor  # int32 [P]
    words: tf.Tensor  # int64 [P], the number of each piece's word


class GraphWordPiece:
    """Adds to graphs what does the same as a tokenizer."""

    def __init__(self, tokenizer: FullTokenizer):
        self._tokenizer = tokenizer
        self._table = _table(tokenizer.do_lower_case, tokenizer.strips_accents)
        tokens = np.array([token.encode() for token in tokenizer.vocab], object)
        with tf.Graph().as_default(), tf.Session() as session:
            hashes = session.run(tf.strings.to_hash_bucket_fast(tf.constant(tokens), _HASHES))
        # It does not happen by chance.
        if len(np.unique(hashes)) < len(hashes):
            raise ValueError("two tokens of the vocabulary have the same hash")
        self._order = np.argsort(hashes)
        self._hashes, self._tokens = hashes[self._order], tokens[self._order]
        own = list(tokenizer.wordpiece_tokenizer.whole_words.values())
        self._is_whole = np.isin(np.arange(len(tokens)), own)
        sizes = [len(token.removeprefix(CONTINUATION)) for token in tokenizer.vocab]
        self._longest = min(max(sizes), _MOST_CHARACTERS_OF_A_WORD)

    def __call__(self, texts: tf.Tensor, most_words: int | None = None) -> tf.RaggedTensor:
        """Returns the ids of the tokens of texts, int32 [T, (tokens)], without special tokens.

        Args:
          texts: strings [T] in UTF-8; bytes that are not UTF-8 are left out.
          most_words: how many words of each text are looked at; by default all. A word has at least
            one token.
        """
        codes = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
        words = self._words(codes)
        if most_words is not None:
            words = _first_words(words, most_words)
        pieces = self._pieces(words)
        return tf.RaggedTensor.from_value_rowids(
            pieces.ids, tf.gather(words.texts, pieces.words), codes.nrows(), validate=False
        )

    def _words(self, codes):
        """Returns the `_Words` of texts, which have the characters int32 [T, (characters)]."""
        flat, table = codes.flat_values, self._table
        rows = _in_ranges(flat, table.starts, table.rows)
        characters = tf.gather(tf.constant(table.codes), rows)
        characters = tf.where_v2(tf.equal(characters, _ITSELF), flat[:, tf.newaxis], characters)
        if self._tokenizer.do_lower_case:
            characters = _with_final_sigmas(codes, characters)
        # A word is a row of characters of one text without a space.
        place = tf.where_v2(characters >= 0)
        characters = tf.gather_nd(characters, place)
        is_inside = tf.where_v2(tf.not_equal(characters, _SPACE))
        characters = tf.gather_nd(characters, is_inside)
        sources = tf.gather_nd(place[:, 0], is_inside)
        texts = _upper_bound(codes.row_splits, sources) - 1
        number = is_inside[:, 0] + texts  # the next one within a word, and more between words
        starts = tf.where_v2(tf.not_equal(number, tf.concat([[-2], number], axis=0)[:-1] + 1))
        splits = tf.concat([starts[:, 0], tf.shape(characters, out_type=tf.int64)], axis=0)
        strings = tf.raw_ops.UnicodeEncode(
            input_values=characters, input_splits=splits, output_encoding="UTF-8"
        )
        return _Words(strings, splits[1:] - splits[:-1], tf.gather_nd(texts, starts))

    def _pieces(self, words):
        """Returns the `_Pieces` of `_Words`."""
        unknown = self._tokenizer.vocab[UNK]
        whole = self._lookup(words.strings)
        whole = tf.where_v2(words.lengths > _MOST_CHARACTERS_OF_A_WORD, unknown, whole)
        others = tf.where_v2(whole < 0)
        split = self._split(
            tf.gather_nd(words.strings, others), tf.gather_nd(words.lengths, others)
        )
        # A word that pieces cannot cover is unknown as a whole.
        is_lost = tf.reduce_any(tf.equal(split, _LOST), axis=1, keepdims=True)
        steps = tf.shape(split)[1]
        lost = tf.where_v2(tf.equal(tf.range(steps), 0), unknown, _NOTHING)
        split = tf.where_v2(is_lost, lost, split)
        shape = tf.stack([tf.size(whole), steps])
        split = tf.scatter_nd(others, split - _NOTHING, tf.cast(shape, tf.int64)) + _NOTHING
        table = tf.concat([whole[:, tf.newaxis], split], axis=1)
        place = tf.where_v2(table >= 0)
        return _Pieces(tf.gather_nd(table, place), place[:, 0])

    def _split(self, words, lengths):
        """Splits words that are not tokens, strings [number], with `lengths` characters, int64.

        Returns int32 [number, steps]: the ids of the pieces of each word, then _NOTHING; _LOST
        among them if no piece fits.
        """
        number = tf.size(words)
        vocab_size = len(self._tokens)

        def is_unfinished(start, ids):
            del ids
            return tf.reduce_any(start < lengths)

        def step(start, ids):
            rest = lengths - start
            place = tf.where_v2(np.arange(self._longest) < rest[:, tf.newaxis])
            word, size = place[:, 0], place[:, 1] + 1
            first = tf.gather(start, word)
            parts = tf.strings.substr(tf.gather(words, word), first, size, unit="UTF8_CHAR")
            prefix = tf.where_v2(first > 0, CONTINUATION, "")
            piece_id = tf.cast(self._lookup(tf.strings.join([prefix, parts])), tf.int64)
            if self._is_whole.any():  # which the look-up of words has found
                is_whole = tf.gather(tf.constant(self._is_whole), tf.maximum(piece_id, 0))
                piece_id = tf.where_v2(is_whole, tf.cast(-1, tf.int64), piece_id)
            # Sizes are compared first, and sizes of one word differ.
            piece_id = tf.where_v2(piece_id >= 0, size * vocab_size + piece_id, -1)
            best = tf.math.unsorted_segment_max(piece_id, word, number)
            is_found = best >= 0
            piece = tf.where_v2(
                is_found,
                tf.cast(best % vocab_size, tf.int32),
                tf.where_v2(rest > 0, _LOST, _NOTHING),
            )
            start = tf.where_v2(is_found, start + best // vocab_size, lengths)
            return start, tf.concat([ids, piece[:, tf.newaxis]], axis=1)

        _, ids = tf.while_loop(
            is_unfinished,
            step,
            (tf.zeros_like(lengths), tf.zeros([number, 0], tf.int32)),
            shape_invariants=(tf.TensorShape([None]), tf.TensorShape([None, None])),
        )
        return ids

    def _lookup(self, strings):
        """Returns the ids of strings [number], int32; -1 for a string that is not a token."""
        hashes = tf.strings.to_hash_bucket_fast(strings, _HASHES)
        place = tf.maximum(_upper_bound(self._hashes, hashes) - 1, 0)
        is_token = tf.equal(tf.gather(tf.constant(self._tokens), place), strings)
        return tf.where_v2(is_token, tf.gather(tf.constant(self._order, tf.int32), place), -1)


def _first_words(words, most):
    """Returns the first words of each text, at most `most`."""
    number = tf.range(tf.size(words.texts, out_type=tf.int64))
    first = _lower_bound(words.texts, words.texts)
    kept = tf.where_v2(number - first < most)
    return _Words(*(tf.gather_nd(part, kept) for part in words))


def _with_final_sigmas(codes, replacements):
    """Makes final sigmas of small ones where `str.lower` does; `replacements`, int32 [N, most
    characters], are what each of the characters `codes`, int32 [T, (characters)], becomes."""

    def with_final():
        is_kept = replacements[:, 0] >= 0
        final = _final_sigmas(tf.ragged.boolean_mask(codes, codes.with_values(is_kept)))
        is_final = tf.scatter_nd(tf.where_v2(is_kept), final, tf.shape(is_kept, out_type=tf.int64))
        is_sigma = is_final[:, tf.newaxis] & tf.equal(replacements, _SMALL_SIGMA)
        return tf.where_v2(is_sigma, _FINAL_SIGMA, replacements)

    has_sigma = tf.reduce_any(tf.equal(codes.flat_values, _SIGMA))
    return tf.cond(has_sigma, with_final, lambda: replacements)


def _final_sigmas(codes):
    """Returns which characters of texts [T, (characters)] are a capital sigma at the end of a word,
    whose lower case is the final sigma: bool, for the characters of all texts."""
    # That is the one rule of lower-casing that looks at more than one character.
    flat = codes.flat_values
    cases = _in_ranges(flat, *_cases())
    cases = tf.where_v2(tf.equal(flat, _SIGMA), tf.fill(tf.shape(flat), "S"), cases)
    joined = tf.strings.reduce_join(codes.with_values(cases), axis=-1)
    marked = tf.strings.regex_replace(joined, "([cS]i*)S(i*(?:o|$))", r"\1F\2")
    return tf.equal(tf.strings.bytes_split(marked).flat_values, "F")


@functools.cache
def _cases():
    """Returns the `_ranges` of codes with a letter each: "c" has a case, "i" is ignored when cases
    are looked at, "o" is anything else."""
    cases = np.full(_CODES, "o")
    for code in _assigned():
        cases[code] = case_beside_sigma(chr(code))
    return _ranges(cases)


@functools.cache
def _table(do_lower_case, strips_accents):
    """Returns the `_Table`, made by the functions that `FullTokenizer` calls."""
    rows: dict[tuple[int, ...], int] = {(_ITSELF,): 0}
    row_of = np.zeros(_CODES, np.int32)
    for code in _assigned():
        text = _replacement(code, do_lower_case, strips_accents)
        row = tuple(_ITSELF if c == chr(code) else ord(c) for c in text)
        row_of[code] = rows.setdefault(row, len(rows))
    codes = np.full([len(rows), max(map(len, rows))], _NOTHING, np.int32)
    for row, number in rows.items():
        codes[number, : len(row)] = row
    return _Table(*_ranges(row_of), codes)


def _replacement(code, do_lower_case, strips_accents):
    """Returns what a character becomes, with spaces around single words."""
    character = chr(code)
    text = cleaned(code)
    if not text:
        return ""
    if not text.strip() or character.isspace():
        return " "
    if do_lower_case:
        text = text.lower()
    if strips_accents:
        text = without_accents(text)
    return "".join(f" {c} " if is_punctuation(c) else c for c in text)


def _assigned() -> Iterator[int]:
    """Yields the codes of characters that tables look at; all other codes are kept as they are."""
    # UTF-8 does not have surrogates. Beyond all CJK blocks, codes without a character are left out.
    for code in range(_CODES):
        if code not in _SURROGATES and not (
            code > 0x30000 and unicodedata.category(chr(code)) in "CnCo"
        ):
            yield code


def _ranges(values: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Returns (first places of the runs of equal values, int32; the values of the runs)."""
    values = np.array(values)
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return starts.astype(np.int32), values[starts]


def _in_ranges(codes: tf.Tensor, starts: np.ndarray, values: np.ndarray) -> tf.Tensor:
    """Returns the value of the range that each code is in; see `_ranges`."""
    return tf.gather(tf.constant(values), _upper_bound(starts, codes) - 1)


def _lower_bound(row: np.ndarray | tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns how many items of an ascending row are less than each of `values`, int64."""
    # `tf.searchsorted` does the same with many more operations.
    return tf.raw_ops.LowerBound(
        sorted_inputs=row[np.newaxis], values=values[tf.newaxis], out_type=tf.int64
    )[0]


def _upper_bound(row: np.ndarray | tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns how many items of an ascending row are at most each of `values`, int64."""
    return tf.raw_ops.UpperBound(
        sorted_inputs=row[np.newaxis], values=values[tf.newaxis], out_type=tf.int64
    )[0]
