"""A model with text as its input: what an exported graph does before and after the network.

`docs/serving.md` lists the signatures of the exported model, which are TensorFlow Serving's, and
its outputs. Letters: B texts, F sequence length, L labels; F is the length of a request's longest
text.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_estimator.serving.graph.graph_wordpiece import GraphWordPiece
from bert_estimator.tokenization import FullTokenizer

_BATCH = 256


class TextDifferenceError(ValueError):
    """The graph's tokens of a text are not the tokenizer's; the message shows the text."""


class Inputs(NamedTuple):
    """Holds what a model may be fed; each is computed from the one before it unless it is fed."""

    examples: tf.Tensor  # serialized `tf.Example`s, strings [B], which have the texts as features
    texts: dict[str, tf.Tensor]  # by name, strings [B]
    ids: dict[str, tf.Tensor]  # the features of the network by name


def inputs(tokenizer: FullTokenizer, is_pair: bool, max_seq_length: int) -> Inputs:
    """Adds the inputs of a model of texts or pairs to the current graph; longer examples are cut to
    `max_seq_length` tokens."""
    names = ("text_a", "text_b")[: 2 if is_pair else 1]
    examples = tf.placeholder(tf.string, [None], "examples")
    parsed = tf.io.parse_example(
        examples, {name: tf.io.FixedLenFeature([], tf.string) for name in names}
    )
    texts = {name: tf.placeholder_with_default(parsed[name], [None], name) for name in names}
    features = features_of(tokenizer, list(texts.values()), max_seq_length)
    ids = {
        name: tf.placeholder_with_default(value, [None, None], name)
        for name, value in features.items()
    }
    return Inputs(examples, texts, ids)


def features_of(
    tokenizer: FullTokenizer, texts: Sequence[tf.Tensor], max_seq_length: int
) -> dict[str, tf.Tensor]:
    """Returns the features of texts or pairs, one or two tensors of strings [B], as
    `tasks.features.Features` makes them: `input_ids`, `input_mask`, `segment_ids`, int32 [B, F]."""
    number = tf.size(texts[0], out_type=tf.int64)
    tokens = GraphWordPiece(tokenizer)(tf.concat(texts, axis=0), most_words=max_seq_length)
    kept = _lengths(tf.split(tokens.row_lengths(), len(texts)), max_seq_length - 1 - len(texts))
    lengths = sum(kept) + 1 + len(texts)
    # Examples are padded to the longest only, since padding would take as much time as tokens. F is
    # 2 without any.
    longest = tf.reduce_max(tf.pad(lengths, [[0, 1]], constant_values=2))
    mask = tf.sequence_mask(lengths, longest, tf.int32)
    position = tf.range(tf.shape(mask, out_type=tf.int64)[1])[tf.newaxis]
    firsts = [tf.ones_like(kept[0]), kept[0] + 2][: len(texts)]  # where a text begins
    ids = tf.where_v2(tf.equal(position, 0), tokenizer.cls_id, tf.zeros_like(mask))
    for first, length in zip(firsts, kept, strict=True):
        is_sep = tf.equal(position, (first + length)[:, tf.newaxis])
        ids = tf.where_v2(is_sep, tokenizer.sep_id, ids)
    text = tokens.value_rowids()
    place = tf.range(tf.size(text, out_type=tf.int64)) - tf.gather(tokens.row_starts(), text)
    is_kept = tf.where_v2(place < tf.gather(tf.concat(kept, axis=0), text))
    text, place = tf.gather_nd(text, is_kept), tf.gather_nd(place, is_kept)
    at = tf.stack([text % number, place + tf.gather(tf.concat(firsts, axis=0), text)], axis=1)
    ids = tf.tensor_scatter_nd_update(ids, at, tf.gather_nd(tokens.flat_values, is_kept))
    segments = tf.zeros_like(mask)
    if len(texts) == 2:
        segments = tf.cast(position >= firsts[1][:, tf.newaxis], tf.int32) * mask
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


def _lengths(lengths, room):
    """Returns how many pieces are kept of each text, int64 [B]."""
    if len(lengths) == 1:
        return [tf.minimum(lengths[0], room)]
    # A pair loses pieces from the end of its longer text, or of the second if both are as long.
    first, second = lengths
    second = tf.minimum(second, tf.maximum(tf.cast(room // 2, tf.int64), room - first))
    return [tf.minimum(first, room - second), second]


def named_outputs(kind: str, labels: Sequence[str], outputs: dict[str, tf.Tensor]) -> dict:
    """Returns a model's outputs, and what they mean, as strings or as a number."""
    if kind == "regression":
        return {**outputs, "number": outputs["logits"][:, 0]}
    names = tf.constant(list(labels))
    count = tf.shape(outputs["logits"])[0]
    named = {"labels": tf.tile(names[tf.newaxis], [count, 1])}
    if kind == "classification":
        named["label"] = tf.gather(names, tf.argmax(outputs["logits"], axis=-1))
    return {**outputs, **named}


def check_texts(tokenizer: FullTokenizer, texts: Iterable[str]) -> int:
    """Compares the tokens of texts in the graph with the tokenizer's own; returns the number of
    texts, or raises TextDifferenceError."""
    number = 0
    with tf.Graph().as_default(), tf.Session() as session:
        placeholder = tf.placeholder(tf.string, [None])
        in_graph = GraphWordPiece(tokenizer)(placeholder)
        rest = iter(texts)
        while batch := list(itertools.islice(rest, _BATCH)):
            encoded = [text.encode(errors="surrogatepass") for text in batch]
            rows = session.run(in_graph, {placeholder: encoded}).to_list()
            for text, ids in zip(batch, rows, strict=True):
                if ids != tokenizer.encode(text):
                    raise TextDifferenceError(
                        f"the graph of the exported model splits the text {text!r} into "
                        f"{tokenizer.convert_ids_to_tokens(ids)}, but training into "
                        f"{tokenizer.tokenize(text)}"
                    )
            number += len(batch)
    return number
