"""SentencePiece as operations of a TensorFlow graph: the pieces of `SentencePieceTokenizer`.

The cleaning before the model is TensorFlow's own operations, which follow tables made by Python's
`unicodedata`; the model is an operation of tensorflow-text (the extra `[text]`). Whoever loads an
exported model has to import tensorflow_text before.

tensorflow-text has two operations for SentencePiece. `SentencepieceTokenizer` has another version
of the package sentencepiece, which sums scores in another order: if two ways to split a text are
equally likely, as for a row of equal letters, it may take the other one. So unigram models like
ALBERT's and ours are run by `FastSentencepieceTokenizer`, which sums as the package does, but does
not know other kinds of models. `probes` are texts that show whether it does. It does not tell where
pieces come from, either: another operation does this for single characters (`_Spelled`).

Letters: T texts, C characters of all texts, V pieces of the vocabulary.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.serving.graph import graph_characters
from bert_estimator.serving.graph.graph_characters import Tokens
from bert_estimator.tokenization import SentencePieceTokenizer, sentencepiece_tokenizer
from bert_estimator.tokenization.sentencepiece_tokenizer import (
    CHAR,
    NORMAL,
    UNIGRAM,
    USER_DEFINED,
    WORD_START,
    without_marks,
)

_QUOTES = ("`", "'")  # two of them become a quotation mark
_ALL = 1 << 30  # more characters than a piece has
# Before this version, `FastSentencepieceTokenizer` counts the pieces of all texts together in 16
# bits; more pieces end the process or damage its memory.
_FAST_SINCE = (2, 20)


class _Preprocessed(NamedTuple):
    """Holds what `sentencepiece_tokenizer.preprocess` makes of texts.

    Attributes:
      texts: strings [T].
      starts, ends: int64 [characters of these strings], the range of characters of the original
        text that each comes from.
    """

    texts: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


def load_operations() -> str:
    """Loads the operations of tensorflow-text, so that graphs may have them.

    Returns:
      Why they cannot be loaded, and what to install; "" if they are loaded.
    """
    try:
        import tensorflow_text  # noqa: F401
    except ImportError as error:
        reason = "it is not installed" if error.name == "tensorflow_text" else str(error)
    except tf.errors.NotFoundError as error:  # it is for another TensorFlow
        reason = error.message
    else:
        return ""
    version = ".".join(tf.__version__.split(".")[:2])
    return (
        f"the graph of a SentencePiece vocabulary needs tensorflow-text of TensorFlow {version} "
        f'({reason}). Install it: pip install "tensorflow-text=={version}.*"'
    )


class GraphSentencePiece:
    """Adds a tokenizer to the current graph.

    Args:
      tokenizer: the tokenizer to do the same as.

    Raises:
      ImportError: tensorflow-text cannot be loaded.
    """

    def __init__(self, tokenizer: SentencePieceTokenizer):
        self._serialized = tokenizer.serialized_model()
        why_not = why_not_model(self._serialized)
        if why_not:
            raise ImportError(why_not)
        self._do_lower_case = tokenizer.do_lower_case
        self._codes, self._replacements = _table(tokenizer.do_lower_case, tokenizer.strips_accents)
        again = tokenizer.split_again()
        self._model = _operation(self._serialized)
        self._pieces = tf.ragged.constant(
            [
                tokenizer.convert_tokens_to_ids(again[number]) if number in again else [number]
                for number in range(tokenizer.vocab_size)
            ],
            tf.int32,
        )
        # How many characters of a piece each of its parts has.
        self._sizes = [
            [len(part.replace(WORD_START, "")) for part in again.get(number, ())] or [_ALL]
            for number in range(tokenizer.vocab_size)
        ]

    def __call__(self, texts: tf.Tensor, most_words: int | None = None) -> tf.RaggedTensor:
        """Returns the ids of the pieces of texts, int32 [T, (pieces)], without special tokens.

        Args:
          texts: strings [T] in UTF-8; bytes that are not UTF-8 are left out.
          most_words: not used: what a word becomes may depend on the words after it.
        """
        codes = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
        ids = self._model.tokenize(self._preprocessed(codes).texts)
        return tf.gather(self._pieces, ids.with_row_splits_dtype(tf.int64)).merge_dims(1, 2)

    def with_offsets(self, codes: tf.RaggedTensor) -> Tokens:
        """Returns the tokens of texts with the characters that they come from.

        Args:
          codes: the characters of the texts, int32 [T, (characters)].

        Raises:
          ValueError: see `why_not_offsets`.
        """
        made = self._preprocessed(codes)
        inner, ids, starts, ends = self._surfaces(made.texts)
        # The mark of a space is not a part of what a piece comes from.
        is_text = ~graph_characters.is_space(inner.flat_values)
        starts = tf.minimum(graph_characters.next_place(is_text, starts), ends)
        parts = tf.gather(self._pieces, ids.flat_values)  # [pieces, (parts)]
        piece = parts.value_rowids()
        sizes = tf.gather(tf.ragged.constant(self._sizes, tf.int64), ids.flat_values)
        first = tf.ragged.constant([_before(sizes) for sizes in self._sizes], tf.int64)
        first = tf.gather(first, ids.flat_values)
        starts = tf.gather(starts, piece) + first.flat_values
        ends = tf.minimum(starts + sizes.flat_values, tf.gather(ends, piece))
        text = tf.gather(ids.value_rowids(), piece)
        # A part without characters of its own comes from the empty range before the next character.
        last = tf.size(made.starts, out_type=tf.int64) - 1
        start = tf.where_v2(
            starts < tf.gather(inner.row_limits(), text),
            tf.gather(made.starts, tf.minimum(starts, last)),
            tf.gather(codes.row_lengths(), text),
        )
        end = tf.where_v2(starts < ends, tf.gather(made.ends, tf.maximum(ends, 1) - 1), start)
        tokens = ids.with_values(parts).merge_dims(1, 2)
        tokens = Tokens(tokens, tokens.with_values(start), tokens.with_values(end))
        return graph_characters.with_marks(codes, tokens)

    def _surfaces(self, texts):
        """Returns the model's pieces of texts that `_preprocessed` made.

        Returns:
          (the characters of the texts, int32 [T, (characters)]; the ids of the pieces, int32
          [T, (pieces)]; the range that each comes from among the characters of all texts, two
          tensors int64 [pieces]).
        """
        codes, places = tf.strings.unicode_decode_with_offsets(texts, "UTF-8")
        model = self._model
        if not hasattr(model, "tokenize_with_offsets"):
            model = _Spelled(model, self._serialized)
        ids, *bounds = (
            tensor.with_row_splits_dtype(tf.int64) for tensor in model.tokenize_with_offsets(texts)
        )
        before = tf.cumsum(tf.cast(tf.strings.length(texts), tf.int64), exclusive=True)
        places = places.flat_values + tf.gather(before, places.value_rowids())
        base = tf.gather(before, ids.value_rowids())
        starts, ends = (
            tf.searchsorted(places, tf.cast(bound.flat_values, tf.int64) + base, out_type=tf.int64)
            for bound in bounds
        )
        return codes, ids, starts, ends

    def _preprocessed(self, codes):
        """Returns `_Preprocessed` of texts, which have the characters int32 [T, (characters)]."""
        is_kept = ~graph_characters.is_space(codes.flat_values)
        text, place, flat = (
            tf.boolean_mask(tensor, is_kept)
            for tensor in (
                codes.value_rowids(),
                tf.ragged.range(codes.row_lengths()).flat_values,
                codes.flat_values,
            )
        )
        is_inside = tf.equal(text[1:], text[:-1])
        is_next = tf.equal(place[1:], place[:-1] + 1)
        after_space = _after_first(flat, is_inside & ~is_next)
        is_again = _after_first(flat, is_inside & is_next & tf.equal(flat[1:], flat[:-1]))
        is_quote = tf.reduce_any([tf.equal(flat, ord(quote)) for quote in _QUOTES], axis=0)
        is_second = is_quote & tf.equal(_number_in_run(is_again) % 2, 1)
        is_first = tf.concat([is_second[1:], tf.zeros_like(is_second[:1])], axis=0)
        flat = tf.where_v2(is_first, ord('"'), flat)
        end = place + 1 + tf.cast(is_first, tf.int64)
        text, place, flat, end, after_space = (
            tf.boolean_mask(tensor, ~is_second) for tensor in (text, place, flat, end, after_space)
        )
        characters = graph_characters.replaced(flat, self._codes, self._replacements)
        characters = tf.strings.join([tf.where_v2(after_space, " ", ""), characters])
        counts = tf.strings.length(characters, unit="UTF8_CHAR")
        of_texts = tf.RaggedTensor.from_value_rowids(characters, text, nrows=codes.nrows())
        texts = tf.strings.reduce_join(of_texts, axis=-1)
        if self._do_lower_case:
            texts = self._with_small_sigmas(texts)
        return _Preprocessed(texts, tf.repeat(place, counts), tf.repeat(end, counts))

    def _with_small_sigmas(self, texts):
        """Returns texts [T], lower-cased but for their sigmas, with the sigmas lower-cased, too."""
        codes = tf.strings.unicode_decode(texts, "UTF-8")
        final = codes.with_values(graph_characters.final_sigmas(codes))
        flat = codes.flat_values
        small = tf.where_v2(final.flat_values, ord("\u03c2"), ord("\u03c3"))
        flat = tf.where_v2(tf.equal(flat, graph_characters.SIGMA), small, flat)
        return tf.strings.unicode_encode(codes.with_values(flat), "UTF-8")


class _Spelled:
    """Does what `FastSentencepieceTokenizer` does, and tells where the pieces come from.

    What is unknown to a model is unknown to a model of its single characters, and a row of unknown
    characters is one piece of both. So the other pieces are told by the numbers of their
    characters.

    Args:
      fast: the operation.
      model: its serialized model.

    Raises:
      ValueError: see `why_not_offsets`.
    """

    def __init__(self, fast, model):
        import tensorflow_text

        why_not = why_not_offsets(model)
        if why_not:
            raise ValueError(why_not)
        spelled = sentencepiece_tokenizer.parsed_model(model)
        spelled.trainer_spec.model_type = CHAR
        pieces = list(spelled.pieces)
        del spelled.pieces[:]
        spelled.pieces.extend(p for p in pieces if p.type != NORMAL or len(p.piece) == 1)
        self._fast = fast
        self._of_characters = tensorflow_text.SentencepieceTokenizer(spelled.SerializeToString())
        self._sizes = [len(p.piece) if p.type == NORMAL else 1 for p in pieces]

    def tokenize_with_offsets(self, texts):
        """Returns (ids, first bytes, bytes after the last), [T, (pieces)] each."""
        ids = self._fast.tokenize(texts).with_row_splits_dtype(tf.int64)
        _, starts, ends = self._of_characters.tokenize_with_offsets(texts)
        sizes = tf.gather(self._sizes, ids.flat_values)
        after = tf.cumsum(sizes)
        return (
            ids,
            ids.with_values(tf.gather(starts.flat_values, after - sizes)),
            ids.with_values(tf.gather(ends.flat_values, after - 1)),
        )


def why_not_model(model: bytes) -> str:
    """Returns why a graph cannot split text by a serialized model; "" if it can."""
    missing = load_operations()
    version = tuple(map(int, tf.__version__.split(".")[:2]))
    if missing or version >= _FAST_SINCE or not _is_fast(model):
        return missing
    return (
        "tensorflow-text's operation for unigram models fails with large batches before TensorFlow "
        f"{'.'.join(map(str, _FAST_SINCE))}, and this is {tf.__version__}"
    )


def why_not_offsets(model: bytes) -> str:
    """Returns why it cannot be told where a model's pieces come from; "" if it can.

    Args:
      model: the serialized model.
    """
    if not _is_fast(model):
        return ""
    proto = sentencepiece_tokenizer.parsed_model(model)
    known = {p.piece for p in proto.pieces if p.type in (NORMAL, USER_DEFINED)}
    for piece in (p.piece for p in proto.pieces if p.type == NORMAL):
        missing = [character for character in piece if character not in known]
        if missing:
            return (
                f"the vocabulary has the piece {piece!r} without the piece {missing[0]!r}, so that "
                "a graph cannot tell which characters the pieces of a text come from"
            )
    return ""


def probes(tokenizer: SentencePieceTokenizer) -> Iterator[str]:
    """Yields texts whose tokens differ if a model has features that its operation does not have.

    They are each piece between others, known and unknown characters, and spaces.
    """
    pieces = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    for piece in pieces:
        text = piece.replace(WORD_START, " ")
        yield from (text, f"a{text}b {piece} \u4e2d{text}\u0416\U0001f600", f"{text * 9} {text}")
    yield from ("", " ", "a  b", "\u2581", "\u4e2d\u2581 \u2581a", "\x00 a\x00b")


def _operation(model):
    """Returns tensorflow-text's tokenizer of a serialized model, which is put into the graph."""
    import tensorflow_text

    if _is_fast(model):
        return tensorflow_text.FastSentencepieceTokenizer(model)
    return tensorflow_text.SentencepieceTokenizer(model)


