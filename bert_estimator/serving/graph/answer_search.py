"""Answers in a graph: windows of contexts, and the search for answers in their logits.

These are `input_pipelines.tasks.windows` and `input_pipelines.tasks.answers` again. Logits are
added in float64, and the order of equal scores is the same, so that equal logits give equal
answers.

Letters: B questions, N answers of each, R windows of all questions, F sequence length, K spans of
tokens that may be answers, P tokens of all contexts.
"""

from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.serving.graph import graph_characters
from bert_estimator.serving.graph.graph_characters import Characters, Tokens
from bert_estimator.tokenization import Tokenizer
from input_pipelines.tasks.answers import Search

_LOWEST = np.float64("-inf")  # the score if there is not a span


class GraphWindows(NamedTuple):
    """Holds the windows of questions, in order.

    Attributes:
      features: `input_ids`, `input_mask`, `segment_ids`, int32 [R, F].
      owners: int64 [R], the number of each window's question.
      tokens: int64 [R, F], the number of the context's token at each position, counted over the P
        tokens of all contexts; -1 for other positions.
      is_best: bool [R, F], which tokens have most context in this window, of all windows that they
        are in, as `Windows.best_contexts` says; false for other positions.
    """

    features: dict[str, tf.Tensor]
    owners: tf.Tensor
    tokens: tf.Tensor
    is_best: tf.Tensor


def windows_of(
    queries: tf.RaggedTensor,
    contexts: tf.RaggedTensor,
    tokenizer: Tokenizer,
    max_seq_length: int,
    doc_stride: int,
) -> GraphWindows:
    """Returns the windows of questions.

    Args:
      queries: the tokens of the questions, already cut, int32 [B, (tokens)].
      contexts: the tokens of their contexts, int32 [B, (tokens)].
      tokenizer: the tokenizer of the special tokens.
      max_seq_length: F.
      doc_stride: how many tokens after the window before it a window begins.
    """
    place = queries.row_lengths() + 2  # of the first token of a context
    room = max_seq_length - 1 - place
    size = contexts.row_lengths()
    stride = tf.minimum(room, doc_stride)
    count = 1 + (tf.maximum(size - room, 0) + stride - 1) // stride
    number = tf.ragged.range(count)
    owners = number.value_rowids()
    place, room, size, stride, first_query, first_token = (
        tf.gather(tensor, owners)[:, tf.newaxis]
        for tensor in (place, room, size, stride, queries.row_starts(), contexts.row_starts())
    )
    start = number.flat_values[:, tf.newaxis] * stride
    length = tf.minimum(size - start, room)
    position = tf.range(max_seq_length, dtype=tf.int64)[tf.newaxis]
    inside = position - place
    is_token = (inside >= 0) & (inside < length)
    is_query = (position >= 1) & (position < place - 1)
    tokens = tf.where_v2(is_token, first_token + start + inside, -1)
    query = tf.where_v2(is_query, first_query + position - 1, -1)
    is_sep = tf.equal(position, place - 1) | tf.equal(inside, length)
    ids = gathered(contexts.flat_values, tokens) + gathered(queries.flat_values, query)
    ids += tokenizer.sep_id * tf.cast(is_sep, tf.int32)
    ids += tokenizer.cls_id * tf.cast(tf.equal(position, 0), tf.int32)
    features = {
        "input_ids": ids,
        "input_mask": tf.cast(inside <= length, tf.int32),
        "segment_ids": tf.cast((inside >= 0) & (inside <= length), tf.int32),
    }
    context = _context(inside, length)
    total = tf.size(contexts.flat_values, out_type=tf.int64)
    return GraphWindows(features, owners, tokens, _is_best(context, tokens, total))


