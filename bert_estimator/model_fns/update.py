"""The part of a training step that pretraining and fine-tuning share.

The caller gives the loss of a micro-batch. This module sums over micro-batches and cores, clips the
gradients, applies the schedule and the optimizer, and builds the host call that reports a step.
"""

import collections
import dataclasses
import re
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator import optimization, tpu

_CLIP_NORM = 1.0


@dataclasses.dataclass(frozen=True)
class UpdateRule:
    """Says how weights are updated."""

    optimizer: str  # a key of `optimization.OPTIMIZERS`
    schedule: optimization.WarmupPolynomialDecay
    # Rows of a core's batch that are computed at a time; None means all rows.
    micro_batch_size: int | None = None
    optimizer_options: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the optimizer
    # A function of a variable's name that returns a factor of its rate; None means 1 for all.
    rate_scale: Callable[[str], float] | None = None
    # Says of a variable's name whether the variable is trained; None means that all are. The others
    # have neither gradients nor slots, and the backward pass ends at the lowest that is trained.
    is_trained: Callable[[str], bool] | None = None
    # The directory for the events of the host call; None means no host call.
    summary_dir: str | None = None

    def train_spec(
        self,
        make_loss_fn: Callable[[tf.Tensor], Callable[..., Any]],
        features: dict[str, tf.Tensor],
        scaffold_fn: Callable[[], tf.train.Scaffold] | None = None,
        batch_size: int | None = None,
    ) -> tpu.TPUEstimatorSpec:
        """Builds the training step; its spec has the loss of the global batch.

        Args:
          make_loss_fn: function of the step (a scalar tensor, the number of updates so far) that
            returns the `loss_fn` of `optimization.accumulate`. That function must divide its loss
            by a sum over the global batch. Its other outputs are scalars by name, shares of the
            batch's values; they are summed over micro-batches and cores, and reported.
          features: dict of [B, ...] tensors, the batch of one core.
          batch_size: examples of a core's batch; micro-batches of packed rows need it.
        """
        global_step = tf.train.get_or_create_global_step()
        # The step is read once, before the update, for dropout, the learning rate and the report.
        step = tf.identity(global_step)
        loss, sums, gradients_and_variables = _accumulate(
            make_loss_fn(step), features, self.micro_batch_size, batch_size, self.is_trained
        )
        loss = tpu.cross_replica_sum(loss)
        sums = {name: tpu.cross_replica_sum(value) for name, value in sums.items()}
        rate = self.schedule(step)
        scaled = rate if self.rate_scale is None else lambda name: rate * self.rate_scale(name)
        optimizer = optimization.create_optimizer(self.optimizer, scaled, **self.optimizer_options)
        used = [(g, v) for g, v in gradients_and_variables if g is not None]
        shards = tpu.update_shards() if optimizer.takes_parts else None
        gradients = [_summed(gradient, variable, shards) for gradient, variable in used]
        variables = [variable for _, variable in used]
        scale, gradient_norm = optimization.clipping_scale(gradients, _CLIP_NORM)
        # `after` has what is reported and reads weights, which it reads as they were before the
        # update. What is computed from these tensors or from gradients need not be listed.
        train_op = optimizer.apply_gradients(
            zip(gradients, variables, strict=True),
            global_step=global_step,
            after=[step, loss, *sums.values()],
            scale=scale,
        )
        report = {"loss": loss, **sums, "learning_rate": rate, "gradient_norm": gradient_norm}
        return tpu.TPUEstimatorSpec(
            tpu.ModeKeys.TRAIN,
            loss=loss,
            train_op=train_op,
            host_call=_host_call(self.summary_dir, step, report, optimizer.trust_ratios),
            scaffold_fn=scaffold_fn,
        )

    def corners(self) -> list[dict[str, float]]:
        """Returns steps, from 1, and learning rates; in between, the rate is a straight line."""
        # These are the first step, and the steps before and at the end of the warm-up.
        warmup = self.schedule.num_warmup_steps
        updates = sorted({0, max(warmup - 1, 0), warmup})
        return [{"step": u + 1, "learning_rate": float(self.schedule(u))} for u in updates]