def _is_fast(model):
    """Returns whether `FastSentencepieceTokenizer` runs a serialized model."""
    proto = sentencepiece_tokenizer.parsed_model(model)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    return bool(
        trainer.model_type == UNIGRAM
        and not trainer.byte_fallback
        and not trainer.treat_whitespace_as_suffix
        and normalizer.precompiled_charsmap
        and normalizer.add_dummy_prefix
    )


def _before(sizes):
    """Returns the sums of the sizes before each size."""
    return list(itertools.accumulate(sizes[:-1], initial=0))


def _after_first(row, flags):
    """Returns a flag for each item of a row, false for the first, if there is any."""
    return tf.concat([tf.zeros_like(row[:1], tf.bool), flags], axis=0)


def _number_in_run(is_again):
    """Returns the number of each place within its run: is_again is false where a run begins."""
    places = tf.range(tf.size(is_again, out_type=tf.int64))
    begins = tf.boolean_mask(places, ~is_again)
    return places - tf.gather(begins, tf.cumsum(tf.cast(~is_again, tf.int64)) - 1)


@functools.cache
def _table(do_lower_case, strips_accents):
    """Returns (the codes that change, int32, ascending; what each becomes).

    If accents are stripped, a character becomes its NFKD without marks.

    Capital sigmas stay: their lower case depends on the characters around them. Every other
    character may be lower-cased by itself, before its marks are removed or after.
    """
    codes, replacements = [-1], [""]  # so that the table has an entry in any case
    for code in graph_characters.assigned():
        text = without_marks(chr(code)) if strips_accents else chr(code)
        if do_lower_case:
            text = "Σ".join(part.lower() for part in text.split("Σ"))
        if text != chr(code):
            codes.append(code)
            replacements.append(text)
    return np.array(codes, np.int32), replacements
