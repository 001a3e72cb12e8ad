"""WordPiece as operations of a TensorFlow graph: the tokens of `tokenization.FullTokenizer`.

The operations are TensorFlow's own, so an exported model needs neither this project nor
tensorflow-text. Cleaning, lower-casing, decomposition and the removal of accents are a table of the
characters that they change.

A single text takes the time of the number of operations. So texts, words and pieces are flat
tensors here, since ragged operations check their arguments with many more. Many texts take the time
of the operations on strings, so characters stay numbers until the words are known.

The canonical order of several marks on one letter is not done here. It matters only for the few
marks that are not removed with the accents, such as the tone marks of old Hangul.

Letters: T texts, N characters of all texts, W words of all texts, C characters of all words,
P pieces of all words.
"""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.serving.graph import graph_characters
from bert_estimator.serving.graph.graph_characters import Tokens
from bert_estimator.tokenization import UNK, FullTokenizer
from bert_estimator.tokenization.wordpiece import (
    CONTINUATION,
    cleaned,
    is_punctuation,
    without_accents,
)

_HASHES = (1 << 63) - 1
_MOST_CHARACTERS_OF_A_WORD = 200
_SPACE = ord(" ")
_SMALL_SIGMA, _FINAL_SIGMA = 0x3C3, 0x3C2
# In the rows of a table: the character itself, and nothing.
_ITSELF, _NOTHING = -2, -1
# Among the pieces of a word: pieces cannot cover the word.
_LOST = -2


class _Table(NamedTuple):
    """Says what characters become.

    Attributes:
      starts, rows: int32, the first code of each range of codes, and the range's row.
      codes: int32 [rows, most characters], the codes that a character becomes.
    """

    starts: np.ndarray
    rows: np.ndarray
    codes: np.ndarray


class _Words(NamedTuple):
    """Holds the words of texts.

    Attributes:
      strings: strings [W].
      lengths: int64 [W], the number of characters of each.
      texts: int64 [W], the number of each word's text.
      sources: int64 [C], which of the N characters each character of the words comes from.
    """

    strings: tf.Tensor
    lengths: tf.Tensor
    texts: tf.Tensor
    sources: tf.Tensor


class _Pieces(NamedTuple):
    """Holds the pieces of words: their ids, int32 [P], and the number of each one's word, int64."""

    ids: tf.Tensor
    words: tf.Tensor


