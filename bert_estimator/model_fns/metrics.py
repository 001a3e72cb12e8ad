"""Metrics of classification and regression: GLUE's official metrics, and some more.

An evaluation counts the examples of each batch with NumPy, on the host, and adds the counts up
(`collected`). A metric is a function of the counts of all batches. Counts are float64, so that they
stay exact for any number of examples.

Larger values are better. The ends of names say how values are shown: the curves of scores leave
out what ends in `loss`, and draw what ends in `_baseline` as a level line (`charts.py`); log lines
print what ends in `_threshold` with all digits (`run.py`).

Letters of the shapes: N examples in a batch, L labels.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

Metric = tuple[tf.Tensor, tf.Operation]  # (value, update operation)

# What is known of examples, by name. To add the counts of batches, arrays are summed and lists are
# joined: of what a metric needs of each example, a list has an array for each batch.
Counts = dict[str, Any]

CONFUSION, LOSSES, PAIRS, RIGHT = "confusion", "losses", "pairs", "right"


def count(kind: str, label_ids: np.ndarray, logits: np.ndarray) -> Counts:
    """Counts examples: labels are int32 [N], int32 [N, L] for multi_label or float32 [N] for
    regression, and logits float32 [N, L].

    CONFUSION is [L, L], examples by label and predicted label, or [L, 2, 2] for multi_label, by
    whether the label holds and is predicted. RIGHT, for multi_label, is [2]: the examples whose
    predicted labels are exactly their labels, and all. PAIRS, for regression, has [N, 2]: the
    prediction and the label of each example.
    """
    if kind == "regression":
        return {PAIRS: [np.stack([logits[:, 0], label_ids], axis=1).astype(np.float64)]}
    num_labels = logits.shape[1]
    if kind == "multi_label":
        holds, predicted = label_ids > 0, logits > 0
        right = np.all(holds == predicted, axis=1)
        table = numbers_of([num_labels, 2, 2], np.arange(num_labels), holds, predicted)
        return {CONFUSION: table, RIGHT: np.array([right.sum(), len(right)], np.float64)}
    return {CONFUSION: numbers_of([num_labels] * 2, label_ids, logits.argmax(axis=-1))}


def numbers_of(shape: list[int], *places: np.ndarray) -> np.ndarray:
    """Returns a table, float64 of this shape: how often each place occurs; the coordinates of
    places, one array for each axis, are broadcast together."""
    numbers = np.ravel_multi_index(places, shape).ravel()
    return np.bincount(numbers, minlength=np.prod(shape)).reshape(shape).astype(np.float64)


def sum_of_losses(losses: np.ndarray, weights: np.ndarray) -> Counts:
    """Counts losses, which are of any shape, for `mean_loss`."""
    return {LOSSES: np.array([np.sum(losses * weights, dtype=np.float64), np.sum(weights)])}


def mean_loss(counts: Counts) -> float:
    """Returns the mean loss over labels; the loss of a spec is a mean over batches."""
    return _ratio(*counts[LOSSES])


def accuracy(counts: Counts) -> float:
    """Returns the share of the examples whose label has the largest logit."""
    matrix = counts[CONFUSION]
    return _ratio(np.trace(matrix), matrix.sum())


def f1(counts: Counts, positive: int = 1) -> float:
    """Returns F1 of one of two labels (MRPC, QQP); 0 if it neither occurs nor is predicted."""
    return _f1_of_each_label(counts[CONFUSION])[positive]


def macro_f1(counts: Counts) -> float:
    """Returns the mean F1 over the labels that occur or are predicted, as scikit-learn does."""
    matrix = counts[CONFUSION]
    number = np.count_nonzero(matrix.sum(axis=0) + matrix.sum(axis=1))
    return _ratio(_f1_of_each_label(matrix).sum(), number)


def matthews(counts: Counts) -> float:
    """Returns Matthews' correlation (CoLA; Gorodkin, 2004, for more labels); 0 if undefined."""
    matrix = counts[CONFUSION]
    total, correct = matrix.sum(), np.trace(matrix)
    labels, predictions = matrix.sum(axis=1), matrix.sum(axis=0)
    covariance = correct * total - np.sum(labels * predictions)
    variances = (total**2 - np.sum(labels**2)) * (total**2 - np.sum(predictions**2))
    return _ratio(covariance, np.sqrt(variances))


