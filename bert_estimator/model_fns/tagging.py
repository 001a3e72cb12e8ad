"""The head that labels words: named entities, parts of speech. `classification` has its `model_fn`.

Letters: B windows of one core's batch, F sequence length, H hidden size, L labels, N words.

Besides the features of `classification` there are `label_ids` int32 [B, F], the number of the label
at the first piece of each word; `label_mask` int32 [B, F], 1 at the first pieces of words; and for
evaluation `unique_ids` int32 [B], the window's number, and `continues_sentence` int32 [B], 1 if the
window goes on with the sentence of the window that has the number before.

The head is `output_weights` [L, H], `output_bias` [L] on the last layer's output of each piece
(Devlin et al., 2018, section 5.3), in training with the dropout `classifier_dropout` of the
network. The pooler is not used, and is not trained.
"""

import dataclasses

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator import modeling
from bert_estimator.model_fns import classification, classification_report, metrics, update
from bert_estimator.tokenization import entities

ENTITY_METRICS = ("entity_f1", "entity_precision", "entity_recall")


@dataclasses.dataclass(frozen=True)
class TaggingHead(classification.Head):
    """Says what labels words have, and how predicted labels are scored."""

    # The names of the L labels in the order of their numbers; ENTITY_METRICS need them.
    labels: tuple[str, ...] = ()

    def new_variables(self) -> str:
        """Returns a pattern of the head and the pooler, which tagging networks may lack."""
        return f"{super().new_variables()}|bert/pooler/dense/(kernel|bias)"

    def input_of(self, model: modeling.BertModel) -> tf.Tensor:
        """Returns the output of the last layer, [B, F, H] in the compute dtype."""
        return model.get_sequence_output()

    def weights_of(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns float32 [B, F], 1 at the first pieces of words."""
        is_first = tf.cast(features["label_mask"], tf.float32)
        return is_first * update.example_weights(features)[:, tf.newaxis]

    def is_one_of_several(self) -> bool:
        return True

    def eval_metrics(self, features, logits, losses):
        """Returns `eval_metrics` as `Head` does, with the words' places in their sentences."""
        metric_fn, tensors = super().eval_metrics(features, logits, losses)
        names = ("unique_ids", "continues_sentence")
        return metric_fn, {**tensors, **{name: features[name] for name in names}}

    def _metric_fn(self, logits, label_ids, losses, weights, unique_ids, continues_sentence):
        words = metrics.Examples(
            tf.reshape(label_ids, [-1]),
            tf.reshape(logits, [-1, self.num_labels]),
            tf.reshape(weights, [-1]),
        )
        results = {
            name: metrics.METRICS[name](words)
            for name in self.metrics
            if name not in ENTITY_METRICS
        }
        if set(self.metrics) & set(ENTITY_METRICS):
            predictions = tf.argmax(logits, -1, output_type=tf.int32)
            scores = entity_metrics(
                self.labels, label_ids, predictions, weights, unique_ids, continues_sentence
            )
            results.update((name, scores[name]) for name in scores if name in self.metrics)
        # The deciding metric comes first again.
        results = {name: results[name] for name in self.metrics}
        if self.reports:
            results |= classification_report.counts(self.kind, words)
        return {**results, "mean_loss": classification.mean_loss(losses, weights)}


def entity_metrics(
    labels: tuple[str, ...],
    label_ids: tf.Tensor,
    predictions: tf.Tensor,
    weights: tf.Tensor,
    unique_ids: tf.Tensor,
    continues_sentence: tf.Tensor,
) -> dict[str, metrics.Metric]:
    """Computes ENTITY_METRICS of all sentences, as conlleval does; they share one update operation.

    Args:
      label_ids, predictions: int32 [B, F], the labels of words, and their predicted labels.
      weights: float32 [B, F], above 0 at the first pieces of words.
      unique_ids: int32 [B], the windows' numbers.
      continues_sentence: int32 [B], 1 if a window goes on with the sentence of the window before.
    """
    is_word = weights > 0
    first_of_window = tf.equal(tf.cumsum(tf.cast(is_word, tf.int32), axis=1), 1)
    begins = tf.cast(first_of_window & tf.equal(continues_sentence, 0)[:, tf.newaxis], tf.int32)
    windows = tf.broadcast_to(unique_ids[:, tf.newaxis], tf.shape(begins))
    batch = tf.stack([windows, begins, label_ids, predictions], axis=-1)
    batch = tf.boolean_mask(batch, is_word)
    # The words of all batches are kept, and the windows of a sentence are joined at the end: so the
    # scores do not depend on the batch size, on the sequence length, or on the order of the
    # windows.
    words = metrics.local_variable(tf.zeros([0, 4], tf.int32), [None, 4])

    def scores(rows):
        return np.float32(_scores(labels, rows))

    values = tf.numpy_function(scores, [words.read_value()], tf.float32)
    values.set_shape([3])
    update_op = words.assign(tf.concat([words.read_value(), batch], 0), read_value=False)
    precision, recall, f1 = tf.unstack(values)
    return {
        name: (value, update_op)
        for name, value in zip(ENTITY_METRICS, (f1, precision, recall), strict=True)
    }


def _scores(labels, rows):
    """Returns the scores of words, int32 [N, 4]: window, begins a sentence, label, prediction."""
    # A stable sort keeps the words of a window in their order.
    rows = rows[np.argsort(rows[:, 0], kind="stable"), 1:]
    starts = np.flatnonzero(rows[:, 0])
    names = np.array(labels, object)[rows[:, 1:]]
    sentences = np.split(names, starts[1:]) if len(names) else []
    return entities.scores([s[:, 0] for s in sentences], [s[:, 1] for s in sentences])