class GraphWordPiece:
    """Adds a tokenizer to the current graph.

    Args:
      tokenizer: the tokenizer to do the same as.

    Raises:
      ValueError: two tokens have the same hash; this does not happen by chance.
    """

    def __init__(self, tokenizer: FullTokenizer):
        self._tokenizer = tokenizer
        self._table = _table(tokenizer.do_lower_case, tokenizer.strips_accents)
        tokens = np.array([token.encode() for token in tokenizer.vocab], object)
        with tf.Graph().as_default(), tf.Session() as session:
            hashes = session.run(tf.strings.to_hash_bucket_fast(tf.constant(tokens), _HASHES))
        if len(np.unique(hashes)) < len(hashes):
            raise ValueError("two tokens of the vocabulary have the same hash")
        self._order = np.argsort(hashes)
        self._hashes, self._tokens = hashes[self._order], tokens[self._order]
        sizes = [len(token.removeprefix(CONTINUATION)) for token in tokenizer.vocab]
        self._sizes = np.array([len(token) for token in tokenizer.vocab], np.int64)
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
        return _by_text(self._pieces(words), words, codes.nrows())

    def with_offsets(self, codes: tf.RaggedTensor) -> Tokens:
        """Returns the tokens of texts with the characters that they come from.

        Args:
          codes: the characters of the texts, int32 [T, (characters)].
        """
        words = self._words(codes)
        pieces = self._pieces(words)
        ids = _by_text(pieces, words, codes.nrows())
        # Pieces share the characters of all words among them.
        sizes = tf.gather(self._sizes, pieces.ids)
        is_first = tf.not_equal(pieces.words, tf.concat([[-1], pieces.words], axis=0)[:-1])
        sizes = tf.where_v2(is_first, sizes, sizes - len(CONTINUATION))
        is_unknown = tf.equal(pieces.ids, self._tokenizer.unk_id)
        sizes = tf.where_v2(is_unknown, tf.gather(words.lengths, pieces.words), sizes)
        after = tf.cumsum(sizes)
        before = tf.gather(codes.row_starts(), ids.value_rowids())
        starts = tf.gather(words.sources, after - sizes) - before
        ends = tf.gather(words.sources, after - 1) + 1 - before
        tokens = Tokens(ids, ids.with_values(starts), ids.with_values(ends))
        return graph_characters.with_marks(codes, tokens)

    def _words(self, codes):
        """Returns the `_Words` of texts, which have the characters int32 [T, (characters)]."""
        flat, table = codes.flat_values, self._table
        rows = graph_characters.in_ranges(flat, table.starts, table.rows)
        made = tf.gather(tf.constant(table.codes), rows)
        made = tf.where_v2(tf.equal(made, _ITSELF), flat[:, tf.newaxis], made)
        if self._tokenizer.do_lower_case:
            made = _with_final_sigmas(codes, made)
        # A word is a row of characters of one text without a space.
        place = tf.where_v2(made >= 0)
        made = tf.gather_nd(made, place)
        is_inside = tf.where_v2(tf.not_equal(made, _SPACE))
        made = tf.gather_nd(made, is_inside)
        sources = tf.gather_nd(place[:, 0], is_inside)
        texts = graph_characters.upper_bound(codes.row_splits, sources) - 1
        number = is_inside[:, 0] + texts  # the next one within a word, and more between words
        starts = tf.where_v2(tf.not_equal(number, tf.concat([[-2], number], axis=0)[:-1] + 1))
        splits = tf.concat([starts[:, 0], tf.shape(made, out_type=tf.int64)], axis=0)
        strings = tf.raw_ops.UnicodeEncode(
            input_values=made, input_splits=splits, output_encoding="UTF-8"
        )
        return _Words(strings, splits[1:] - splits[:-1], tf.gather_nd(texts, starts), sources)

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
        """Splits words that are not tokens.

        Args:
          words: strings [number].
          lengths: int64 [number], the number of characters of each.

        Returns:
          int32 [number, steps]: the ids of the pieces of each word, then _NOTHING; _LOST among them
          if no piece fits.
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
        place = tf.maximum(graph_characters.upper_bound(self._hashes, hashes) - 1, 0)
        is_token = tf.equal(tf.gather(tf.constant(self._tokens), place), strings)
        return tf.where_v2(is_token, tf.gather(tf.constant(self._order, tf.int32), place), -1)


def _first_words(words, most):
    """Returns the first words of each text, at most `most`; their `sources` are of all words."""
    number = tf.range(tf.size(words.texts, out_type=tf.int64))
    first = graph_characters.lower_bound(words.texts, words.texts)
    kept = tf.where_v2(number - first < most)
    parts = (tf.gather_nd(part, kept) for part in (words.strings, words.lengths, words.texts))
    return _Words(*parts, words.sources)


def _by_text(pieces, words, number):
    """Returns the ids of pieces by text, int32 [T, (tokens)]; `number` is T."""
    texts = tf.gather(words.texts, pieces.words)
    return tf.RaggedTensor.from_value_rowids(pieces.ids, texts, number, validate=False)


def _with_final_sigmas(codes, made):
    """Makes final sigmas of small ones where `str.lower` does.

    Args:
      codes: the characters of texts, int32 [T, (characters)].
      made: int32 [N, most characters], what each becomes.
    """

    def with_final():
        is_kept = made[:, 0] >= 0
        final = graph_characters.final_sigmas(
            tf.ragged.boolean_mask(codes, codes.with_values(is_kept))
        )
        is_final = tf.scatter_nd(tf.where_v2(is_kept), final, tf.shape(is_kept, out_type=tf.int64))
        is_sigma = is_final[:, tf.newaxis] & tf.equal(made, _SMALL_SIGMA)
        return tf.where_v2(is_sigma, _FINAL_SIGMA, made)

    has_sigma = tf.reduce_any(tf.equal(codes.flat_values, graph_characters.SIGMA))
    return tf.cond(has_sigma, with_final, lambda: made)


@functools.cache
def _table(do_lower_case, strips_accents):
    """Returns the `_Table`, made by the functions that `FullTokenizer` calls."""
    rows: dict[tuple[int, ...], int] = {(_ITSELF,): 0}
    row_of = np.zeros(graph_characters.CODES, np.int32)
    for code in graph_characters.assigned():
        made = _replacement(code, do_lower_case, strips_accents)
        row = tuple(_ITSELF if c == chr(code) else ord(c) for c in made)
        row_of[code] = rows.setdefault(row, len(rows))
    codes = np.full([len(rows), max(map(len, rows))], _NOTHING, np.int32)
    for row, number in rows.items():
        codes[number, : len(row)] = row
    return _Table(*graph_characters.ranges(row_of), codes)


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
