"""The pretraining `model_fn`: masked words (MLM) and next sentence (NSP), Devlin et al. (2018).

Letters: B examples of one core's batch, F sequence length, P predictions an example, V vocabulary.

Features (google-research/bert's names): `input_ids`, `input_mask`, `segment_ids` int32 [B, F];
`masked_lm_positions`, `masked_lm_ids` int32 [B, P]; `masked_lm_weights` float [B, P];
`next_sentence_labels` int32 [B, 1]; `is_real_example` int32 [B], 0 for the examples that only fill
up a batch, which count nothing. It may be absent.
"""

import tensorflow.compat.v1 as tf

from bert_estimator import heads, init_checkpoint, modeling, optimization, precision, tpu
from bert_estimator.dropout import Dropout

_CLIP_NORM = 1.0


def model_fn_builder(
    bert_config,
    optimizer,
    learning_rate,
    num_train_steps,
    num_warmup_steps,
    *,
    precision_name="float32",
    micro_batch_size=None,
    random_seed=0,
    initial_checkpoint=None,
    summary_dir=None,
    legacy_schedule_jump=False,
    lamb_bias_correction=False,
):
    """Returns the `model_fn` for `TPUEstimator`.

    The loss is the mean cross-entropy over the masked positions of the global batch plus the mean
    over its examples of the next-sentence cross-entropy, in nats. Its normalisers are summed over
    the global batch first, so that gradients of cores and micro-batches need only be summed.

    Args:
      bert_config: `modeling.BertConfig`.
      optimizer: "lamb" or "adamw".
      learning_rate: the peak, reached after `num_warmup_steps`; 0 at `num_train_steps`.
      precision_name: "float32" or "bfloat16": what the network computes in.
      micro_batch_size: rows of a core's batch computed at a time; None: all of them.
      random_seed: seed of dropout.
      initial_checkpoint: checkpoint whose weights training starts from, or None.
      summary_dir: where the host call writes its events; None: no host call.
      legacy_schedule_jump: google-research/bert's schedule, which jumps at the end of warm-up.
      lamb_bias_correction: LAMB with Adam's bias correction.
    """

    schedule = optimization.WarmupPolynomialDecay(
        learning_rate, num_train_steps, num_warmup_steps, legacy_jump=legacy_schedule_jump
    )

    def model_fn(features, labels, mode, params):
        del labels, params
        is_training = mode == tpu.ModeKeys.TRAIN
        global_step = tf.train.get_or_create_global_step()
        if mode == tpu.ModeKeys.EVAL:
            tensors = _per_position(bert_config, precision_name, features, None)
            return tpu.TPUEstimatorSpec(
                mode,
                loss=_global_mean(tensors, "masked_lm") + _global_mean(tensors, "next_sentence"),
                eval_metrics=(metric_fn, tensors),
                # For the evaluation before the first step; a checkpoint outranks it.
                scaffold_fn=init_checkpoint.scaffold_fn(initial_checkpoint, log=tf.logging.debug),
            )
        if not is_training:
            raise ValueError(f"Pretraining has modes TRAIN and EVAL, not {mode!r}")

        # Read once, before the update: the step's own number, for dropout, rate and report.
        step = tf.identity(global_step)
        loss_fn = _loss_fn(bert_config, precision_name, features, random_seed, step)
        _, sums, gradients_and_variables = optimization.accumulate(
            loss_fn, features, micro_batch_size
        )
        sums = {name: tpu.cross_replica_sum(value) for name, value in sums.items()}
        gradients = [tpu.cross_replica_sum(gradient) for gradient, _ in gradients_and_variables]
        variables = [variable for _, variable in gradients_and_variables]
        gradients, gradient_norm = optimization.clip_by_global_norm(gradients, _CLIP_NORM)
        rate = schedule(step)
        opt = optimization.create_optimizer(
            optimizer, rate, bias_correction=optimizer == "lamb" and lamb_bias_correction
        )
        with tf.control_dependencies([step]):
            train_op = opt.apply_gradients(
                zip(gradients, variables, strict=True), global_step=global_step
            )
        loss = sums["masked_lm_loss"] + sums["next_sentence_loss"]
        report = {
            "loss": loss,
            "masked_lm_loss": sums["masked_lm_loss"],
            "masked_lm_accuracy": sums["masked_lm_accuracy"],
            "next_sentence_loss": sums["next_sentence_loss"],
            "next_sentence_accuracy": sums["next_sentence_accuracy"],
            "learning_rate": rate,
            "gradient_norm": gradient_norm,
        }
        host_tensors = {name: tf.reshape(value, [1]) for name, value in report.items()}
        # Steps are numbered from 1 where they are reported, as in log lines and checkpoints.
        host_tensors["global_step"] = tf.reshape(tf.cast(step, tf.int32) + 1, [1])
        if opt.trust_ratios:
            host_tensors["trust_ratios"] = tf.stack(list(opt.trust_ratios.values()))
        return tpu.TPUEstimatorSpec(
            mode,
            loss=loss,
            train_op=train_op,
            host_call=(_host_call(summary_dir), host_tensors) if summary_dir else None,
            scaffold_fn=init_checkpoint.scaffold_fn(initial_checkpoint),
        )

    return model_fn


