"""CrossShardOptimizer: sums gradients over the cores before an optimizer applies them."""

import tensorflow.compat.v1 as tf

from bert_estimator.tpu import replica


class CrossShardOptimizer(tf.train.Optimizer):
    """Wraps an optimizer so that all cores apply the sum of their gradients.

    It behaves like `tf.compat.v1.tpu.CrossShardOptimizer`, but it runs everywhere. On one core it
    does not change anything, so a `model_fn` does not need `if use_tpu:`.

    If `reduction` is MEAN, `compute_gradients` (and so `minimize`) divides the loss by the number
    of cores. `apply_gradients` always sums. So code that calls `tf.gradients` itself, and then
    `apply_gradients`, applies the sum with either reduction.

    Args:
      opt: the `tf.train.Optimizer` that applies the gradients.
      reduction: `tf.losses.Reduction.MEAN` or `.SUM`.
      name: the optimizer's name.
      group_assignment: must be None.

    Raises:
      ValueError: `reduction` is neither MEAN nor SUM, or group_assignment is given.
      TypeError: `opt` is not a `tf.train.Optimizer`.
    """

    def __init__(
        self,
        opt: tf.train.Optimizer,
        reduction: str = tf.losses.Reduction.MEAN,
        name: str = "CrossShardOptimizer",
        group_assignment: None = None,
    ):
        if reduction not in (tf.losses.Reduction.MEAN, tf.losses.Reduction.SUM):
            raise ValueError(
                f"CrossShardOptimizer: reduction must be MEAN or SUM, not {reduction!r}"
            )
        if not isinstance(opt, tf.train.Optimizer):
            raise TypeError(f"CrossShardOptimizer wraps a tf.train.Optimizer, not {type(opt)}")
        if group_assignment is not None:
            raise ValueError(
                "CrossShardOptimizer: group_assignment is not supported; leave it out to sum over "
                "all cores"
            )
        super().__init__(False, name)
        self._opt = opt
        self._reduction = reduction

    def compute_gradients(self, loss, var_list=None, **kwargs):
        if self._reduction == tf.losses.Reduction.MEAN and replica.num_replicas() > 1:
            loss = loss / replica.num_replicas()
        return self._opt.compute_gradients(loss, var_list=var_list, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        # A sum over cores is dense. Since some optimizers treat rows without a gradient differently
        # in dense and sparse gradients, the gradient is made dense on one core too.
        summed = [
            (
                None
                if gradient is None
                else replica.cross_replica_sum(tf.convert_to_tensor(gradient)),
                variable,
            )
            for gradient, variable in grads_and_vars
        ]
        return self._opt.apply_gradients(summed, global_step=global_step, name=name)

    def get_slot(self, *args, **kwargs):
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args, **kwargs):
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self):
        return self._opt.variables()
