"""What tokenizers in a graph do to single characters, by tables made with Python's `unicodedata`.

TensorFlow's graphs do not have operations for Unicode's normal forms, and other libraries know
other versions of Unicode; the tables are what the tokenizers in Python do.

A capital sigma at the end of a word becomes a final sigma, as `str.lower` says; that is the one
rule of lower-casing that looks at more than one character.

Offsets say which characters of a text its tokens come from. They do what `tokenization.offsets`
does. A character is a code point of Unicode, as in SQuAD's `answer_start`; bytes that are not UTF-8
do not count.

Letters: T texts, C characters of all texts.
"""

import functools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.tokenization.casing import case_beside_sigma

CODES = 0x110000
SIGMA = ord("Σ")
_SURROGATES = range(0xD800, 0xE000)

# What `str.split` takes for white space, as a class of a regular expression.
SPACES = "[" + "".join(f"\\x{{{c:x}}}" for c in range(CODES) if chr(c).isspace()) + "]"


def assigned() -> Iterator[int]:
    """Yields the codes of characters that tables look at; all other codes are kept as they are.

    UTF-8 does not have surrogates. Beyond all CJK blocks, codes without a character are left out.
    """
    for code in range(CODES):
        if code not in _SURROGATES and not (
            code > 0x30000 and unicodedata.category(chr(code)) in "CnCo"
        ):
            yield code


def is_space(codes: tf.Tensor) -> tf.Tensor:
    """Returns which codes are white space to `str.split` and `str.strip`."""
    return in_ranges(codes, *_spaces())


def in_ranges(codes: tf.Tensor, starts: np.ndarray, values: np.ndarray) -> tf.Tensor:
    """Returns the value of the range that each code is in; see `ranges`."""
    return tf.gather(tf.constant(values), upper_bound(starts, codes) - 1)


def lower_bound(row: np.ndarray | tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns how many items of an ascending row are less than each of `values`, int64.

    `tf.searchsorted` does the same with many more operations.
    """
    return tf.raw_ops.LowerBound(
        sorted_inputs=row[np.newaxis], values=values[tf.newaxis], out_type=tf.int64
    )[0]


def upper_bound(row: np.ndarray | tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns how many items of an ascending row are at most each of `values`, int64."""
    return tf.raw_ops.UpperBound(
        sorted_inputs=row[np.newaxis], values=values[tf.newaxis], out_type=tf.int64
    )[0]


def ranges(values: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """Returns (first places of the runs of equal values, int32; the values of the runs)."""
    values = np.array(values)
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return starts.astype(np.int32), values[starts]


def replaced(codes: tf.Tensor, table: np.ndarray, replacements: Sequence[str]) -> tf.Tensor:
    """Replaces characters.

    Args:
      codes: the characters, int32 [C].
      table: the codes that are replaced, ascending, at least one.
      replacements: what replaces each of them.

    Returns:
      Strings [C].
    """
    characters = tf.strings.unicode_encode(codes[:, tf.newaxis], "UTF-8")
    place = tf.minimum(tf.searchsorted(table, codes), len(table) - 1)
    is_replaced = tf.equal(tf.gather(tf.constant(table), place), codes)
    other = tf.gather(tf.constant(list(replacements)), place)
    return tf.where_v2(is_replaced, other, characters)


def final_sigmas(codes: tf.RaggedTensor) -> tf.Tensor:
    """Returns which characters of texts [T, (characters)] are a sigma at the end of a word.

    Returns:
      bool [C]: true for a capital sigma whose lower case is the final sigma.
    """
    flat = codes.flat_values
    return tf.cond(
        tf.reduce_any(tf.equal(flat, SIGMA)),
        lambda: _final_sigmas(codes),
        lambda: tf.zeros_like(flat, tf.bool),
    )


def _final_sigmas(codes):
    flat = codes.flat_values
    cases = in_ranges(flat, *_cases())
    cases = tf.where_v2(tf.equal(flat, SIGMA), tf.fill(tf.shape(flat), "S"), cases)
    joined = tf.strings.reduce_join(codes.with_values(cases), axis=-1)
    marked = tf.strings.regex_replace(joined, "([cS]i*)S(i*(?:o|$))", r"\1F\2")
    return tf.equal(tf.strings.bytes_split(marked).flat_values, "F")


@functools.cache
def _spaces():
    """Returns the `ranges` of codes, true for white space."""
    return ranges([chr(code).isspace() for code in range(CODES)])


@functools.cache
def _cases():
    """Returns the `ranges` of codes with a letter each: "c" has a case, "i" is ignored when cases
    are looked at, "o" is anything else."""
    cases = np.full(CODES, "o")
    for code in assigned():
        cases[code] = case_beside_sigma(chr(code))
    return ranges(cases)


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
    is_mark = in_ranges(codes.flat_values, *_marks())
    after = next_place(~is_mark, first + ends) - first
    ends = tf.maximum(ends, tf.minimum(after, limits))
    return tokens._replace(ends=tokens.ends.with_values(ends))


@functools.cache
def _marks():
    """Returns the `ranges` of codes, true for combining marks."""
    is_mark = np.zeros(CODES, bool)
    for code in assigned():
        is_mark[code] = unicodedata.category(chr(code)).startswith("M")
    return ranges(is_mark)