def metric_fn(
    masked_lm_loss,
    masked_lm_predictions,
    masked_lm_ids,
    masked_lm_weights,
    next_sentence_loss,
    next_sentence_predictions,
    next_sentence_labels,
    next_sentence_weights,
):
    """Streaming metrics over masked positions [B * P] and over examples [B], by weight."""
    return {
        "masked_lm_accuracy": tf.metrics.accuracy(
            masked_lm_ids, masked_lm_predictions, masked_lm_weights
        ),
        "masked_lm_loss": tf.metrics.mean(masked_lm_loss, masked_lm_weights),
        "next_sentence_accuracy": tf.metrics.accuracy(
            next_sentence_labels, next_sentence_predictions, next_sentence_weights
        ),
        "next_sentence_loss": tf.metrics.mean(next_sentence_loss, next_sentence_weights),
    }


def _per_position(bert_config, precision_name, features, dropout):
    """Returns losses, predictions, labels and weights: [B * P] for masked words, [B] for NSP."""
    with precision.scope(precision_name):
        model = modeling.BertModel(
            bert_config,
            is_training=dropout is not None,
            input_ids=features["input_ids"],
            input_mask=features["input_mask"],
            token_type_ids=features["segment_ids"],
            dropout=dropout,
        )
        masked_lm_logits = heads.masked_lm_logits(model, features["masked_lm_positions"])
        next_sentence_logits = heads.next_sentence_logits(model)
    masked_lm_logits = precision.to_float32(masked_lm_logits)
    next_sentence_logits = precision.to_float32(next_sentence_logits)
    masked_lm_ids = tf.reshape(features["masked_lm_ids"], [-1])
    labels = tf.reshape(features["next_sentence_labels"], [-1])
    return {
        "masked_lm_loss": tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=masked_lm_ids, logits=masked_lm_logits
        ),
        "masked_lm_predictions": tf.argmax(masked_lm_logits, axis=-1, output_type=tf.int32),
        "masked_lm_ids": masked_lm_ids,
        "masked_lm_weights": tf.reshape(_masked_lm_weights(features), [-1]),
        "next_sentence_loss": tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=labels, logits=next_sentence_logits
        ),
        "next_sentence_predictions": tf.argmax(next_sentence_logits, -1, output_type=tf.int32),
        "next_sentence_labels": labels,
        "next_sentence_weights": tf.reshape(_example_weights(features), [-1]),
    }


def _loss_fn(bert_config, precision_name, features, random_seed, step):
    """Returns the function of a micro-batch that gives its share of the global batch's loss."""
    num_masked = _at_least_one(tpu.cross_replica_sum(tf.reduce_sum(_masked_lm_weights(features))))
    num_examples = _at_least_one(tpu.cross_replica_sum(tf.reduce_sum(_example_weights(features))))
    core_first_row = tpu.replica_id() * features["input_ids"].shape.as_list()[0]

    def loss_fn(micro_features, first_row):
        dropout = Dropout(random_seed, step, core_first_row + first_row)
        tensors = _per_position(bert_config, precision_name, micro_features, dropout)

        def share(values, weights, total):
            return tf.reduce_sum(tf.cast(values, tf.float32) * weights) / total

        masked_lm = (tensors["masked_lm_weights"], num_masked)
        next_sentence = (tensors["next_sentence_weights"], num_examples)
        sums = {
            "masked_lm_loss": share(tensors["masked_lm_loss"], *masked_lm),
            "masked_lm_accuracy": share(
                tf.equal(tensors["masked_lm_predictions"], tensors["masked_lm_ids"]), *masked_lm
            ),
            "next_sentence_loss": share(tensors["next_sentence_loss"], *next_sentence),
            "next_sentence_accuracy": share(
                tf.equal(tensors["next_sentence_predictions"], tensors["next_sentence_labels"]),
                *next_sentence,
            ),
        }
        return sums["masked_lm_loss"] + sums["next_sentence_loss"], sums

    return loss_fn


def _global_mean(tensors, name):
    """The weighted mean of a loss over the global batch."""
    weights = tensors[f"{name}_weights"]
    total = tpu.cross_replica_sum(tf.reduce_sum(tensors[f"{name}_loss"] * weights))
    return total / _at_least_one(tpu.cross_replica_sum(tf.reduce_sum(weights)))


def _host_call(summary_dir):
    """Returns the host function that writes one step's report as events."""

    def host_call(global_step, trust_ratios=None, **report):
        step = tf.cast(global_step[0], tf.int64)
        with tpu.summary.create_file_writer(summary_dir).as_default():
            operations = [
                tpu.summary.scalar(f"train/{name}", value[0], step=step)
                for name, value in sorted(report.items())
            ]
            if trust_ratios is not None:
                operations += [
                    tpu.summary.histogram("trust_ratio", trust_ratios, step=step),
                    tpu.summary.scalar("trust_ratio/min", tf.reduce_min(trust_ratios), step=step),
                    tpu.summary.scalar("trust_ratio/mean", tf.reduce_mean(trust_ratios), step=step),
                    tpu.summary.scalar("trust_ratio/max", tf.reduce_max(trust_ratios), step=step),
                ]
        return operations

    return host_call


def _masked_lm_weights(features):
    """float32 [B, P]: exact also from features cast to bfloat16, since weights are 0 or 1."""
    return tf.cast(features["masked_lm_weights"], tf.float32) * _example_weights(features)


def _example_weights(features):
    """float32 [B, 1]: 0 for the examples that only fill up a batch."""
    if "is_real_example" in features:
        return tf.cast(tf.reshape(features["is_real_example"], [-1, 1]), tf.float32)
    return tf.ones_like(features["next_sentence_labels"], tf.float32)


def _at_least_one(total):
    """A batch without a masked position has a loss of 0, not NaN."""
    return tf.maximum(total, 1.0)
