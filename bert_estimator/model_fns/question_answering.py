"""The question answering `model_fn`: the first and the last token of the answer (SQuAD).

Letters: B windows of one core's batch, F sequence length, H hidden size.

Features (google-research/bert's names): `input_ids`, `input_mask`, `segment_ids` int32 [B, F];
`unique_ids` int32 [B], the window's number, for predictions and evaluation; `is_real_example` int32
[B], 0 for windows that only pad a batch, may be absent; `start_positions` and `end_positions`
int32 [B], which prediction does not need: the answer's first and last token, or 0, the position of
[CLS], for both if the window does not hold an answer.

The head is google-research/bert's: `cls/squad/output_weights` [2, H] and `cls/squad/output_bias`
[2] on each token (Devlin et al., 2018, section 4.2).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.model_fns import metrics, update
from bert_estimator.model_fns.fine_tuning import NetworkBuilder, output_logits
from bert_estimator.precision import scope

_SCOPE = "cls/squad"
_NO_TOKEN = -10000.0  # a logit whose exponential is 0


class Scorer(Protocol):
    """Collects an evaluation's logits, and computes metrics of them that need the texts."""

    names: Sequence[str]  # of the metrics

    def add(self, unique_ids: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
        """Takes the logits of a batch, float32 [B, F]; an id of -1 pads the batch."""

    def scores(self) -> Sequence[float]:
        """Returns the metrics of all windows, in the order of `names`."""


def model_fn_builder(
    network: NetworkBuilder, rule: update.UpdateRule | None = None, scorer: Scorer | None = None
) -> Callable[..., tpu.TPUEstimatorSpec]:
    """Returns the `model_fn` for `TPUEstimator`; only training needs a rule.

    The loss is the mean over the windows of the global batch: the cross-entropy in nats of the
    softmax over a window's F positions, the mean of the answer's first and last token. Predictions
    are `start_logits` and `end_logits`, float32 [B, F], and `unique_ids` if they are given. An
    evaluation with a scorer must go through all windows.
    """

    def model_fn(features, labels, mode, params):
        del labels
        if mode == tpu.ModeKeys.TRAIN:

            def make_loss_fn(step):
                return _loss_fn(network, features, step)

            scaffold_fn = network.scaffold_fn(uses_pooler=False, is_trained=rule.is_trained)
            return rule.train_spec(make_loss_fn, features, scaffold_fn, params.get("batch_size"))
        starts, ends = _logits(network, features, None)
        if mode == tpu.ModeKeys.PREDICT:
            predictions = {"start_logits": starts, "end_logits": ends}
            if "unique_ids" in features:
                predictions["unique_ids"] = features["unique_ids"]
            return tpu.TPUEstimatorSpec(mode, predictions=predictions)
        losses, weights = _losses(starts, ends, features), update.example_weights(features)
        tensors = {
            "unique_ids": features["unique_ids"],
            "starts": starts,
            "ends": ends,
            "losses": losses,
            "weights": weights,
        }
        return tpu.TPUEstimatorSpec(
            mode,
            loss=update.global_mean(losses, weights),
            eval_metrics=(_metric_fn(scorer), tensors),
            # An evaluation before the first step needs these weights. If the model's own directory
            # has a checkpoint, the evaluation reads that instead.
            scaffold_fn=network.scaffold_fn(uses_pooler=False, log=tf.logging.debug),
        )

    return model_fn


def _logits(network, features, dropout):
    """Returns the logits of starts and of ends, float32 [B, F] each."""
    with scope(network.precision):
        model = network.build(features, dropout)
        with tf.variable_scope(_SCOPE):
            tokens = model.get_sequence_output()  # [B, F, H]
            logits = output_logits(tokens, 2, model.config.initializer_range)
    # In training, google-research/bert's softmax is over padding, too, which packed rows do not
    # have. Elsewhere padding is left out, since packed rows do not train its logits.
    if dropout is None and "sequence_starts" not in features:
        is_token = tf.cast(features["input_mask"], tf.bool)[..., tf.newaxis]
        logits = tf.where_v2(is_token, logits, _NO_TOKEN)
    return tf.unstack(model.by_sequence(logits, padding=_NO_TOKEN), axis=-1)


def _losses(starts, ends, features):
    """Returns the loss of each window, float32 [B]."""
    pairs = ((starts, features["start_positions"]), (ends, features["end_positions"]))
    first, last = (
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        for logits, labels in pairs
    )
    return (first + last) / 2.0


def _loss_fn(network, features, step):
    """Returns the function of a micro-batch that gives its share of the global batch's loss."""
    num_windows = update.global_sum(update.example_weights(features))
    dropout_of = network.dropout_of(features, step)

    def loss_fn(micro_features, first_row):
        starts, ends = _logits(network, micro_features, dropout_of(first_row))
        weights = update.example_weights(micro_features)
        loss = tf.reduce_sum(_losses(starts, ends, micro_features) * weights) / num_windows
        is_right = tf.logical_and(
            tf.equal(
                tf.argmax(starts, -1, output_type=tf.int32), micro_features["start_positions"]
            ),
            tf.equal(tf.argmax(ends, -1, output_type=tf.int32), micro_features["end_positions"]),
        )
        correct = tf.reduce_sum(tf.cast(is_right, tf.float32) * weights)
        return loss, {"accuracy": correct / num_windows}

    return loss_fn


def _not_below(value):
    """Returns a float32 that is at least a value."""
    # A threshold must not become smaller: it is the null odds of a question, whose answer counts
    # only if its odds are not above the threshold.
    rounded = np.float32(value)
    # As a Python number: NumPy would round the value, too, and then compare.
    return rounded if float(rounded) >= value else np.nextafter(rounded, np.float32(np.inf))


def _metric_fn(scorer):
    """Returns the function of the evaluation's tensors that gives the metrics."""
    names = list(scorer.names) if scorer else []

    def count(losses, weights, **logits):
        if scorer:
            scorer.add(**logits)
        return metrics.sum_of_losses(losses, weights)

    def values_of(counts):
        scores = [_not_below(value) for value in scorer.scores()] if scorer else []
        return {"mean_loss": metrics.mean_loss(counts), **dict(zip(names, scores, strict=True))}

    dtypes = dict.fromkeys(["mean_loss", *names], tf.float32)
    return lambda **tensors: metrics.collected(count, values_of, dtypes, tensors)
