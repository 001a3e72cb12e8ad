"""The update of a `model_fn`: loss and gradients of the global batch, clipped, applied, reported.

What pretraining and fine-tuning share of a training step. The caller says what a micro-batch's
share of the loss is; sums over micro-batches and cores, the schedule, the optimizer and the host
call that reports a step are here.
"""

import dataclasses

import tensorflow.compat.v1 as tf

from bert_estimator import optimization, tpu

_CLIP_NORM = 1.0


@dataclasses.dataclass(frozen=True)
class UpdateRule:
    """How weights are updated.

    Attributes:
      optimizer: a key of `optimization.OPTIMIZERS`.
      learning_rate: the peak, reached after `num_warmup_steps`; 0 at `num_train_steps`.
      micro_batch_size: rows of a core's batch computed at a time; None: all of them.
      decay_power: of the learning rate; 1 is linear.
      legacy_schedule_jump: google-research/bert's schedule, which jumps at the end of warm-up.
      optimizer_options: further arguments of the optimizer.
      rate_scale: function of a variable's name that gives the factor of its learning rate; None:
        one rate for all.
      summary_dir: where the host call writes its events; None: no host call.
    """

    optimizer: str
    learning_rate: float
    num_train_steps: int
    num_warmup_steps: int
    micro_batch_size: int | None = None
    decay_power: float = 1.0
    legacy_schedule_jump: bool = False
    optimizer_options: dict = dataclasses.field(default_factory=dict)
    rate_scale: object = None
    summary_dir: str | None = None

    def __post_init__(self):
        self._schedule()

    def train_spec(self, make_loss_fn, features, scaffold_fn=None):
        """Builds the training step.

        Args:
          make_loss_fn: function of the step (the number of updates applied so far, a scalar
            tensor) that returns the `loss_fn` of `optimization.accumulate`. Its loss is divided by
            what the global batch is divided by; its outputs are scalars, which are summed over
            micro-batches and cores and reported by their names.
          features: dict of [B, ...] tensors, those of one core's batch.
          scaffold_fn: for the spec.

        Returns:
          A `TPUEstimatorSpec`; its loss is that of the global batch.
        """
        global_step = tf.train.get_or_create_global_step()
        # Read once, before the update: the step's own number, for dropout, rate and report.
        step = tf.identity(global_step)
        loss, sums, gradients_and_variables = optimization.accumulate(
            make_loss_fn(step), features, self.micro_batch_size
        )
        loss = tpu.cross_replica_sum(loss)
        sums = {name: tpu.cross_replica_sum(value) for name, value in sums.items()}
        used = [(g, v) for g, v in gradients_and_variables if g is not None]
        gradients = [tpu.cross_replica_sum(gradient) for gradient, _ in used]
        variables = [variable for _, variable in used]
        gradients, gradient_norm = optimization.clip_by_global_norm(gradients, _CLIP_NORM)
        rate = self._schedule()(step)
        optimizer = optimization.create_optimizer(
            self.optimizer, self._rate_by_name(rate), **self.optimizer_options
        )
        # What is reported is of the weights before the update, also where no gradient needs them.
        with tf.control_dependencies([step, loss, *sums.values()]):
            train_op = optimizer.apply_gradients(
                zip(gradients, variables, strict=True), global_step=global_step
            )
        report = {"loss": loss, **sums, "learning_rate": rate, "gradient_norm": gradient_norm}
        host_tensors = {name: tf.reshape(value, [1]) for name, value in report.items()}
        # Steps are numbered from 1 where they are reported, as in log lines and checkpoints.
        host_tensors["global_step"] = tf.reshape(tf.cast(step, tf.int32) + 1, [1])
        if optimizer.trust_ratios:
            host_tensors["trust_ratios"] = tf.stack(list(optimizer.trust_ratios.values()))
        return tpu.TPUEstimatorSpec(
            tpu.ModeKeys.TRAIN,
            loss=loss,
            train_op=train_op,
            host_call=(_host_call(self.summary_dir), host_tensors) if self.summary_dir else None,
            scaffold_fn=scaffold_fn,
        )

    def _schedule(self):
        return optimization.WarmupPolynomialDecay(
            self.learning_rate,
            self.num_train_steps,
            self.num_warmup_steps,
            power=self.decay_power,
            legacy_jump=self.legacy_schedule_jump,
        )

    def _rate_by_name(self, rate):
        if self.rate_scale is None:
            return rate
        return lambda name: rate * self.rate_scale(name)


def global_sum(values):
    """The sum of a tensor's elements over the global batch, and at least 1.

    It divides losses: a batch without a word or example that counts has a loss of 0, not NaN.
    """
    return tf.maximum(tpu.cross_replica_sum(tf.reduce_sum(values)), 1.0)


def global_mean(values, weights):
    """The weighted mean of a float32 tensor over the global batch, a scalar; 0 without weight."""
    total, weight = (
        tpu.cross_replica_sum(tf.reduce_sum(each)) for each in (values * weights, weights)
    )
    return tf.math.divide_no_nan(total, weight)


def example_weights(features):
    """float32 [B]: 0 for the examples that only fill up a batch (`is_real_example`), else 1."""
    if "is_real_example" in features:
        return tf.cast(tf.reshape(features["is_real_example"], [-1]), tf.float32)
    return tf.ones_like(features["input_ids"][:, 0], tf.float32)


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
