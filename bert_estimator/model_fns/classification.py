"""The fine-tuning `model_fn`: one label, several labels or a number for a text or a pair of texts,
or labels of words (named entities, parts of speech).

Letters: B examples of one core's batch, or windows of sentences, F sequence length, H hidden size,
L labels, N words.

Features (google-research/bert's names): `input_ids`, `input_mask`, `segment_ids` int32 [B, F];
`unique_ids` int32 [B], the examples' numbers, which predictions then have, too, and
`is_real_example` int32 [B], 0 for examples that only pad a batch and do not count, may be absent;
`label_ids`, which prediction does not need, depends on the kind of the task:

    classification   int32 [B], the number of the label
    multi_label      int32 [B, L], 1 for each label that holds
    regression       float32 [B], the number itself
    tagging          int32 [B, F], the number of the label at the first piece of each word

If long texts are read in windows, an example is a window, and there are `text_numbers` int32 [B],
the number of its text, and `window_weights` float32 [B], its share of the text's tokens, scaled to
a mean of 1 over all windows of the task. For tagging there are `label_mask` int32 [B, F], 1 at the
first pieces of words; and for evaluation `continues_sentence` int32 [B], 1 if the window goes on
with the sentence of the window that has the number before.

The head is google-research/bert's: `output_weights` [L, H], `output_bias` [L] on the pooled first
token (Devlin et al., 2018, section 4.1), or for tagging on the last layer's output of each piece
(section 5.3), where the pooler is neither used nor trained; in training with the dropout
`classifier_dropout` of the network.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import ClassVar

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator import modeling, tpu
from bert_estimator.model_fns import classification_report, metrics, update
from bert_estimator.model_fns.fine_tuning import NetworkBuilder, output_logits
from bert_estimator.model_fns.metrics import METRICS, Counts, Metric
from bert_estimator.precision import scope
from bert_estimator.tokenization import entities

ENTITY_METRICS = ("entity_f1", "entity_precision", "entity_recall")
_WORDS, _WINDOWS = "words", "windows"  # the names of lists of `Counts`


@dataclasses.dataclass(frozen=True)
class Head:
    """Says what the head of the network predicts of an example, and how predictions are scored."""

    kind: str  # one of `choices.TASK_KINDS`
    num_labels: int  # L; 1 for regression
    # Keys of `metrics.METRICS` that an evaluation reports; each must suit the kind.
    metrics: tuple[str, ...] = ()
    # If each label is one of several, a factor for each of the L labels; the loss is then the mean
    # weighted by the factors. None means 1 for each.
    class_weights: tuple[float, ...] | None = None
    # Whether an evaluation also returns the counts of a `classification_report`.
    reports: bool = False
    positive: int = 1  # the number of the label that `f1` is of
    # If each label is one of several, the share of a label's weight in the loss of training that is
    # spread evenly over all L labels (Szegedy et al., 2016, "Rethinking the Inception architecture
    # for computer vision", section 7). The loss of an evaluation is without it.
    label_smoothing: float = 0.0

    COUNTED: ClassVar[tuple[str, ...]] = ("label_ids",)  # features that an evaluation needs
    USES_POOLER: ClassVar[bool] = True

    def input_of(self, model: modeling.BertModel) -> tf.Tensor:
        """Returns what the logits are computed from: [B, ..., H] in the compute dtype."""
        return model.get_pooled_output()

    def weights_of(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns float32 [B, ...]: 1 for each label that counts, and 0 for padding."""
        return update.example_weights(features)

    def counts_of(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns float32 [B, ...], whose sum over a batch divides its losses in training."""
        return self.weights_of(features)

    def is_one_of_several(self) -> bool:
        """Returns whether each label is one of L, so that the softmax tells its probabilities."""
        return self.kind == "classification"

    def eval_metrics(
        self, features: dict[str, tf.Tensor], logits: tf.Tensor, losses: tf.Tensor
    ) -> tuple[Callable[..., dict[str, Metric]], dict[str, tf.Tensor]]:
        """Returns (function, its arguments), the `eval_metrics` of the spec, for logits float32
        [B, ..., L] and the losses of labels, float32 [B, ...]."""
        counted = {name: features[name] for name in self.COUNTED}
        weights = self.weights_of(features)
        return self._metric_fn, {"logits": logits, "losses": losses, "weights": weights, **counted}

    def _metric_fn(self, **tensors):
        reported = classification_report.names(self.num_labels) if self.reports else ()
        dtypes = {
            **dict.fromkeys(self.metrics, tf.float32),
            **dict.fromkeys(reported, tf.float64),
            "mean_loss": tf.float32,
        }

        def count(losses, weights, **arrays):
            counts = self.count(weights=weights, **arrays)
            return counts | metrics.sum_of_losses(losses, weights)

        def values_of(counts):
            return counts | self.values_of(counts) | {"mean_loss": metrics.mean_loss(counts)}

        return metrics.collected(count, values_of, dtypes, tensors)

    def count(self, logits: np.ndarray, label_ids: np.ndarray, weights: np.ndarray) -> Counts:
        """Counts the examples of a batch, or their words, whose weight is not 0."""
        is_counted = weights > 0
        arrays = label_ids[is_counted], logits[is_counted]
        counts = metrics.count(self.kind, *arrays)
        return counts | classification_report.count(self.kind, *arrays) if self.reports else counts

    def values_of(self, counts: Counts) -> dict[str, float]:
        """Returns the values of the metrics, by name, of the counts of all batches."""
        functions = {**METRICS, "f1": functools.partial(metrics.f1, positive=self.positive)}
        return {name: functions[name](counts) for name in self.metrics}


@dataclasses.dataclass(frozen=True)
class WindowsHead(Head):
    """Says what the windows of a text predict: the mean of their logits, weighted by their tokens.

    In training each window has the label of its text, and the text's windows count as one example
    together: their weights are 1 in the mean over all windows of the task, and the number of
    windows of a batch divides its losses. So training lowers a bound of what is evaluated:
    cross-entropy and squared error are convex, so that the loss of the mean is at most the mean of
    the losses (Jensen).
    """

    COUNTED: ClassVar[tuple[str, ...]] = ("label_ids", "text_numbers", "window_weights")

    def weights_of(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        return super().weights_of(features) * features["window_weights"]

    def counts_of(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        return super().weights_of(features)

    def count(
        self,
        logits: np.ndarray,
        label_ids: np.ndarray,
        weights: np.ndarray,
        text_numbers: np.ndarray,
        window_weights: np.ndarray,
    ) -> Counts:
        """Keeps the windows of a batch, since the windows of a text may be in several batches."""
        arrays = text_numbers, window_weights, label_ids, logits
        return {_WINDOWS: [tuple(array[weights > 0] for array in arrays)]}

    def values_of(self, counts: Counts) -> dict[str, float]:
        windows = zip(*counts[_WINDOWS], strict=True)
        numbers, weights, label_ids, logits = map(np.concatenate, windows)
        _, firsts, owners = np.unique(numbers, return_index=True, return_inverse=True)
        sums = np.zeros([len(firsts), logits.shape[1]])
        np.add.at(sums, owners, np.float64(weights)[:, np.newaxis] * logits)
        means = np.float32(sums / np.bincount(owners, weights)[:, np.newaxis])
        of_texts = super().count(means, label_ids[firsts], np.ones(len(firsts)))
        return of_texts | super().values_of(of_texts)


@dataclasses.dataclass(frozen=True)
class TaggingHead(Head):
    """Says what labels words have, and how predicted labels are scored."""

    # The names of the L labels in the order of their numbers; ENTITY_METRICS need them.
    labels: tuple[str, ...] = ()

    COUNTED: ClassVar[tuple[str, ...]] = ("label_ids", "unique_ids", "continues_sentence")
    USES_POOLER: ClassVar[bool] = False

    def input_of(self, model: modeling.BertModel) -> tf.Tensor:
        """Returns the output of the last layer, [B, F, H] in the compute dtype."""
        return model.get_sequence_output()

    def weights_of(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns float32 [B, F], 1 at the first pieces of words."""
        is_first = tf.cast(features["label_mask"], tf.float32)
        return is_first * update.example_weights(features)[:, tf.newaxis]

    def is_one_of_several(self) -> bool:
        return True

    def count(
        self,
        logits: np.ndarray,
        label_ids: np.ndarray,
        weights: np.ndarray,
        unique_ids: np.ndarray,
        continues_sentence: np.ndarray,
    ) -> Counts:
        """Counts the words of a batch, and keeps their places, labels and predicted labels."""
        is_word = weights > 0
        is_first = is_word & (np.cumsum(is_word, axis=1) == 1)
        begins = is_first & (continues_sentence == 0)[:, np.newaxis]
        windows = np.broadcast_to(unique_ids[:, np.newaxis], is_word.shape)
        words = np.stack([windows, begins, label_ids, logits.argmax(axis=-1)], axis=-1)[is_word]
        return super().count(logits, label_ids, weights) | {_WORDS: [words.astype(np.int32)]}

    def values_of(self, counts: Counts) -> dict[str, float]:
        values = {}
        if set(self.metrics) & set(ENTITY_METRICS):
            values = _entity_metrics(self.labels, np.concatenate(counts[_WORDS]))
        return values | {name: METRICS[name](counts) for name in self.metrics if name not in values}


def model_fn_builder(
    network: NetworkBuilder, head: Head, rule: update.UpdateRule | None = None
) -> Callable[..., tpu.TPUEstimatorSpec]:
    """Returns the `model_fn` for `TPUEstimator`; only training needs a rule.

    The loss is the mean over the examples of the global batch, or over their words (tagging):
    cross-entropy in nats of the softmax (classification, tagging) or of the sigmoids, averaged over
    the labels (multi_label), or the squared error (regression). Predictions are `logits`, float32
    [B, L], or [B, F, L] for tagging, and, except for regression, `probabilities` of this shape.
    """

    def model_fn(features, labels, mode, params):
        del labels
        if mode == tpu.ModeKeys.TRAIN:

            def make_loss_fn(step):
                return _loss_fn(network, head, features, step)

            scaffold_fn = network.scaffold_fn(
                uses_pooler=head.USES_POOLER, is_trained=rule.is_trained
            )
            return rule.train_spec(make_loss_fn, features, scaffold_fn, params.get("batch_size"))
        logits = _logits(network, head, features, None)
        if mode == tpu.ModeKeys.PREDICT:
            predictions = _predictions(head, logits)
            if "unique_ids" in features:
                predictions["unique_ids"] = features["unique_ids"]
            return tpu.TPUEstimatorSpec(mode, predictions=predictions)
        losses = _losses(head, logits, features["label_ids"])
        weights = head.weights_of(features) * _class_weights(head, features)
        return tpu.TPUEstimatorSpec(
            mode,
            loss=update.global_mean(losses, weights),
            eval_metrics=head.eval_metrics(features, logits, losses),
            # An evaluation before the first step needs these weights. If the model's own directory
            # has a checkpoint, the evaluation reads that instead.
            scaffold_fn=network.scaffold_fn(uses_pooler=head.USES_POOLER, log=tf.logging.debug),
        )

    return model_fn


def scores(
    head: Head, batches: Iterable[tuple[dict[str, np.ndarray], np.ndarray]]
) -> dict[str, float]:
    """Returns the metrics of batches without padding, from (features, logits float32 [B, ..., L])
    of each, which another program has computed."""
    total: Counts = {}
    for features, logits in batches:
        weights = features.get("label_mask", np.ones(len(logits)))
        counted = {name: features[name] for name in head.COUNTED}
        metrics.add(total, head.count(logits=logits, weights=weights, **counted))
    return head.values_of(total)


def _entity_metrics(labels, words):
    """Returns ENTITY_METRICS, which are conlleval's, of words, int32 [N, 4]: window, begins a
    sentence, label, prediction; the windows of a sentence may come in any order."""
    # A stable sort keeps the words of a window in their order.
    words = words[np.argsort(words[:, 0], kind="stable"), 1:]
    starts = np.flatnonzero(words[:, 0])
    names = np.array(labels, object)[words[:, 1:]]
    sentences = np.split(names, starts[1:]) if len(names) else []
    scores = entities.scores([s[:, 0] for s in sentences], [s[:, 1] for s in sentences])
    return dict(zip(("entity_precision", "entity_recall", "entity_f1"), scores, strict=True))


def _logits(network, head, features, dropout):
    """Returns the head's logits, float32 [B, ..., L]; without `dropout`, as outside of training."""
    with scope(network.precision):
        model = network.build(features, dropout)
        hidden = head.input_of(model)
        if dropout is not None:
            # Packed rows are in another order than the batch's examples; each pooled output draws
            # the mask of its own example.
            if hidden.shape.rank == 2 and "sequence_numbers" in features:
                dropout = dropout.at_rows(features["sequence_numbers"])
            hidden = dropout(hidden, model.config.classifier_dropout)
        logits = output_logits(hidden, head.num_labels, model.config.initializer_range)
    return model.by_sequence(logits) if logits.shape.rank == 3 else logits


def _predictions(head, logits):
    if head.kind == "regression":
        return {"logits": logits}
    to_probabilities = tf.nn.softmax if head.is_one_of_several() else tf.nn.sigmoid
    return {"logits": logits, "probabilities": to_probabilities(logits)}


def _losses(head, logits, label_ids, label_smoothing=0.0):
    """Returns the loss of each label, float32 [B, ...], before the label's weight is applied."""
    if head.is_one_of_several():
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label_ids, logits=logits)
        if label_smoothing:
            of_all = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
            losses = (1.0 - label_smoothing) * losses + label_smoothing * of_all
        return losses
    labels = tf.cast(label_ids, tf.float32)
    if head.kind == "multi_label":
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(losses, axis=-1)
    return tf.square(logits[:, 0] - labels)