def exact_match(counts: Counts) -> float:
    """Returns the share of the examples whose predicted labels are exactly their labels."""
    return _ratio(*counts[RIGHT])


def micro_f1(counts: Counts) -> float:
    """Returns F1 over the decisions on all labels of all examples (multi-label)."""
    tables = counts[CONFUSION]
    both, holds, predicted = tables[:, 1, 1].sum(), tables[:, 1].sum(), tables[:, :, 1].sum()
    return _ratio(2 * both, holds + predicted)


def pearson(counts: Counts) -> float:
    """Returns Pearson's correlation of prediction and label; NaN if one of them is constant."""
    return _correlation(np.concatenate(counts[PAIRS]))


def spearman(counts: Counts) -> float:
    """Returns Spearman's correlation: Pearson's correlation of the ranks; ties share a rank."""
    pairs = np.concatenate(counts[PAIRS])
    return _correlation(np.stack([_ranks(column) for column in pairs.T], axis=1))


# Kind of head -> name -> function of `Counts`.
METRICS_OF_KIND = {
    "classification": {"accuracy": accuracy, "f1": f1, "macro_f1": macro_f1, "matthews": matthews},
    "multi_label": {"micro_f1": micro_f1, "exact_match": exact_match},
    "regression": {"pearson": pearson, "spearman": spearman},
}
METRICS = {name: f for of_kind in METRICS_OF_KIND.values() for name, f in of_kind.items()}


def add(total: Counts, counts: Counts) -> None:
    """Adds the counts of a batch to the counts of the batches before."""
    for name, value in counts.items():
        if name in total:
            total[name] += value
        else:
            total[name] = value


def collected(
    count_batch: Callable[..., Counts],
    values_of: Callable[[Counts], Mapping[str, Any]],
    dtypes: Mapping[str, tf.DType],
    tensors: Mapping[str, tf.Tensor],
) -> dict[str, Metric]:
    """Returns the metrics of an evaluation, for `eval_metrics`; NumPy computes them.

    Args:
      count_batch: function that counts a batch, of which it gets `tensors` as arrays, by keyword.
      values_of: function of the counts of all batches that returns the values of the metrics.
      dtypes: name of a metric -> type of its value, in the order of the metrics.
    """
    total: Counts = {}

    def count(*arrays):
        add(total, count_batch(**dict(zip(tensors, arrays, strict=True))))

    def values():
        found = values_of(total)
        return [np.asarray(found[name], dtype.as_numpy_dtype) for name, dtype in dtypes.items()]

    # A graph may serve several evaluations. Each of them begins by initializing the tables.
    clear = tf.numpy_function(total.clear, [], [])
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, clear)
    update = tf.numpy_function(count, list(tensors.values()), [])
    # All values are read after the last update.
    found = tf.numpy_function(values, [], list(dtypes.values()))
    return {name: (value, update) for name, value in zip(dtypes, found, strict=True)}


def _f1_of_each_label(matrix):
    """Returns the F1 of each label, [L]: 2 true positives / (labelled + predicted)."""
    either = matrix.sum(axis=0) + matrix.sum(axis=1)
    return 2 * np.diag(matrix) / np.maximum(either, 1)


def _ratio(a, b):
    return a / b if b else 0.0


def _correlation(pairs):
    centred = pairs - pairs.mean(axis=0)
    squares = (centred**2).sum(axis=0)
    if not squares.all():
        return np.nan
    return (centred[:, 0] * centred[:, 1]).sum() / np.sqrt(squares.prod())


def _ranks(values):
    """Returns the ranks from 1, float64; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    # Equal values have ranks that follow each other, up to `last`.
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[place]
