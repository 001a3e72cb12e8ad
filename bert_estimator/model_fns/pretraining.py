"""The pretraining `model_fn`: masked words (MLM), and next sentence (NSP), Devlin et al. (2018).

Letters: B examples of one core's batch, F sequence length, P predictions an example, V vocabulary.

Features (google-research/bert's names): `input_ids`, `input_mask`, `segment_ids` int32 [B, F];
`masked_lm_positions`, `masked_lm_ids` int32 [B, P]; `masked_lm_weights` float [B, P];
`next_sentence_labels` int32 [B, 1]; `is_real_example` int32 [B], 0 for examples that only pad a
batch and do not count, may be absent.

Without `next_sentence_labels`, masked words alone are trained and evaluated: the network lacks the
head of sentences, and its pooler stays as it was at the start. With labels of ALBERT's sentence
order, which stand in the same feature, the same head learns that.

If rows are packed (`input_pipelines.records.packed_rows`), the M words to predict are not of
examples but of the core: `masked_lm_positions`, `masked_lm_ids` and `masked_lm_weights` are [M],
and the positions are places among the tokens of all rows.
"""

import functools
from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator import heads, modeling, tpu
from bert_estimator.bert_config import BertConfig
from bert_estimator.layers import kernels
from bert_estimator.layers.dropout import Dropout
from bert_estimator.model_fns import update
from bert_estimator.model_fns.init_checkpoint import scaffold_fn
from bert_estimator.precision import scope, to_float32

# The parts of the loss -> their labels among the tensors of `_per_position`.
_PARTS = {"masked_lm": "masked_lm_ids", "next_sentence": "next_sentence_labels"}


def model_fn_builder(
    bert_config: BertConfig,
    rule: update.UpdateRule | None = None,
    *,
    precision: str = "float32",
    recompute: bool = False,
    random_seed: int = 0,
    init_checkpoint: str | None = None,
    allow_partial_init: bool = False,
    unigram_nats: np.ndarray | None = None,
) -> Callable[..., tpu.TPUEstimatorSpec]:
    """Returns the `model_fn` for `TPUEstimator`; only training needs a rule.

    The loss, in nats, has two parts: the cross-entropy of the masked words, averaged over the
    masked positions of the global batch, and, if the features have labels of it, the cross-entropy
    of the next sentence, averaged over its examples. For `init_checkpoint` and
    `allow_partial_init`, see `init_checkpoint.scaffold_fn`. With `unigram_nats`, float32 [V], an
    evaluation has the metric `unigram_baseline`: the mean of these cross-entropies over the masked
    words.
    """
    make_model = functools.partial(
        modeling.BertModel,
        bert_config,
        recompute=recompute,
    )

    def initial_weights(features, **options):
        options["uses_pooler"] = "next_sentence_labels" in features
        return scaffold_fn(
            init_checkpoint, bert_config, allow_partial_init=allow_partial_init, **options
        )

    def model_fn(features, labels, mode, params):
        del labels
        if mode == tpu.ModeKeys.EVAL:
            tensors = _per_position(make_model, precision, features, None)
            # An evaluation before the first step needs these weights. If the model's own directory
            # has a checkpoint, the evaluation reads that instead.
            start = initial_weights(features, log=tf.logging.debug)
            return _eval_spec(tensors, unigram_nats, start)
        if mode != tpu.ModeKeys.TRAIN:
            raise ValueError(f"Pretraining has modes TRAIN and EVAL, not {mode!r}")

        def make_loss_fn(step):
            return _loss_fn(make_model, precision, features, random_seed, step)

        batch_size = params.get("batch_size")
        start = initial_weights(features, is_trained=rule.is_trained)
        return rule.train_spec(make_loss_fn, features, start, batch_size)

    return model_fn


def metric_fn(
    masked_lm_loss: tf.Tensor,
    masked_lm_predictions: tf.Tensor,
    masked_lm_ids: tf.Tensor,
    masked_lm_weights: tf.Tensor,
    next_sentence_loss: tf.Tensor | None = None,
    next_sentence_predictions: tf.Tensor | None = None,
    next_sentence_labels: tf.Tensor | None = None,
    next_sentence_weights: tf.Tensor | None = None,
    unigram_nats: np.ndarray | None = None,
) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """Returns the metrics of masked words, tensors [B * P], and of next sentences, [B], if there
    are any."""
    metrics = {
        "masked_lm_accuracy": tf.metrics.accuracy(
            masked_lm_ids, masked_lm_predictions, masked_lm_weights
        ),
        "masked_lm_loss": tf.metrics.mean(masked_lm_loss, masked_lm_weights),
    }
    if next_sentence_labels is not None:
        metrics["next_sentence_accuracy"] = tf.metrics.accuracy(
            next_sentence_labels, next_sentence_predictions, next_sentence_weights
        )
        metrics["next_sentence_loss"] = tf.metrics.mean(next_sentence_loss, next_sentence_weights)
    if unigram_nats is not None:
        losses = tf.gather(tf.constant(unigram_nats), masked_lm_ids)
        metrics["unigram_baseline"] = tf.metrics.mean(losses, masked_lm_weights)
    return metrics