def _class_weights(head, features):
    """Returns the factor of each label's loss, float32 [B, ...]; or 1 for all."""
    if head.class_weights is None:
        return 1.0
    return tf.gather(tf.constant(head.class_weights, tf.float32), features["label_ids"])


def _loss_fn(network, head, features, step):
    """Returns the function of a micro-batch that gives its share of the global batch's loss."""
    counts = head.counts_of(features)
    num_labelled = update.global_sum(counts)
    total = num_labelled
    if head.class_weights is not None:  # their sum may be below 1, and may be 0
        total = tpu.cross_replica_sum(tf.reduce_sum(counts * _class_weights(head, features)))
    dropout_of = network.dropout_of(features, step)

    def loss_fn(micro_features, first_row):
        logits = _logits(network, head, micro_features, dropout_of(first_row))
        label_ids = micro_features["label_ids"]
        losses = _losses(head, logits, label_ids, head.label_smoothing)
        weights = head.weights_of(micro_features) * _class_weights(head, micro_features)
        loss = tf.reduce_sum(losses * weights)
        loss = tf.math.divide_no_nan(loss, total)
        if not head.is_one_of_several():
            return loss, {}
        correct = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), label_ids)
        correct = tf.reduce_sum(tf.cast(correct, tf.float32) * head.counts_of(micro_features))
        return loss, {"accuracy": correct / num_labelled}

    return loss_fn
