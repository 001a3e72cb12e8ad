"""Linear-chain conditional random fields: `tf.contrib.crf`.

A sequence of tags scores the sum of the potentials of its tags and of the transitions between
neighbours. B is the number of sequences, T the length of the longest, and N the number of tags.
Potentials are float32 [B, T, N], tags int32 [B, T], lengths int32 [B], transitions float32 [N, N]
(from row to column).
"""

from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf


def crf_sequence_score(
    inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any
) -> tf.Tensor:
    """Returns the scores [B] of sequences of tags; a sequence without a tag scores 0."""
    return crf_unary_score(tag_indices, sequence_lengths, inputs) + crf_binary_score(
        tag_indices, sequence_lengths, transition_params
    )


def crf_multitag_sequence_score(
    inputs: Any, tag_bitmap: Any, sequence_lengths: Any, transition_params: Any
) -> tf.Tensor:
    """Returns the logarithms [B] of the sums of the exponentials of the scores of all sequences
    that `tag_bitmap`, bool [B, T, N], makes possible."""
    possible = tf.where_v2(tf.cast(tag_bitmap, tf.bool), inputs, tf.fill(tf.shape(inputs), -np.inf))
    return crf_log_norm(possible, sequence_lengths, transition_params)


def crf_log_norm(inputs: Any, sequence_lengths: Any, transition_params: Any) -> tf.Tensor:
    """Returns the logarithms [B] of the sums of the exponentials of all sequences' scores."""
    inputs, lengths = tf.convert_to_tensor(inputs), _lengths(sequence_lengths)

    def one_more(alphas, at):
        potentials, is_inside = at
        return tf.where_v2(is_inside, _forward(alphas, potentials, transition_params), alphas)

    alphas = _scan(one_more, _after_first(inputs, lengths), inputs[:, 0])[-1]
    # A sequence of length 0 has only the empty sequence of tags, whose score is 0.
    return tf.where_v2(lengths > 0, tf.reduce_logsumexp(alphas, 1), tf.zeros_like(alphas[:, 0]))


def crf_log_likelihood(
    inputs: Any, tag_indices: Any, sequence_lengths: Any, transition_params: Any = None
) -> tuple:
    """Returns the log likelihoods [B] of sequences of tags, and the transitions, which are a new
    variable `transitions` if they are None."""
    if transition_params is None:
        number = tf.convert_to_tensor(inputs).shape.as_list()[2]
        transition_params = tf.get_variable("transitions", [number, number])
    score = crf_sequence_score(inputs, tag_indices, sequence_lengths, transition_params)
    return score - crf_log_norm(inputs, sequence_lengths, transition_params), transition_params


def crf_unary_score(tag_indices: Any, sequence_lengths: Any, inputs: Any) -> tf.Tensor:
    """Returns the sums [B] of the potentials of sequences of tags."""
    inputs, tags = tf.convert_to_tensor(inputs), tf.convert_to_tensor(tag_indices)
    of_tags = tf.gather(inputs, tags[..., tf.newaxis], batch_dims=2)[..., 0]
    return tf.reduce_sum(_where(_inside(sequence_lengths, tags), of_tags), 1)


def crf_binary_score(tag_indices: Any, sequence_lengths: Any, transition_params: Any) -> tf.Tensor:
    """Returns the sums [B] of the transitions of sequences of tags."""
    tags = tf.convert_to_tensor(tag_indices)
    pairs = tf.stack([tags[:, :-1], tags[:, 1:]], 2)
    of_pairs = tf.gather_nd(transition_params, pairs)
    return tf.reduce_sum(_where(_inside(sequence_lengths, tags)[:, 1:], of_pairs), 1)


def viterbi_decode(score: Any, transition_params: Any) -> tuple:
    """Returns the best tags of one sequence, a list of int, and their score, by NumPy, from
    potentials [T, N] and transitions [N, N]."""
    best, previous = np.asarray(score[0]), []
    for potentials in score[1:]:
        candidates = best[:, np.newaxis] + transition_params
        previous.append(np.argmax(candidates, 0))
        best = potentials + np.max(candidates, 0)
    tags = [int(np.argmax(best))]
    for back in reversed(previous):
        tags.append(int(back[tags[-1]]))
    return tags[::-1], np.max(best)


