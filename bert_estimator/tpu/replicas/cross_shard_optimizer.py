"""CrossShardOptimizer: sums gradients over the cores before an optimizer applies them."""

import tensorflow.compat.v1 as tf

from bert_estimator.tpu.replicas import replica


class CrossShardOptimizer(tf.train.Optimizer):
    """Wraps an optimizer so that all cores apply the sum of their gradients.

    It behaves like `tf.compat.v1.tpu.CrossShardOptimizer`, but it runs everywhere. On one core it
    does not change anything, so a `model_fn` does not need `if use_tpu:`.

    If `reduction` is MEAN, `compute_gradients` (and so `minimize`) divides the loss by the number
    of cores, or of those in a group. `apply_gradients` always sums. So code that calls
    `tf.gradients` itself, and then `apply_gradients`, applies the sum with either reduction.

    Args:
      opt: the `tf.train.Optimizer` that applies the gradients.
      reduction: `tf.losses.Reduction.MEAN` or `.SUM`.
      name: the optimizer's name.
      group_assignment: groups of replicas that sum with each other, as for `cross_replica_sum`; so
        each group trains its own weights. None is one group of all.

    Raises:
      ValueError: `reduction` is neither MEAN nor SUM. The methods raise it if group_assignment does
        not fit the replicas.
      TypeError: `opt` is not a `tf.train.Optimizer`.
    """

    def __init__(
        self,
        opt: tf.train.Optimizer,
        reduction: str = tf.losses.Reduction.MEAN,
        name: str = "CrossShardOptimizer",
        group_assignment: replica.Groups | None = None,
    ):
        if reduction not in (tf.losses.Reduction.MEAN, tf.losses.Reduction.SUM):
            raise ValueError(
                f"CrossShardOptimizer: reduction must be MEAN or SUM, not {reduction!r}"
            )
        if not isinstance(opt, tf.train.Optimizer):
            raise TypeError(f"CrossShardOptimizer wraps a tf.train.Optimizer, not {type(opt)}")
        super().__init__(False, name)
        self._opt = opt
        self._reduction = reduction
        self._group_assignment = group_assignment

    def compute_gradients(self, loss, var_list=None, **kwargs):
        size = len(replica.groups_of(self._group_assignment, "CrossShardOptimizer")[0])
        if self._reduction == tf.losses.Reduction.MEAN and size > 1:
            loss = loss / size
        return self._opt.compute_gradients(loss, var_list=var_list, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        # A sum over cores is dense. Since some optimizers treat rows without a gradient differently
        # in dense and sparse gradients, the gradient is made dense on one core too.
        summed = [
            (
                None
                if gradient is None
                else replica.cross_replica_sum(
                    tf.convert_to_tensor(gradient), self._group_assignment
                ),
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
