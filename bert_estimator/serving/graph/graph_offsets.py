"""Which characters of a text its tokens come from, as operations of a graph.

They do what `tokenization.offsets` does. A character is a code point of Unicode, as in SQuAD's
`answer_start`; bytes that are not UTF-8 do not count.

Letters: T texts, C characters of all texts.
"""

import functools
import unicodedata
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.serving.graph import graph_characters


class Tokens(NamedTuple):
    """Holds the tokens of texts, as `Tokenizer.tokenize_with_offsets` gives them.

    Attributes:
      ids: int32 [T, (tokens)].
      starts, ends: int64 [T, (tokens)], the range of the characters that each token comes from.
    """

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


class Characters(NamedTuple):
    """Holds the characters of texts.

    Attributes:
      codes: int32 [T, (characters)].
      bytes: int64 [T, (characters + 1)], the number of bytes before each character and, last, the
        number of the text's bytes.
    """

    codes: tf.RaggedTensor
    bytes: tf.RaggedTensor


def characters(texts: tf.Tensor) -> Characters:
    """Returns the characters of texts, strings [T] in UTF-8."""
    codes, places = tf.strings.unicode_decode_with_offsets(texts, "UTF-8", errors="ignore")
    sizes = tf.cast(tf.strings.length(texts), tf.int64)
    return Characters(codes, tf.concat([places, sizes[:, tf.newaxis]], axis=1))


def next_place(is_here: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns the first place at or after each of `places` where `is_here`, bool [C], is true.

    If there is not any, it is C.
    """
    here = tf.concat([tf.where_v2(is_here)[:, 0], [tf.size(is_here, out_type=tf.int64)]], axis=0)
    return tf.gather(here, tf.searchsorted(here, places))


def place_after_last(is_here: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns the place after the last place before each of `places` where `is_here` is true.

    If there is not any, it is 0.
    """
    after = tf.concat([tf.zeros([1], tf.int64), tf.where_v2(is_here)[:, 0] + 1], axis=0)
    return tf.gather(after, tf.searchsorted(after, places, side="right") - 1)


def with_marks(codes: tf.RaggedTensor, tokens: Tokens) -> Tokens:
    """Does what `tokenization.offsets.with_marks` does.

    Args:
      codes: the characters of the texts, int32 [T, (characters)].
      tokens: their tokens.
    """
    row = tokens.starts.value_rowids()
    starts, ends = tokens.starts.flat_values, tokens.ends.flat_values
    number = tf.range(tf.size(row, out_type=tf.int64))
    is_last = tf.equal(number + 1, tf.gather(tokens.starts.row_limits(), row))
    following = tf.concat([starts[1:], starts[:1]], axis=0)
    limits = tf.where_v2(is_last, tf.gather(codes.row_lengths(), row), following)
    first = tf.gather(codes.row_starts(), row)
    is_mark = graph_characters.in_ranges(codes.flat_values, *_marks())
    after = next_place(~is_mark, first + ends) - first
    ends = tf.maximum(ends, tf.minimum(after, limits))
    return tokens._replace(ends=tokens.ends.with_values(ends))


@functools.cache
def _marks():
    """Returns the `graph_characters.ranges` of codes, true for combining marks."""
    is_mark = np.zeros(graph_characters.CODES, bool)
    for code in graph_characters.assigned():
        is_mark[code] = unicodedata.category(chr(code)).startswith("M")
    return graph_characters.ranges(is_mark)