def _accumulate(loss_fn, features, micro_batch_size, batch_size, is_trained):
    """Calls `optimization.accumulate`, also for packed rows, whose number is not the batch's."""
    if "sequence_starts" not in features or micro_batch_size is None:
        return optimization.accumulate(loss_fn, features, micro_batch_size, is_trained)
    # Packed rows only: a micro-batch is some of them, see `input_pipelines.records.packed_rows`.
    num_micro_batches = max(1, batch_size // micro_batch_size)

    def split(tensor):
        size, *shape = tensor.shape.as_list()
        return tf.reshape(tensor, [num_micro_batches, size // num_micro_batches, *shape])

    def loss_of_micro_batch(micro_batch, number):
        micro_features = {name: tensor[0] for name, tensor in micro_batch.items()}
        return loss_fn(micro_features, number * micro_features["input_ids"].shape.as_list()[0])

    micro_batches = {name: split(tensor) for name, tensor in features.items()}
    return optimization.accumulate(loss_of_micro_batch, micro_batches, 1, is_trained)


def _summed(gradient, variable, shards):
    """Sums a gradient over the cores: the whole of it, or this core's part if they are shared."""
    axis = shards and shards.axis_of(variable)
    if axis is None:
        return tpu.cross_replica_sum(gradient)
    return optimization.Part(shards.sum_part(gradient, axis), axis, shards)


def global_sum(values: tf.Tensor) -> tf.Tensor:
    """Sums a tensor's elements over the global batch; the result is at least 1."""
    # Losses are divided by this sum. If no word or example of a batch counts, its loss is 0, not
    # NaN.
    return tf.maximum(tpu.cross_replica_sum(tf.reduce_sum(values)), 1.0)


def global_mean(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the weighted mean over the global batch, a float32 scalar; 0 if all weights are 0."""
    total, weight = (
        tpu.cross_replica_sum(tf.reduce_sum(tensor)) for tensor in (values * weights, weights)
    )
    return tf.math.divide_no_nan(total, weight)


def example_weights(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns float32 [B]: 0 for examples that only pad a batch (`is_real_example`), else 1."""
    if "is_real_example" in features:
        return tf.cast(tf.reshape(features["is_real_example"], [-1]), tf.float32)
    if "sequence_starts" in features:  # Rows are packed: the batch has other rows than examples.
        return tf.ones_like(features["sequence_starts"], tf.float32)
    return tf.ones_like(features["input_ids"][:, 0], tf.float32)


def core_first_row(features: dict[str, tf.Tensor]) -> int | tf.Tensor:
    """Returns the number in the global batch of the first row of `input_ids` of this core."""
    rows = features["input_ids"].shape.as_list()[0]
    # Batches with any number of rows are batches of a single core.
    return 0 if rows is None else tpu.replica_id() * rows


def _host_call(summary_dir, step, report, trust_ratios):
    """Returns the host call that writes the report of a step as events; None if there is no
    directory for them."""
    if not summary_dir:
        return None
    # The rows of all cores' tensors are concatenated, so each has a dimension for them. Log lines
    # and metrics.jsonl get the float tensors that have one row on each core.
    tensors = {name: tf.reshape(value, [1]) for name, value in report.items()}
    # Reports number steps from 1, like log lines and checkpoints.
    tensors["global_step"] = tf.reshape(tf.cast(step, tf.int32) + 1, [1])
    if trust_ratios:
        tensors["trust_ratios"] = tf.stack(list(trust_ratios.values()))
    return _writer(summary_dir, list(trust_ratios)), tensors


def _writer(summary_dir, names):
    """Returns the host function that writes a report; `names` are the variables that have a trust
    ratio."""
    places = collections.defaultdict(list)
    for place, name in enumerate(names):
        places[_layer_of(name)].append(place)

    def host_call(global_step, trust_ratios=None, **report):
        step = tf.cast(global_step[0], tf.int64)
        with tpu.summary.create_file_writer(summary_dir).as_default():
            # Tags are the names of metrics, as in the events of evaluations: TensorBoard draws both
            # in one chart.
            operations = [
                tpu.summary.scalar(name, value[0], step=step)
                for name, value in sorted(report.items())
            ]
            if trust_ratios is not None:
                operations += [
                    tpu.summary.histogram("trust_ratio", trust_ratios, step=step),
                    *(
                        tpu.summary.histogram(
                            f"trust_ratio/{layer}", tf.gather(trust_ratios, of_layer), step=step
                        )
                        for layer, of_layer in places.items()
                    ),
                    tpu.summary.scalar("trust_ratio/min", tf.reduce_min(trust_ratios), step=step),
                    tpu.summary.scalar("trust_ratio/mean", tf.reduce_mean(trust_ratios), step=step),
                    tpu.summary.scalar("trust_ratio/max", tf.reduce_max(trust_ratios), step=step),
                ]
        return operations

    return host_call


def _layer_of(name):
    """Returns where in the network a variable is: a layer, the embeddings, the head."""
    layer = re.search(r"/(layer_\d+)/", name)
    if layer:
        return layer[1]
    return "embeddings" if "/embeddings/" in name else "head"
