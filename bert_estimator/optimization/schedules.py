"""The learning rate by step: linear warm-up, then polynomial decay."""

import dataclasses

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.optimization.checks import check_not_negative, check_positive


@dataclasses.dataclass(frozen=True)
class WarmupPolynomialDecay:
    """Warms the rate up linearly over W steps, then lets it decay polynomially until step T.

        schedule = WarmupPolynomialDecay(6e-3, num_train_steps=7037, num_warmup_steps=2000)
        learning_rate = schedule(tf.train.get_global_step())     # a tensor
        schedule(2000)                                           # 0.006, for a plot or a test

    With t the number of updates applied so far, p the power, and peak and end the two rates:

        t < W:   peak * t / W
        t >= W:  end + (peak - end) * ((T - t) / (T - W))^p,  and `end` from T on.

    The default is continuous: the rate reaches the peak at t = W (You et al., 2020, section 4;
    LAMB's BERT runs have W = 3125 for every batch size, and p = 1). The first update, t = 0, has
    the rate 0, as in google-research/bert.

    `legacy_schedule_jump=True` is google-research/bert's own schedule (`optimization.py`). Its
    decay runs from step 0, (T - t) / T, and the warm-up replaces the first W steps of the decay. So
    the rate jumps down at t = W, from nearly the peak to peak * (1 - W / T)^p.

    Attributes:
      learning_rate: the peak, > 0.
      num_train_steps: T, > 0.
      num_warmup_steps: W, 0 <= W < T; 0 starts at the peak.
      end_learning_rate: the rate from step T on, >= 0.
      learning_rate_decay_power: p, > 0; 1 is linear.
      legacy_schedule_jump: whether to use google-research/bert's schedule.

    Raises:
      ValueError: a value is out of range.
    """

    learning_rate: float
    num_train_steps: int
    num_warmup_steps: int = 0
    end_learning_rate: float = 0.0
    learning_rate_decay_power: float = 1.0
    legacy_schedule_jump: bool = False

    def __post_init__(self):
        check_positive("learning_rate", self.learning_rate)
        if self.num_train_steps < 1:
            raise ValueError(f"num_train_steps={self.num_train_steps}: must be at least 1.")
        if not 0 <= self.num_warmup_steps < self.num_train_steps:
            raise ValueError(
                f"num_warmup_steps={self.num_warmup_steps}: must be at least 0 and below "
                f"num_train_steps={self.num_train_steps}; warm up for fewer steps, or train for "
                "more steps."
            )
        check_not_negative("end_learning_rate", self.end_learning_rate)
        power = self.learning_rate_decay_power
        check_positive("learning_rate_decay_power", power, "; 1 is linear")

    def __call__(
        self, step: tf.Tensor | tf.Variable | int | np.ndarray
    ) -> tf.Tensor | np.float64 | np.ndarray:
        """Returns the learning rate of the update that follows `step` updates.

        Args:
          step: an integer tensor or variable of any shape; or an int, or a numpy array.

        Returns:
          A float32 tensor of step's shape if `step` is a tensor or a variable; else float64, a
          numpy scalar or array of step's shape.
        """
        if tf.is_tensor(step):
            lib, step, to_float = tf, tf.convert_to_tensor(step), lambda x: tf.cast(x, tf.float32)
        else:
            lib, step, to_float = np, np.asarray(step), np.float64
        total, warmup = self.num_train_steps, self.num_warmup_steps
        decay_steps = total if self.legacy_schedule_jump else total - warmup
        # Steps are subtracted as integers: 1 - t / T would lose all but a few bits near T.
        remaining = to_float(lib.maximum(total - step, 0)) / decay_steps
        amplitude = self.learning_rate - self.end_learning_rate
        decayed = self.end_learning_rate + amplitude * remaining**self.learning_rate_decay_power
        # `where` computes both branches, and this one would divide by 0.
        if warmup == 0:
            return decayed
        warming = self.learning_rate * to_float(step) / warmup
        return lib.where(step < warmup, warming, decayed)
