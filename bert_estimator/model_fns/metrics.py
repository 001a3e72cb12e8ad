"""Streaming metrics of classification and regression: GLUE's official metrics, and some more.

Each metric is a function of a batch of `Examples` that returns (value, update operation), like the
functions of `tf.metrics`, for `eval_metrics`. Counts are float64, so that they stay exact for any
number of examples.

Larger values are better. The ends of names say how values are shown: the curves of scores leave
out what ends in `loss`, and draw what ends in `_baseline` as a level line (`charts.py`); log lines
print what ends in `_threshold` with all digits (`run.py`).

Letters of the shapes: N examples in a batch, L labels.
"""

import dataclasses
import functools

import numpy as np
import tensorflow.compat.v1 as tf

Metric = tuple[tf.Tensor, tf.Operation]  # (value, update operation)


@dataclasses.dataclass(eq=False)
class Examples:
    """Holds what metrics are computed from: a batch of an evaluation."""

    # int32 [N] for classification and tagging, int32 [N, L] for multi_label, float32 [N] for
    # regression.
    label_ids: tf.Tensor
    logits: tf.Tensor  # float32 [N, L]
    weights: tf.Tensor  # float32 [N], 0 for padding
    positive: int = 1  # the number of the label that `f1` is of

    @functools.cached_property
    def confusion(self) -> Metric:
        """Counts examples by label and predicted label, float64 [L, L]; the metrics share it."""
        num_labels = self.logits.shape.as_list()[-1]
        predictions = tf.argmax(self.logits, -1, output_type=tf.int32)
        weights = tf.cast(self.weights, tf.float64)
        total = Total([num_labels, num_labels])
        batch = tf.math.confusion_matrix(
            self.label_ids, predictions, num_labels, tf.float64, weights=weights
        )
        return total.value, total.add(batch)


def accuracy(examples: Examples) -> Metric:
    """Computes the share of the examples whose label has the largest logit."""
    matrix, update = examples.confusion
    return _ratio(tf.linalg.trace(matrix), tf.reduce_sum(matrix)), update


def f1(examples: Examples) -> Metric:
    """Computes F1 of one of two labels (MRPC, QQP); 0 if it neither occurs nor is predicted."""
    matrix, update = examples.confusion
    return _f1_of_each_label(matrix)[examples.positive], update


def macro_f1(examples: Examples) -> Metric:
    """Computes the mean F1 over the labels that occur or are predicted, as scikit-learn does."""
    matrix, update = examples.confusion
    counts = tf.reduce_sum(matrix, 0) + tf.reduce_sum(matrix, 1)
    number = tf.reduce_sum(tf.cast(counts > 0, tf.float32))
    return _ratio(tf.reduce_sum(_f1_of_each_label(matrix)), number), update


def matthews(examples: Examples) -> Metric:
    """Computes Matthews' correlation (CoLA; Gorodkin, 2004, for more labels); 0 if undefined."""
    matrix, update = examples.confusion
    total, correct = tf.reduce_sum(matrix), tf.linalg.trace(matrix)
    labels, predictions = tf.reduce_sum(matrix, 1), tf.reduce_sum(matrix, 0)
    covariance = correct * total - tf.reduce_sum(labels * predictions)
    variances = (total**2 - tf.reduce_sum(labels**2)) * (total**2 - tf.reduce_sum(predictions**2))
    return _ratio(covariance, tf.sqrt(variances)), update


def exact_match(examples: Examples) -> Metric:
    """Computes the share of the examples whose predicted labels are exactly their labels."""
    right = tf.reduce_all(tf.equal(examples.logits > 0, examples.label_ids > 0), axis=-1)
    return tf.metrics.mean(tf.cast(right, tf.float32), examples.weights)


def micro_f1(examples: Examples) -> Metric:
    """Computes F1 over the decisions on all labels of all examples (multi-label)."""
    predicted = tf.cast(examples.logits > 0, tf.float64)
    holds = tf.cast(examples.label_ids > 0, tf.float64)
    weights = tf.cast(examples.weights, tf.float64)[:, tf.newaxis]
    counts = [tf.reduce_sum(x * weights) for x in (predicted * holds, predicted + holds)]
    both, either = tf.unstack((total := Total([2])).value)
    return _ratio(2 * both, either), total.add(tf.stack(counts))


def pearson(examples: Examples) -> Metric:
    """Computes Pearson's correlation of prediction and label; NaN if one of them is constant."""
    return _of_all_pairs(_pearson, examples)


def spearman(examples: Examples) -> Metric:
    """Computes Spearman's correlation: Pearson's correlation of the ranks; ties share a rank."""
    return _of_all_pairs(_spearman, examples)


# Kind of head -> name -> function of `Examples`.
METRICS_OF_KIND = {
    "classification": {"accuracy": accuracy, "f1": f1, "macro_f1": macro_f1, "matthews": matthews},
    "multi_label": {"micro_f1": micro_f1, "exact_match": exact_match},
    "regression": {"pearson": pearson, "spearman": spearman},
}
METRICS = {name: f for of_kind in METRICS_OF_KIND.values() for name, f in of_kind.items()}


class Total:
    """Holds a float64 local variable, which starts at zero and to which each batch is added."""

    def __init__(self, shape: list[int]):
        self._variable = local_variable(tf.zeros(shape, tf.float64))
        self.value = self._variable.read_value()

    def add(self, amount: tf.Tensor) -> tf.Operation:
        """Returns the operation that adds a batch's float64 amount."""
        return self._variable.assign_add(amount, read_value=False)


def _f1_of_each_label(matrix):
    """Returns the F1 of each label, float32 [L]: 2 true positives / (labelled + predicted)."""
    return _ratio(
        2 * tf.linalg.diag_part(matrix), tf.reduce_sum(matrix, 0) + tf.reduce_sum(matrix, 1)
    )


def _ratio(a, b):
    return tf.cast(tf.math.divide_no_nan(a, b), tf.float32)


def _of_all_pairs(function, examples):
    """Computes a numpy function of all (prediction, label) pairs, which the ranks need."""
    # Ranks are only known when all pairs are, so the variable grows with each batch.
    pairs = local_variable(tf.zeros([0, 2], tf.float64), [None, 2])
    columns = [tf.cast(x, tf.float64) for x in (examples.logits[:, 0], examples.label_ids)]
    batch = tf.boolean_mask(tf.stack(columns, axis=1), examples.weights > 0)
    value = tf.numpy_function(lambda x: np.float32(function(x)), [pairs.read_value()], tf.float32)
    value.set_shape([])
    return value, pairs.assign(tf.concat([pairs.read_value(), batch], 0), read_value=False)


def _pearson(pairs):
    centred = pairs - pairs.mean(axis=0)
    squares = (centred**2).sum(axis=0)
    if not len(pairs) or not squares.all():
        return np.nan
    return (centred[:, 0] * centred[:, 1]).sum() / np.sqrt(squares.prod())


def _spearman(pairs):
    return _pearson(np.stack([_ranks(column) for column in pairs.T], axis=1))


def _ranks(values):
    """Returns the ranks from 1, float64; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    # Equal values have ranks that follow each other, up to `last`.
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[place]


def local_variable(initial: tf.Tensor, shape: list[int | None] | None = None) -> tf.Variable:
    """Returns a variable of a metric, which starts anew in each evaluation; its shape, if None, is
    the shape of its initial value."""
    return tf.Variable(
        initial,
        trainable=False,
        collections=[tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES],
        shape=shape,
        use_resource=True,
        name="total",
    )