def _eval_spec(tensors, unigram_nats, initial_weights):
    """Returns the spec of an evaluation; `tensors` are the arguments of `metric_fn`."""
    loss = _global_mean(tensors, "masked_lm")
    if "next_sentence_loss" in tensors:
        loss += _global_mean(tensors, "next_sentence")
    return tpu.TPUEstimatorSpec(
        tpu.ModeKeys.EVAL,
        loss=loss,
        eval_metrics=(functools.partial(metric_fn, unigram_nats=unigram_nats), tensors),
        scaffold_fn=initial_weights,
    )


def _per_position(make_model, precision, features, dropout):
    """Returns losses, predictions, labels and weights: [B * P] for masked words, [B] for NSP, if
    the features have labels of it."""
    has_sentences = "next_sentence_labels" in features
    with scope(precision):
        model = make_model(
            is_training=dropout is not None,
            input_ids=features["input_ids"],
            input_mask=features["input_mask"],
            token_type_ids=features["segment_ids"],
            dropout=dropout,
            position_ids=features.get("position_ids"),
            sequence_starts=features.get("sequence_starts"),
        )
        masked_lm_logits = heads.masked_lm_logits(model, features["masked_lm_positions"])
        next_sentence_logits = heads.next_sentence_logits(model) if has_sentences else None
    masked_lm_logits = to_float32(masked_lm_logits)
    masked_lm_ids = tf.reshape(features["masked_lm_ids"], [-1])
    tensors = {
        "masked_lm_loss": kernels.of_graph().cross_entropy(masked_lm_ids, masked_lm_logits),
        "masked_lm_predictions": tf.argmax(masked_lm_logits, axis=-1, output_type=tf.int32),
        "masked_lm_ids": masked_lm_ids,
        "masked_lm_weights": tf.reshape(_masked_lm_weights(features), [-1]),
    }
    if not has_sentences:
        return tensors
    next_sentence_logits = to_float32(next_sentence_logits)
    labels = tf.reshape(features["next_sentence_labels"], [-1])
    return {
        **tensors,
        "next_sentence_loss": tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=labels, logits=next_sentence_logits
        ),
        "next_sentence_predictions": tf.argmax(next_sentence_logits, -1, output_type=tf.int32),
        "next_sentence_labels": labels,
        "next_sentence_weights": update.example_weights(features),
    }


def _loss_fn(make_model, precision, features, random_seed, step):
    """Returns the function of a micro-batch that gives its share of the global batch's loss."""
    # Each core and each micro-batch divides by the number of positions or examples of the whole
    # global batch; therefore their losses and gradients need only be summed.
    totals = {"masked_lm": update.global_sum(_masked_lm_weights(features))}
    if "next_sentence_labels" in features:
        totals["next_sentence"] = update.global_sum(update.example_weights(features))
    core_first_row = update.core_first_row(features)

    def loss_fn(micro_features, first_row):
        dropout = Dropout(random_seed, step, core_first_row + first_row)
        tensors = _per_position(make_model, precision, micro_features, dropout)

        def share(values, part):
            values = tf.cast(values, tf.float32) * tensors[f"{part}_weights"]
            return tf.reduce_sum(values) / totals[part]

        sums = {}
        for part in totals:
            sums[f"{part}_loss"] = share(tensors[f"{part}_loss"], part)
            is_right = tf.equal(tensors[f"{part}_predictions"], tensors[_PARTS[part]])
            sums[f"{part}_accuracy"] = share(is_right, part)
        loss = sums["masked_lm_loss"]
        return (loss + sums["next_sentence_loss"] if "next_sentence" in totals else loss), sums

    return loss_fn


def _global_mean(tensors, name):
    """Returns the weighted mean of a loss over the global batch."""
    return update.global_mean(tensors[f"{name}_loss"], tensors[f"{name}_weights"])


def _masked_lm_weights(features):
    """Returns the masked words' weights, float32 [B, P] or [M]; 0 in padding examples."""
    # A cast of the features to bfloat16 does not change them, since weights are 0 or 1.
    weights = tf.cast(features["masked_lm_weights"], tf.float32)
    if weights.shape.rank == 1:  # packed: what pads a batch does not have words to predict
        return weights
    return weights * update.example_weights(features)[:, tf.newaxis]
