"""CrossShardOptimizer: sums gradients over the cores before an optimizer applies them."""

import tensorflow.compat.v1 as tf

from bert_estimator.tpu import replica


class CrossShardOptimizer(tf.train.Optimizer):
    """Wraps an optimizer so that all cores apply the sum of their gradients.

    As `tf.compat.v1.tpu.CrossShardOptimizer`, but it runs everywhere: on one core it changes
    nothing, so that a `model_fn` needs no `if use_tpu:`.

    `compute_gradients` (and so `minimize`) divides the loss by the number of cores when
    `reduction` is MEAN; `apply_gradients` sums. Code that calls `tf.gradients` itself and then
    `apply_gradients` therefore gets the sum.

    Args:
      opt: the `tf.train.Optimizer` that applies the gradients.
      reduction: `tf.losses.Reduction.MEAN` or `.SUM`.

    Raises:
      ValueError: another reduction.
      TypeError: `opt` is no optimizer.
    """

    def __init__(
        self,
        opt,
        reduction=tf.losses.Reduction.MEAN,
        name="CrossShardOptimizer",
        group_assignment=None,
    ):
        if reduction not in (tf.losses.Reduction.MEAN, tf.losses.Reduction.SUM):
            raise ValueError(
                f"CrossShardOptimizer: reduction must be MEAN or SUM, not {reduction!r}"
            )
        if not isinstance(opt, tf.train.Optimizer):
            raise TypeError(f"CrossShardOptimizer wraps a tf.train.Optimizer, not {type(opt)}")
        if group_assignment is not None:
            raise ValueError("CrossShardOptimizer: group_assignment is not supported")
        super().__init__(False, name)
        self._opt = opt
        self._reduction = reduction

    def compute_gradients(self, loss, var_list=None, **kwargs):
        if self._reduction == tf.losses.Reduction.MEAN and replica.num_replicas() > 1:
            loss = loss / replica.num_replicas()
        return self._opt.compute_gradients(loss, var_list=var_list, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        # A sum over cores is dense. Some optimizers treat rows without a gradient differently then:
        # so it is on one core too.
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