def crf_decode(potentials: Any, transition_params: Any, sequence_length: Any) -> tuple:
    """Returns the best tags, int32 [B, T] (0 after a sequence's end), and their scores [B]."""
    potentials, lengths = tf.convert_to_tensor(potentials), _lengths(sequence_length)
    _, length, number = tf.unstack(tf.shape(potentials))
    stay = tf.range(number)[tf.newaxis]

    def one_more(so_far, at):
        (scores, _), (now, is_inside) = so_far, at
        back, after = _backward(scores, now, transition_params)
        return tf.where_v2(is_inside, after, scores), tf.where_v2(is_inside, back, stay + 0 * back)

    first = potentials[:, 0], tf.zeros_like(potentials[:, 0], tf.int32)
    scores, backs = _scan(one_more, _after_first(potentials, lengths), first)
    last = tf.argmax(scores[-1], 1, output_type=tf.int32)
    # From the last tags backwards. The first row only began the scan, and does not point anywhere.
    tags = tf.transpose(_scan(_previous_tags, backs[:0:-1], last)[::-1])
    # A sequence of length 0 is decoded as if it had length 1.
    inside = tf.sequence_mask(tf.maximum(lengths, 1), length)
    return tf.where_v2(inside, tags, tf.zeros_like(tags)), tf.reduce_max(scores[-1], 1)


def _forward(alphas, potentials, transitions):
    """Returns the logarithms of the sums over the tags before, [B, N]."""
    return potentials + tf.reduce_logsumexp(alphas[:, :, tf.newaxis] + transitions, 1)


def _backward(scores, potentials, transitions):
    """Returns the best tags before, int32 [B, N], and the best scores, [B, N]."""
    candidates = scores[:, :, tf.newaxis] + transitions
    best = tf.argmax(candidates, 1, output_type=tf.int32)
    return best, potentials + tf.reduce_max(candidates, 1)


def _previous_tags(tags, backpointers):
    return tf.gather(backpointers, tags[:, tf.newaxis], batch_dims=1)[:, 0]


def _after_first(potentials, lengths):
    """Returns what a scan over the tags after the first takes: potentials, and which count."""
    potentials = tf.transpose(potentials, [1, 0, 2])
    inside = tf.sequence_mask(lengths, tf.shape(potentials)[0])
    return potentials[1:], tf.transpose(inside)[1:, :, tf.newaxis]


def _scan(function, elements, initial):
    """Returns the initial value, and after it the results of `tf.scan`."""
    first = tf.nest.map_structure(lambda value: value[tf.newaxis], initial)
    if tf.nest.flatten(elements)[0].shape.as_list()[:1] == [0]:  # which `tf.scan` refuses
        return first
    results = tf.scan(function, elements, initial)
    return tf.nest.map_structure(lambda *values: tf.concat(values, 0), first, results)


def _lengths(sequence_lengths):
    return tf.cast(sequence_lengths, tf.int32)


def _inside(sequence_lengths, tags):
    return tf.sequence_mask(_lengths(sequence_lengths), tf.shape(tags)[1])


def _where(condition, values):
    return tf.where_v2(condition, values, tf.zeros_like(values))


class _Cell:
    """A cell for `tf.nn.dynamic_rnn`, which does not have variables."""

    def __init__(self, size):
        self.state_size = self.output_size = size

    def zero_state(self, batch_size: Any, dtype: Any) -> tf.Tensor:
        """Returns the state of the start."""
        return tf.zeros([batch_size, self.state_size], dtype)


class CrfForwardRnnCell(_Cell):
    """Computes the alphas, float [B, N], from the alphas before and the potentials."""

    def __init__(self, transition_params: Any):
        self._transitions = tf.convert_to_tensor(transition_params)
        super().__init__(self._transitions.shape.as_list()[0])

    def __call__(self, inputs, state, scope=None):
        alphas = _forward(state, inputs, self._transitions)
        return alphas, alphas


class CrfDecodeForwardRnnCell(CrfForwardRnnCell):
    """Computes the best tags before, int32 [B, N], and as its state their scores."""

    def __call__(self, inputs, state, scope=None):
        return _backward(state, inputs, self._transitions)


class CrfDecodeBackwardRnnCell(_Cell):
    """Computes the tags before, int32 [B, 1], from the best tags before and the tags."""

    def __init__(self, num_tags: int):
        super().__init__(1)

    def __call__(self, inputs, state, scope=None):
        tags = _previous_tags(state[:, 0], inputs)[:, tf.newaxis]
        return tags, tags
