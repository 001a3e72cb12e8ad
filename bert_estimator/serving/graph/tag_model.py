"""A tagging model with text as its input: what an exported graph does before and after the network.

Signatures of the exported model:

    serving_default    strings [B] under `text_a`, whose words are at white space
    ids:windows        `input_ids`, `input_mask`, `segment_ids`, int32 [R, F]: windows of sentences

`serving_default` gives `words` and `tags`, strings [B, W], which are empty after a text's last
word; `probabilities` float32 [B, W, L]; and `labels` strings [B, L], the names of the columns. The
outputs of `ids:windows` are the network's own, `logits` and `probabilities` [R, F, L].

Letters: B texts, W words of the longest text, P pieces of all words, R windows, F length of the
longest window, L labels.
"""

from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from bert_estimator.serving.graph import graph_characters, graph_tokenizer
from bert_estimator.serving.graph.graph_tokenizer import GraphTokenizer
from bert_estimator.tokenization import Tokenizer


class TaggedText:
    """Adds the inputs of a tagging model to the current graph.

    Args:
      tokenizer: the tokenizer of the training.
      max_seq_length: the greatest F; longer sentences are split.
      labels: the names of the columns.

    Attributes:
      texts: the placeholder of the texts, by name.
      ids: the features by name, which may be fed instead.
    """

    def __init__(self, tokenizer: Tokenizer, max_seq_length: int, labels: Sequence[str]):
        self._labels = list(labels)
        self.texts = {"text_a": tf.placeholder(tf.string, [None], "text_a")}
        self._words = words_of(self.texts["text_a"])
        features, self._places = windows_of(
            graph_tokenizer.of(tokenizer), self._words, tokenizer, max_seq_length
        )
        self.ids = {
            name: tf.placeholder_with_default(value, [None, None], name)
            for name, value in features.items()
        }

    def outputs(self, predictions: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the outputs of `serving_default`.

        Args:
          predictions: the network's `probabilities`, float32 [R, F, L], of the windows' positions.
        """
        names = tf.constant(self._labels)
        of_words = tf.gather_nd(predictions["probabilities"], self._places)
        tags = tf.gather(names, tf.argmax(of_words, axis=-1))
        count = self._words.nrows()
        return {
            "words": self._words.to_tensor(""),
            "tags": self._words.with_values(tags).to_tensor(""),
            "probabilities": self._words.with_values(of_words).to_tensor(0.0),
            "labels": tf.tile(names[tf.newaxis], tf.stack([count, tf.constant(1, tf.int64)])),
        }


def words_of(texts: tf.Tensor) -> tf.RaggedTensor:
    """Returns the words of texts [B], which are separated by white space: [B, (words)]."""
    spaced = tf.strings.regex_replace(texts, graph_characters.SPACES, " ")
    return tf.strings.split(spaced, result_type="RaggedTensor")


def windows_of(
    in_graph: GraphTokenizer, words: tf.RaggedTensor, tokenizer: Tokenizer, max_seq_length: int
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Returns the windows of sentences, as `features.TagFeatures` makes them.

    Args:
      in_graph: the tokenizer in the graph.
      words: strings [B, (words)].
      tokenizer: the tokenizer of the special tokens.
      max_seq_length: the greatest F.

    Returns:
      (`input_ids`, `input_mask`, `segment_ids`, int32 [R, F]; int64 [number of words, 2], the
      window and the position of each word's first piece).
    """
    room = max_seq_length - 2
    pieces = in_graph(words.flat_values)
    unknown = tf.fill([pieces.nrows(), 1], tokenizer.unk_id)
    is_empty = tf.equal(pieces.row_lengths(), 0)
    unknown = tf.RaggedTensor.from_row_lengths(
        tf.boolean_mask(unknown, is_empty)[:, 0], tf.cast(is_empty, tf.int64)
    )
    pieces = tf.concat([pieces, unknown], axis=1)[:, :room]
    lengths = words.with_values(pieces.row_lengths())
    window, start = _packed(lengths.to_tensor(0), room)
    is_word = tf.sequence_mask(words.row_lengths())
    count = tf.reduce_max(tf.pad(window, [[0, 0], [1, 0]]), axis=1) + 1  # windows of each sentence
    row = tf.boolean_mask(window + tf.cumsum(count, exclusive=True)[:, tf.newaxis], is_word)
    start = tf.boolean_mask(start, is_word) + 1  # after [CLS]
    total = tf.reduce_sum(count)

    word = pieces.value_rowids()
    place = tf.gather(start, word) + tf.ragged.range(pieces.row_lengths()).flat_values
    used = tf.math.unsorted_segment_sum(pieces.row_lengths(), row, total)
    mask = graph_tokenizer.input_mask(used + 2)
    at = tf.stack([tf.gather(row, word), place], axis=1)
    ids = tf.scatter_nd(at, pieces.flat_values, tf.shape(mask, out_type=tf.int64))
    length = tf.shape(mask)[1]
    ends = tf.one_hot(used + 1, length, dtype=tf.int32) * tokenizer.sep_id
    firsts = tf.one_hot(tf.zeros_like(used), length, dtype=tf.int32) * tokenizer.cls_id
    features = {
        "input_ids": ids + ends + firsts,
        "input_mask": mask,
        "segment_ids": tf.zeros_like(mask),
    }
    return features, tf.stack([row, start], axis=1)


def _packed(lengths, room):
    """Returns (the window of each word within its sentence, its first place there), int64 [B, W].

    Args:
      lengths: int64 [B, W], pieces of each word; 0 after a sentence's last word.
      room: how many pieces a window has.
    """
    nothing = tf.zeros_like(lengths[:, :0])
    state = tf.zeros([tf.shape(lengths)[0]], tf.int64)

    def step(number, window, used, windows, starts):
        length = lengths[:, number]
        is_new = used + length > room
        window = window + tf.cast(is_new, tf.int64)
        start = tf.where_v2(is_new, tf.zeros_like(used), used)
        windows = tf.concat([windows, window[:, tf.newaxis]], axis=1)
        starts = tf.concat([starts, start[:, tf.newaxis]], axis=1)
        return number + 1, window, start + length, windows, starts

    sides = tf.TensorShape([None, None])
    _, _, _, windows, starts = tf.while_loop(
        lambda number, *_: number < tf.shape(lengths)[1],
        step,
        (0, state, state, nothing, nothing),
        shape_invariants=(tf.TensorShape([]), *[state.shape] * 2, sides, sides),
    )
    return windows, starts
