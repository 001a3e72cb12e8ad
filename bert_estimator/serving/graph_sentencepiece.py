"""SentencePiece as operations of a TensorFlow graph: the pieces of `SentencePieceTokenizer`.

The cleaning before the model is TensorFlow's own operations, which follow tables made by Python's
`unicodedata`; the model is an operation of tensorflow-text (the extra `[text]`). Whoever loads an
exported model has to import tensorflow_text before.

tensorflow-text has two operations for SentencePiece. `SentencepieceTokenizer` has another version
of the package sentencepiece, which sums scores in another order: if two ways to split a text are
equally likely, as for a row of equal letters, it may take the other one. So unigram models like
ALBERT's and ours are run by `FastSentencepieceTokenizer`, which sums as the package does, but does
not know other kinds of models. `probes` are texts that show whether it does.

Letters: T texts, C characters of all texts, V pieces of the vocabulary.
"""

import functools
import unicodedata
from collections.abc import Iterator

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.serving import graph_characters
from bert_estimator.tokenization import SentencePieceTokenizer
from bert_estimator.tokenization.sentencepiece_tokenizer import WORD_START

_REPEATED_SPACES = graph_characters.SPACES + "+"


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
        why_not = load_operations()
        if why_not:
            raise ImportError(why_not)
        self._do_lower_case = tokenizer.do_lower_case
        self._codes, self._replacements = _table(tokenizer.do_lower_case)
        self._model = _operation(tokenizer.serialized_model())
        again = tokenizer.split_again()
        pieces = [again.get(number, [number]) for number in range(tokenizer.vocab_size)]
        self._pieces = tf.ragged.constant(pieces, tf.int32)

    def __call__(self, texts: tf.Tensor, most_words: int | None = None) -> tf.RaggedTensor:
        """Returns the ids of the pieces of texts, int32 [T, (pieces)], without special tokens.

        Args:
          texts: strings [T] in UTF-8; bytes that are not UTF-8 are left out.
          most_words: not used: what a word becomes may depend on the words after it.
        """
        ids = self._model.tokenize(self._preprocessed(texts)).with_row_splits_dtype(tf.int64)
        return tf.gather(self._pieces, ids).merge_dims(1, 2)

    def _preprocessed(self, texts):
        """Returns what `sentencepiece_tokenizer.preprocess` makes of texts [T]."""
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        texts = tf.strings.strip(tf.strings.regex_replace(texts, _REPEATED_SPACES, " "))
        for quotes in ("``", "''"):
            texts = tf.strings.regex_replace(texts, quotes, '"')
        codes = tf.strings.unicode_decode(texts, "UTF-8")
        characters = graph_characters.replaced(codes.flat_values, self._codes, self._replacements)
        texts = tf.strings.reduce_join(codes.with_values(characters), axis=-1)
        return self._with_small_sigmas(texts) if self._do_lower_case else texts

    def _with_small_sigmas(self, texts):
        """Returns texts [T], lower-cased but for their sigmas, with the sigmas lower-cased, too."""
        codes = tf.strings.unicode_decode(texts, "UTF-8")
        final = codes.with_values(graph_characters.final_sigmas(codes))
        flat = codes.flat_values
        small = tf.where_v2(final.flat_values, ord("\u03c2"), ord("\u03c3"))
        flat = tf.where_v2(tf.equal(flat, graph_characters.SIGMA), small, flat)
        return tf.strings.unicode_encode(codes.with_values(flat), "UTF-8")


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
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    if (
        trainer.model_type == trainer.UNIGRAM
        and not trainer.byte_fallback
        and not trainer.treat_whitespace_as_suffix
        and normalizer.precompiled_charsmap
        and normalizer.add_dummy_prefix
    ):
        return tensorflow_text.FastSentencepieceTokenizer(model)
    return tensorflow_text.SentencepieceTokenizer(model)


@functools.cache
def _table(do_lower_case):
    """Returns (the codes that change, int32, ascending; what each becomes): NFKD without marks.

    Capital sigmas stay: their lower case depends on the characters around them. Every other
    character may be lower-cased by itself, before its marks are removed or after.
    """
    codes, replacements = [-1], [""]  # so that the table has an entry in any case
    for code in graph_characters.assigned():
        text = unicodedata.normalize("NFKD", chr(code))
        text = "".join(char for char in text if not unicodedata.combining(char))
        if do_lower_case:
            text = "Σ".join(part.lower() for part in text.split("Σ"))
        if text != chr(code):
            codes.append(code)
            replacements.append(text)
    return np.array(codes, np.int32), replacements
