"""A model with text as its input: what an exported graph does before and after the network.

Signatures of the exported model, by TensorFlow Serving's conventions:

    serving_default        strings [B], or two of them for pairs, under `text_a` and `text_b`
    ids:serving_default    `input_ids`, `input_mask`, `segment_ids`, int32 [B, F]
    classify, regress      `inputs`, strings [B]: serialized `tf.Example`s of the same strings

Outputs are the model's own, `logits` and `probabilities`; and besides

    classification    `label` strings [B]; `labels` strings [B, L], the names of the columns
    multi_label       `labels` strings [B, L]
    regression        `number` float32 [B]

`classify` gives `classes`, strings [B, L], and `scores`, their probabilities; `regress` gives
`outputs`, the numbers. A model of regression has `regress`, and other models have `classify`.

Letters: B texts, F sequence length, L labels. F is the length of the request's longest text.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_estimator.serving.graph import graph_characters, graph_tokenizer
from bert_estimator.serving.graph.graph_tokenizer import GraphTokenizer
from bert_estimator.tokenization import Tokenizer

_BATCH = 256


class TextDifferenceError(ValueError):
    """The graph's tokens of a text are not the tokenizer's; the message shows the text."""


class Inputs(NamedTuple):
    """What a model may be fed; each is computed from the one before it unless it is fed.

    Attributes:
      examples: serialized `tf.Example`s, strings [B], which have the texts as features.
      texts: the texts by name, strings [B].
      ids: the features of the network by name.
    """

    examples: tf.Tensor
    texts: dict[str, tf.Tensor]
    ids: dict[str, tf.Tensor]


def inputs(tokenizer: Tokenizer, is_pair: bool, max_seq_length: int) -> Inputs:
    """Adds the inputs of a model to the current graph.

    Args:
      tokenizer: the tokenizer of the training.
      is_pair: whether an example is a pair of texts.
      max_seq_length: the greatest F; longer examples are cut.
    """
    names = ("text_a", "text_b")[: 2 if is_pair else 1]
    examples = tf.placeholder(tf.string, [None], "examples")
    parsed = tf.io.parse_example(
        examples, {name: tf.io.FixedLenFeature([], tf.string) for name in names}
    )
    texts = {name: tf.placeholder_with_default(parsed[name], [None], name) for name in names}
    in_graph = graph_tokenizer.of(tokenizer)
    features = features_of(in_graph, list(texts.values()), tokenizer, max_seq_length)
    ids = {
        name: tf.placeholder_with_default(value, [None, None], name)
        for name, value in features.items()
    }
    return Inputs(examples, texts, ids)


def features_of(
    in_graph: GraphTokenizer,
    texts: Sequence[tf.Tensor],
    tokenizer: Tokenizer,
    max_seq_length: int,
) -> dict[str, tf.Tensor]:
    """Returns the features of texts or pairs, as `tasks.features.Features` makes them.

    They are padded to the longest example only, since padding would take as much time as tokens.

    Args:
      in_graph: the tokenizer in the graph.
      texts: one or two tensors of strings [B].
      tokenizer: the tokenizer of the special tokens.
      max_seq_length: the greatest F.

    Returns:
      `input_ids`, `input_mask`, `segment_ids`, int32 [B, F].
    """
    number = tf.size(texts[0], out_type=tf.int64)
    tokens = in_graph(tf.concat(texts, axis=0), most_words=max_seq_length)
    kept = _lengths(tf.split(tokens.row_lengths(), len(texts)), max_seq_length - 1 - len(texts))
    mask = graph_tokenizer.input_mask(sum(kept) + 1 + len(texts))
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
    """Returns how many pieces are kept of each text, int64 [B].

    A pair loses pieces from the end of its longer text, or of the second text if both are as long.
    """
    if len(lengths) == 1:
        return [tf.minimum(lengths[0], room)]
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


def check_texts(tokenizer: Tokenizer, texts: Iterable[str], with_offsets: bool = False) -> int:
    """Compares the tokens of texts in the graph with the tokenizer's own.

    Args:
      tokenizer: the tokenizer.
      texts: the texts.
      with_offsets: whether the characters that tokens come from are compared, too.

    Returns:
      The number of texts.

    Raises:
      TextDifferenceError: the tokens of a text differ.
    """
    number, waiting = 0, []
    with tf.Graph().as_default(), tf.Session() as session:
        placeholder = tf.placeholder(tf.string, [None])
        in_graph = graph_tokenizer.of(tokenizer)
        if with_offsets:
            tokens = in_graph.with_offsets(graph_characters.characters(placeholder).codes)
        else:
            tokens = [in_graph(placeholder)]

        def compare():
            encoded = [text.encode(errors="surrogatepass") for text in waiting]
            parts = session.run(list(tokens), {placeholder: encoded})
            rows = zip(*(part.to_list() for part in parts), strict=True)
            for text, row in zip(waiting, rows, strict=True):
                if list(row) != _expected(tokenizer, text, with_offsets):
                    raise TextDifferenceError(_difference(tokenizer, text, row))

        for text in texts:
            waiting.append(text)
            number += 1
            if len(waiting) == _BATCH:
                compare()
                waiting.clear()
        if waiting:
            compare()
    return number


def _expected(tokenizer, text, with_offsets):
    """Returns [ids] of a text, or [ids, starts, ends]."""
    if not with_offsets:
        return [tokenizer.encode(text)]
    pieces = tokenizer.tokenize_with_offsets(text)
    ids = tokenizer.convert_tokens_to_ids([piece.string for piece in pieces])
    return [ids, [piece.start for piece in pieces], [piece.end for piece in pieces]]


def _difference(tokenizer, text, row):
    ids, *places = row
    return (
        f"the graph of the exported model splits the text {text!r} into "
        f"{tokenizer.convert_ids_to_tokens(ids)}, but training into {tokenizer.tokenize(text)}"
        + (", or takes them from other characters" if places else "")
    )
