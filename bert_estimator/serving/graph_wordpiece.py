"""WordPiece as operations of a TensorFlow graph: the tokens of `tokenization.FullTokenizer`.

The operations are TensorFlow's own, so an exported model needs neither this project nor
tensorflow-text. Cleaning, lower-casing, decomposition and the removal of accents are a table of the
characters that they change.

The canonical order of several marks on one letter is not done here. It matters only for the few
marks that are not removed with the accents, such as the tone marks of old Hangul.

Letters: T texts, W words of all texts, C characters of all texts, V tokens of the vocabulary.
"""

import functools
import unicodedata
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.serving import graph_characters, graph_offsets
from bert_estimator.serving.graph_offsets import Tokens
from bert_estimator.tokenization import UNK, FullTokenizer
from bert_estimator.tokenization.wordpiece import CONTINUATION, cleaned, is_punctuation

_KEPT, _DROPPED, _SPACE, _OWN_WORD, _REPLACED = range(5)
_HASHES = (1 << 63) - 1
_MOST_CHARACTERS_OF_A_WORD = 200


class _Characters(NamedTuple):
    """What happens to characters.

    Attributes:
      starts, kinds: the first code of each range of codes, and what happens to the range's codes.
      codes, replacements: the codes of kind _REPLACED, ascending, and what replaces each.
    """

    starts: np.ndarray
    kinds: np.ndarray
    codes: np.ndarray
    replacements: list[str]