def gathered(values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns the values, [K], at places, int64 of any shape; 0 at the place -1."""
    padded = tf.concat([tf.zeros([1], values.dtype), values], axis=0)
    return tf.gather(padded, places + 1)


def _context(inside, length):
    """Returns how much context tokens have, float64 [R, F], as `Windows.best_contexts` counts."""
    sides = tf.minimum(inside, length - 1 - inside)
    return tf.cast(sides, tf.float64) + 0.01 * tf.cast(length, tf.float64)


def _is_best(context, tokens, total):
    """Returns where tokens have most context, and in the first of these windows, bool [R, F]."""
    is_token = tokens >= 0
    token, context = tf.boolean_mask(tokens, is_token), tf.boolean_mask(context, is_token)
    most = tf.math.unsorted_segment_max(context, token, total)
    row = tf.where_v2(is_token)[:, 0]
    is_most = tf.equal(context, tf.gather(most, token))
    winner = tf.math.unsorted_segment_min(
        tf.boolean_mask(row, is_most), tf.boolean_mask(token, is_most), total
    )
    is_winner = tf.equal(row, tf.gather(winner, token))
    return tf.scatter_nd(tf.where_v2(is_token), is_winner, tf.shape(tokens, out_type=tf.int64))


class Contexts(NamedTuple):
    """Holds the contexts of questions.

    Attributes:
      texts: strings [B].
      characters: their characters.
      tokens: their tokens.
    """

    texts: tf.Tensor
    characters: Characters
    tokens: Tokens


class _Spans(NamedTuple):
    """Holds spans of tokens that may be answers.

    Attributes:
      owner: int64 [K], the number of the question.
      start_logit, end_logit: float64 [K].
      first, after: int64 [K], the characters of the span in its context: the number of the first,
        and the number after the last.
    """

    owner: tf.Tensor
    start_logit: tf.Tensor
    end_logit: tf.Tensor
    first: tf.Tensor
    after: tf.Tensor


def answers(
    windows: GraphWindows,
    contexts: Contexts,
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    search: Search,
) -> dict[str, tf.Tensor]:
    """Returns the answers of questions.

    Args:
      windows: the windows of the questions.
      contexts: the contexts of the questions.
      start_logits, end_logits: float32 [R, F].
      search: how answers are searched.

    Returns:
      The outputs that `answer_model` lists.
    """
    spans = _spans(windows, contexts, start_logits, end_logits, search)
    listed = _distinct(_ordered(spans), contexts, search.n_best_size)
    if search.version_2:
        nulls = tf.cast(start_logits[:, 0], tf.float64) + tf.cast(end_logits[:, 0], tf.float64)
        null = tf.math.unsorted_segment_min(nulls, windows.owners, tf.size(contexts.texts))
        return _with_null(listed, null, search.null_score_diff_threshold)
    # If no span is possible, the answer is empty.
    score = listed["score"]
    first = tf.where_v2(tf.equal(score[:, :1], _LOWEST), tf.zeros_like(score[:, :1]), score[:, :1])
    listed["score"] = tf.concat([first, score[:, 1:]], axis=1)
    return _outputs(listed, {name: values[:, 0] for name, values in listed.items()})


def _spans(windows, contexts, start_logits, end_logits, search):
    """Returns the `_Spans` that have characters, in the order of `answers._candidates`."""
    most = min(search.n_best_size, start_logits.shape[1])
    starts, start_places = tf.math.top_k(start_logits, most)  # equal logits stay in order
    ends, end_places = tf.math.top_k(end_logits, most)
    starting = tf.where_v2(windows.is_best, windows.tokens, -tf.ones_like(windows.tokens))
    start_tokens = tf.gather(starting, start_places, batch_dims=1)[:, :, tf.newaxis]
    end_tokens = tf.gather(windows.tokens, end_places, batch_dims=1)[:, tf.newaxis]
    size = end_tokens - start_tokens + 1
    is_span = (start_tokens >= 0) & (size >= 1) & (size <= search.max_answer_length)
    window, start, end = tf.unstack(tf.where_v2(is_span), axis=1)

    def chosen(values, places):
        return tf.gather_nd(values, tf.stack([window, places], axis=1))

    owner = tf.gather(windows.owners, window)
    codes, tokens = contexts.characters.codes, contexts.tokens
    before = tf.gather(codes.row_starts(), owner)
    is_text = ~graph_characters.is_space(codes.flat_values)
    first = before + tf.gather(tokens.starts.flat_values, chosen(start_tokens[:, :, 0], start))
    after = before + tf.gather(tokens.ends.flat_values, chosen(end_tokens[:, 0], end))
    spans = _Spans(
        owner,
        tf.cast(chosen(starts, start), tf.float64),
        tf.cast(chosen(ends, end), tf.float64),
        graph_characters.next_place(is_text, first) - before,
        graph_characters.place_after_last(is_text, after) - before,
    )
    has_text = spans.first < spans.after
    return _Spans(*(tf.boolean_mask(values, has_text) for values in spans))


def _ordered(spans):
    """Returns the spans of the first question, best first, then the spans of the second."""
    score = spans.start_logit + spans.end_logit
    order = tf.argsort(score, direction="DESCENDING", stable=True)
    order = tf.gather(order, tf.argsort(tf.gather(spans.owner, order), stable=True))
    return _Spans(*(tf.gather(values, order) for values in spans))


def _distinct(spans, contexts, size):
    """Returns the best spans with texts of their own, of spans in order.

    Returns:
      Dict of `text`, `start`, `end`, `start_logit`, `end_logit`, `score`, [B, N] each: "", zeros
      and the score `_LOWEST` after a question's last span.
    """
    count = tf.size(contexts.texts)
    numbers = tf.range(tf.size(spans.owner))
    numbers = tf.RaggedTensor.from_value_rowids(numbers, spans.owner, tf.cast(count, tf.int64))
    lengths, places = numbers.row_lengths(), contexts.characters.bytes

    def is_unfinished(number, filled, *_):
        return tf.reduce_any((number < lengths) & (filled < size))

    def step(number, filled, texts, chosen):
        is_next = (number < lengths) & (filled < size)
        span = tf.where_v2(is_next, numbers.row_starts() + number, -1)
        first, after = (
            tf.gather(places.flat_values, places.row_starts() + gathered(values, span))
            for values in (spans.first, spans.after)
        )
        text = tf.strings.substr(contexts.texts, first, after - first)
        is_new = is_next & ~tf.reduce_any(tf.equal(texts, text[:, tf.newaxis]), axis=1)
        slot = is_new[:, tf.newaxis] & tf.equal(tf.range(size), filled[:, tf.newaxis])
        texts = tf.where_v2(slot, text[:, tf.newaxis], texts)
        chosen = tf.where_v2(slot, span[:, tf.newaxis], chosen)
        return number + 1, filled + tf.cast(is_new, tf.int32), texts, chosen

    none = tf.fill([count, size], tf.constant(-1, tf.int64))
    start = tf.constant(0, tf.int64), tf.zeros([count], tf.int32), tf.fill([count, size], ""), none
    _, _, texts, chosen = tf.while_loop(is_unfinished, step, start)
    start_logit, end_logit = (gathered(v, chosen) for v in (spans.start_logit, spans.end_logit))
    return {
        "text": texts,
        "start": gathered(spans.first, chosen),
        "end": gathered(spans.after, chosen),
        "start_logit": start_logit,
        "end_logit": end_logit,
        "score": tf.where_v2(chosen < 0, _LOWEST, start_logit + end_logit),
    }


def _with_null(listed, null, threshold):
    """Returns the outputs for questions that may have no answer, which has the score `null` [B]."""
    score = listed["score"]
    # "No answer" is one of the N, unless all of them are at least as good.
    last = tf.where_v2(score[:, -1:] < null[:, tf.newaxis], _LOWEST, score[:, -1:])
    score = tf.concat([score[:, :-1], last], axis=1)
    is_left = score > _LOWEST
    listed = {
        name: tf.where_v2(is_left, values, tf.zeros_like(values)) for name, values in listed.items()
    }
    listed["score"] = score
    best = {name: values[:, 0] for name, values in listed.items()}
    odds = null - best["start_logit"] - best["end_logit"]
    is_null = (odds > threshold) | tf.equal(best["score"], _LOWEST)
    nothing = {name: tf.zeros_like(values) for name, values in best.items()} | {"score": null}
    best = {name: tf.where_v2(is_null, nothing[name], best[name]) for name in best}
    listed = {
        name: tf.concat([values, nothing[name][:, tf.newaxis]], axis=1)
        for name, values in listed.items()
    }
    order = tf.argsort(listed["score"], axis=1, direction="DESCENDING", stable=True)
    listed = {name: tf.gather(values, order, batch_dims=1) for name, values in listed.items()}
    return {**_outputs(listed, best), "null_odds": tf.cast(odds, tf.float32)}


def _outputs(listed, best):
    """Returns the outputs, from the n-best lists [B, N] and the answers [B]."""
    highest = tf.reduce_max(listed["score"], axis=1)
    powers = tf.exp(listed["score"] - highest[:, tf.newaxis])
    total = tf.reduce_sum(powers, axis=1)
    return {
        "answer": best["text"],
        "start": tf.cast(best["start"], tf.int32),
        "end": tf.cast(best["end"], tf.int32),
        "score": tf.cast(best["score"], tf.float32),
        "probability": tf.cast(tf.exp(best["score"] - highest) / total, tf.float32),
        "n_best_answers": listed["text"],
        "n_best_starts": tf.cast(listed["start"], tf.int32),
        "n_best_ends": tf.cast(listed["end"], tf.int32),
        "n_best_probabilities": tf.cast(powers / total[:, tf.newaxis], tf.float32),
    }
