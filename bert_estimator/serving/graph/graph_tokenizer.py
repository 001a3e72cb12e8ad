"""The interface of tokenizers in a graph, and the one way to make one."""

from collections.abc import Iterable
from typing import Protocol

import tensorflow.compat.v1 as tf

from bert_estimator.serving.graph import graph_sentencepiece
from bert_estimator.serving.graph.graph_characters import Tokens
from bert_estimator.serving.graph.graph_sentencepiece import GraphSentencePiece
from bert_estimator.serving.graph.graph_wordpiece import GraphWordPiece
from bert_estimator.tokenization import SentencePieceTokenizer, Tokenizer


class GraphTokenizer(Protocol):
    """Turns texts into ids in a graph; `GraphWordPiece` and `GraphSentencePiece` implement it."""

    def __call__(self, texts: tf.Tensor, most_words: int | None = None) -> tf.RaggedTensor:
        """Returns the ids of the tokens of texts, int32 [T, (tokens)], without special tokens.

        Args:
          texts: strings [T] in UTF-8; bytes that are not UTF-8 are left out.
          most_words: how many words of each text have to be looked at; by default all.
        """

    def with_offsets(self, codes: tf.RaggedTensor) -> Tokens:
        """Returns the tokens of texts with the characters that they come from.

        Args:
          codes: the characters of the texts, int32 [T, (characters)].

        Raises:
          ValueError: see `why_not_offsets`.
        """


def of(tokenizer: Tokenizer) -> GraphTokenizer:
    """Returns the tokenizer in the graph that does the same as a tokenizer.

    Raises:
      ImportError: it is a SentencePiece tokenizer, and tensorflow-text cannot be loaded, or is too
        old for its model.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        return GraphSentencePiece(tokenizer)
    return GraphWordPiece(tokenizer)


def input_mask(lengths: tf.Tensor) -> tf.Tensor:
    """Returns the mask of examples, int32 [B, F]: 1 for tokens, and 0 for what pads the others.

    Args:
      lengths: int64 [B], tokens with [CLS] and [SEP]. F is the greatest of them, and 2 without any.
    """
    longest = tf.reduce_max(tf.pad(lengths, [[0, 1]], constant_values=2))
    return tf.sequence_mask(lengths, longest, tf.int32)


def why_not(tokenizer: Tokenizer) -> str:
    """Returns why a graph cannot do the same as a tokenizer; "" if it can."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return graph_sentencepiece.why_not_model(tokenizer.serialized_model())
    return ""


def why_not_offsets(tokenizer: Tokenizer) -> str:
    """Returns why a graph cannot tell which characters the tokens come from; "" if it can."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return graph_sentencepiece.why_not_offsets(tokenizer.serialized_model())
    return ""


def probes(tokenizer: Tokenizer) -> Iterable[str]:
    """Returns texts that show whether the graph can do the same as a tokenizer, whatever its model.

    They are for SentencePiece, whose models have features that few models use.
    """
    is_sentencepiece = isinstance(tokenizer, SentencePieceTokenizer)
    return graph_sentencepiece.probes(tokenizer) if is_sentencepiece else ()