class GraphWordPiece:
    """Adds a tokenizer to the current graph.

    Args:
      tokenizer: the tokenizer to do the same as.

    Raises:
      ValueError: two tokens have the same hash; this does not happen by chance.
    """

    def __init__(self, tokenizer: FullTokenizer):
        self._tokenizer = tokenizer
        self._characters = _characters(tokenizer.do_lower_case)
        tokens = np.array([token.encode() for token in tokenizer.vocab], object)
        with tf.Graph().as_default(), tf.Session() as session:
            hashes = session.run(tf.strings.to_hash_bucket_fast(tf.constant(tokens), _HASHES))
        if len(np.unique(hashes)) < len(hashes):
            raise ValueError("two tokens of the vocabulary have the same hash")
        self._order = np.argsort(hashes)
        self._hashes, self._tokens = hashes[self._order], tokens[self._order]
        sizes = [len(token.removeprefix(CONTINUATION)) for token in tokenizer.vocab]
        self._sizes = np.array([len(token) for token in tokenizer.vocab], np.int32)
        self._longest = min(max(sizes), _MOST_CHARACTERS_OF_A_WORD)

    def __call__(self, texts: tf.Tensor, most_words: int | None = None) -> tf.RaggedTensor:
        """Returns the ids of the tokens of texts, int32 [T, (tokens)], without special tokens.

        Args:
          texts: strings [T] in UTF-8; bytes that are not UTF-8 are left out.
          most_words: how many words of each text are looked at; by default all. A word has at least
            one token.
        """
        codes = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
        words = _words(self._cleaned(codes)[0])
        if most_words is not None:
            words = words[:, :most_words]
        return words.with_values(self._pieces(words.flat_values)).merge_dims(1, 2)

    def with_offsets(self, codes: tf.RaggedTensor) -> Tokens:
        """Returns the tokens of texts with the characters that they come from.

        Args:
          codes: the characters of the texts, int32 [T, (characters)].
        """
        cleaned, places = self._cleaned(codes)
        words = _words(cleaned)
        pieces = self._pieces(words.flat_values)
        # Pieces share the characters of all words among them.
        sizes = tf.gather(self._sizes, pieces.flat_values)
        is_first = tf.equal(tf.ragged.range(pieces.row_lengths()).flat_values, 0)
        sizes = tf.where_v2(is_first, sizes, sizes - len(CONTINUATION))
        lengths = tf.strings.length(words.flat_values, unit="UTF8_CHAR")
        is_unknown = tf.equal(pieces.flat_values, self._tokenizer.unk_id)
        sizes = tf.where_v2(is_unknown, tf.gather(lengths, pieces.value_rowids()), sizes)
        counts = tf.strings.length(cleaned.flat_values, unit="UTF8_CHAR")
        sources = tf.repeat(places, counts)
        is_space = tf.equal(_decoded(cleaned).flat_values, ord(" "))
        sources = tf.boolean_mask(sources, ~is_space)
        first = tf.cumsum(sizes, exclusive=True)
        ids = words.with_values(pieces).merge_dims(1, 2)
        starts = ids.with_values(tf.gather(sources, first))
        ends = ids.with_values(tf.gather(sources, first + sizes - 1) + 1)
        return graph_offsets.with_marks(codes, Tokens(ids, starts, ends))

    def _cleaned(self, codes):
        """Cleans texts up.

        Args:
          codes: their characters, int32 [T, (characters)].

        Returns:
          (what the characters become, but for characters that are dropped, strings
          [T, (characters)], with spaces around single words; the number of each of these characters
          in its text, int64 [characters]).
        """
        table = self._characters
        kinds = graph_characters.in_ranges(codes.flat_values, table.starts, table.kinds)
        is_kept = tf.not_equal(kinds, _DROPPED)
        kind = tf.boolean_mask(kinds, is_kept)
        places = tf.boolean_mask(tf.ragged.range(codes.row_lengths()).flat_values, is_kept)
        codes = tf.ragged.boolean_mask(codes, codes.with_values(is_kept))
        flat = codes.flat_values
        characters = graph_characters.replaced(flat, table.codes, table.replacements)
        if self._tokenizer.do_lower_case:
            final = graph_characters.final_sigmas(codes)
            characters = tf.where_v2(final, tf.fill(tf.shape(flat), "ς"), characters)
        characters = tf.where_v2(
            tf.equal(kind, _OWN_WORD), tf.strings.join([" ", characters, " "]), characters
        )
        characters = tf.where_v2(tf.equal(kind, _SPACE), tf.fill(tf.shape(flat), " "), characters)
        return codes.with_values(characters), places

    def _pieces(self, words):
        """Returns the ids of the pieces of words [W], a ragged int32 [W, (pieces)]."""
        whole = self._lookup(words)
        is_long = tf.strings.length(words, unit="UTF8_CHAR") > _MOST_CHARACTERS_OF_A_WORD
        unknown = self._tokenizer.vocab[UNK]
        whole = tf.where_v2(is_long, tf.fill(tf.shape(whole), unknown), whole)
        rest = tf.cast(tf.where_v2(whole < 0)[:, 0], tf.int32)
        ids = self._split(tf.gather(words, rest))
        width = tf.maximum(tf.shape(ids)[1], 1)
        table = tf.concat([whole[:, tf.newaxis], tf.fill([tf.size(words), width - 1], -1)], axis=1)
        ids = tf.pad(ids, [[0, 0], [0, width - tf.shape(ids)[1]]], constant_values=-1)
        table = tf.tensor_scatter_nd_update(table, rest[:, tf.newaxis], ids)
        return tf.ragged.boolean_mask(table, table >= 0)

    def _split(self, words):
        """Returns the pieces of words that are not tokens, int32 [W, steps], -1 after the last."""
        lengths = tf.strings.length(words, unit="UTF8_CHAR")
        sizes = tf.range(1, self._longest + 1)

        def is_unfinished(start, ids):
            del ids
            return tf.reduce_any(start < lengths)

        def step(start, ids):
            rest = tf.strings.substr(
                words, start, tf.fill(tf.shape(start), 1 << 20), unit="UTF8_CHAR"
            )
            shape = [tf.size(start), self._longest]
            parts = tf.strings.substr(
                tf.broadcast_to(rest[:, tf.newaxis], shape),
                tf.zeros(shape, tf.int32),
                tf.broadcast_to(sizes, shape),
                unit="UTF8_CHAR",
            )
            prefix = tf.where_v2(start > 0, tf.fill(tf.shape(start), CONTINUATION), "")
            prefixes = tf.broadcast_to(prefix[:, tf.newaxis], shape)
            found = self._lookup(tf.strings.join([prefixes, parts]))
            is_active = start < lengths
            best = tf.reduce_max(
                tf.where_v2(found >= 0, tf.broadcast_to(sizes, shape), 0 * found), 1
            )
            piece = tf.gather(found, tf.maximum(best - 1, 0), batch_dims=1)
            is_lost = is_active & tf.equal(best, 0)
            piece = tf.where_v2(is_active & ~is_lost, piece, -tf.ones_like(piece))
            ids = tf.concat([ids, piece[:, tf.newaxis]], axis=1)
            # A word that pieces cannot cover is unknown as a whole.
            unknown = tf.one_hot(
                tf.zeros_like(start),
                tf.shape(ids)[1],
                self._tokenizer.vocab[UNK],
                -1,
                dtype=tf.int32,
            )
            ids = tf.where_v2(tf.broadcast_to(is_lost[:, tf.newaxis], tf.shape(ids)), unknown, ids)
            ahead = tf.where_v2(is_lost, lengths, tf.minimum(start + best, lengths))
            return tf.where_v2(is_active, ahead, start), ids

        _, ids = tf.while_loop(
            is_unfinished,
            step,
            (tf.zeros_like(lengths), tf.zeros([tf.size(words), 0], tf.int32)),
            shape_invariants=(tf.TensorShape([None]), tf.TensorShape([None, None])),
        )
        return ids

    def _lookup(self, strings):
        """Returns the ids of strings of any shape, int32; -1 for a string that is not a token."""
        hashes = tf.reshape(tf.strings.to_hash_bucket_fast(strings, _HASHES), [-1])
        place = tf.minimum(tf.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        place = tf.reshape(place, tf.shape(strings))
        ids = tf.gather(tf.constant(self._order, tf.int32), place)
        is_token = tf.equal(tf.gather(tf.constant(self._tokens), place), strings)
        return tf.where_v2(is_token, ids, -tf.ones_like(ids))


def _decoded(characters):
    """Returns the characters of texts, which have parts [T, (parts)], int32 [T, (characters)]."""
    return tf.strings.unicode_decode(tf.strings.reduce_join(characters, axis=-1), "UTF-8")


def _words(characters):
    """Returns the words between the spaces of texts of parts, strings [T, (words)]."""
    return tf.strings.split(tf.strings.reduce_join(characters, axis=-1), result_type="RaggedTensor")


@functools.cache
def _characters(do_lower_case):
    """Returns `_Characters`, made by the functions that `FullTokenizer` calls."""
    kinds = np.zeros(graph_characters.CODES, np.int32)
    codes, replacements = [-1], [""]  # so that the table has an entry in any case
    for code in graph_characters.assigned():
        kinds[code], replacement = _fate(code, do_lower_case)
        if kinds[code] == _REPLACED:
            codes.append(code)
            replacements.append(replacement)
    return _Characters(*graph_characters.ranges(kinds), np.array(codes, np.int32), replacements)


def _fate(code, do_lower_case):
    """Returns (what happens to a character, what replaces it)."""
    character = chr(code)
    text = cleaned(code)
    if not text:
        return _DROPPED, ""
    if not text.strip() or character.isspace():
        return _SPACE, " "
    if do_lower_case:
        decomposed = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
    spaced = "".join(f" {c} " if is_punctuation(c) else c for c in text)
    if spaced == character:
        return _KEPT, character
    if spaced == f" {character} ":
        return _OWN_WORD, spaced
    return (_REPLACED, spaced) if spaced else (_DROPPED, "")
