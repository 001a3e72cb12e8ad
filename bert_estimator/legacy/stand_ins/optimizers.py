"""Optimizers of tf.contrib.opt and tf.contrib.mixed_precision that training scripts use: LARS,
decoupled decay, lazy Adam, moving averages and a scaled loss."""

import abc
import contextlib
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator import tpu


class LARSOptimizer(tf.train.MomentumOptimizer):
    """Scales the rate of each layer by the norms of weights and gradients; then momentum (You,
    Gitman and Ginsburg, "Large batch training of convolutional networks", 2017)."""

    def __init__(
        self,
        learning_rate: Any,
        momentum: float = 0.9,
        weight_decay: float = 0.0001,
        eeta: float = 0.001,
        epsilon: float = 0.0,
        name: str = "LARSOptimizer",
        skip_list: Any = None,
        use_nesterov: bool = False,
    ):
        if momentum < 0.0:
            raise ValueError(f"momentum should be positive: {momentum}")
        super().__init__(learning_rate, momentum, name=name, use_nesterov=use_nesterov)
        self._weight_decay, self._eeta, self._epsilon = weight_decay, eeta, epsilon
        self._skip_list = skip_list or ()

    def _apply_dense(self, grad, var):
        scaled = self._scaled(grad, var)
        with self._rate_in_gradients():
            return super()._apply_dense(scaled, var)

    def _resource_apply_dense(self, grad, var):
        scaled = self._scaled(grad, var)
        with self._rate_in_gradients():
            return super()._resource_apply_dense(scaled, var)

    def _scaled(self, gradient, variable):
        """Returns the gradient with decay, times the variable's rate, as momentum sums it."""
        rate = tf.cast(self._learning_rate_tensor, gradient.dtype)
        # These variables get neither decay nor trust ratio.
        if any(text in variable.name for text in self._skip_list):
            return rate * gradient
        weights, gradients = tf.norm(variable), tf.norm(gradient)
        ratio = self._eeta * weights / (gradients + self._weight_decay * weights + self._epsilon)
        ratio = tf.where((weights > 0) & (gradients > 0), ratio, tf.ones_like(ratio))
        return rate * ratio * (gradient + self._weight_decay * variable)

    @contextlib.contextmanager
    def _rate_in_gradients(self):
        # The gradients have the rate already, so the momentum remembers the rates of earlier steps.
        rate = self._learning_rate_tensor
        self._learning_rate_tensor = tf.ones([])
        try:
            yield
        finally:
            self._learning_rate_tensor = rate


class DecoupledWeightDecayExtension:
    """Takes `weight_decay` of each variable from it before the update of the optimizer that is the
    next base (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019)."""

    _given = None  # the decay_var_list of a call of minimize

    def __init__(self, weight_decay: Any, *args: Any, **kwargs: Any):
        self._decayed_variables = None  # the names of the variables; None means all
        self._weight_decay = weight_decay
        super().__init__(*args, **kwargs)

    def minimize(self, loss, *args, decay_var_list=None, **kwargs):
        # TensorFlow 1's `minimize` ignored the list.
        self._given = decay_var_list
        try:
            return super().minimize(loss, *args, **kwargs)
        finally:
            self._given = None

    def apply_gradients(self, grads_and_vars, global_step=None, name=None, decay_var_list=None):
        given = decay_var_list or self._given
        self._decayed_variables = _names(given) if given else None  # an empty list means all
        return super().apply_gradients(grads_and_vars, global_step, name)

    def _prepare(self):
        decay = self._weight_decay
        self._weight_decay_tensor = tf.convert_to_tensor(decay() if callable(decay) else decay)
        super()._prepare()

    def _apply_dense(self, grad, var):
        with self._after_decay(grad, var):
            return super()._apply_dense(grad, var)

    def _resource_apply_dense(self, grad, var):
        with self._after_decay(grad, var):
            return super()._resource_apply_dense(grad, var)

    def _apply_sparse(self, grad, var):
        with self._after_decay(grad.values, var, grad.indices):
            return super()._apply_sparse(grad, var)

    def _resource_apply_sparse(self, grad, var, indices):
        with self._after_decay(grad, var, indices):
            return super()._resource_apply_sparse(grad, var, indices)

    def _after_decay(self, gradient, variable, rows=None):
        if self._decayed_variables is not None and variable.name not in self._decayed_variables:
            return tf.control_dependencies([])
        # The decay is not multiplied by the learning rate.
        decay = tf.cast(self._weight_decay_tensor, variable.dtype.base_dtype)
        # The gradient is of the variable before its decay.
        with tf.control_dependencies([gradient]):
            if rows is None:
                decayed = variable.assign_sub(decay * variable)
            else:
                # With a sparse gradient, only the rows that it has decay.
                decayed = tf.scatter_sub(variable, rows, decay * tf.gather(variable, rows))
        return tf.control_dependencies([decayed])


def _names(variables):
    return {variable.name for variable in variables}


def extend_with_decoupled_weight_decay(base_optimizer: type) -> type:
    """Returns a class of optimizers that decay weights; its first argument is the decay."""

    class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecayExtension, base_optimizer):
        """Decays weights before the update of its base."""

    return OptimizerWithDecoupledWeightDecay


class MomentumWOptimizer(DecoupledWeightDecayExtension, tf.train.MomentumOptimizer):
    """Updates by momentum, after the decay of `DecoupledWeightDecayExtension`."""

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any,
        momentum: Any,
        use_locking: bool = False,
        name: str = "MomentumW",
        use_nesterov: bool = False,
    ):
        arguments = learning_rate, momentum, use_locking, name, use_nesterov
        super().__init__(weight_decay, *arguments)


class AdamWOptimizer(DecoupledWeightDecayExtension, tf.train.AdamOptimizer):
    """Updates as Adam, after the decay of `DecoupledWeightDecayExtension`."""

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ):
        arguments = learning_rate, beta1, beta2, epsilon, use_locking, name
        super().__init__(weight_decay, *arguments)


class LazyAdamOptimizer(tf.train.AdamOptimizer):
    """Adam that, for a sparse gradient, updates only the rows that it has, moments included."""

    def _apply_sparse(self, grad, var):
        return self._update_rows(grad.values, var, grad.indices)

    def _resource_apply_sparse(self, grad, var, indices):
        return self._update_rows(grad, var, indices)

    def _update_rows(self, gradient, variable, rows):
        dtype = variable.dtype.base_dtype
        powers = [tf.cast(power, dtype) for power in self._get_beta_accumulators()]
        rate, beta1, beta2, epsilon = (
            tf.cast(tensor, dtype)
            for tensor in (self._lr_t, self._beta1_t, self._beta2_t, self._epsilon_t)
        )
        rate *= tf.sqrt(1 - powers[1]) / (1 - powers[0])
        m, v = self.get_slot(variable, "m"), self.get_slot(variable, "v")
        new_m = beta1 * tf.gather(m, rows) + (1 - beta1) * gradient
        new_v = beta2 * tf.gather(v, rows) + (1 - beta2) * tf.square(gradient)
        return tf.group(
            tf.scatter_sub(variable, rows, rate * new_m / (tf.sqrt(new_v) + epsilon)),
            tf.scatter_update(m, rows, new_m),
            tf.scatter_update(v, rows, new_v),
        )


class WrappingOptimizer(tf.train.Optimizer):
    """Has another optimizer do its work; subclasses change what it gets."""

    def __init__(self, optimizer: tf.train.Optimizer, name: str):
        super().__init__(use_locking=False, name=name + optimizer.get_name())
        self._optimizer = optimizer

    def compute_gradients(self, *args, **kwargs):
        return self._optimizer.compute_gradients(*args, **kwargs)

    def get_slot(self, var, name):
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self):
        return self._optimizer.get_slot_names()

    def variables(self):
        return self._optimizer.variables()


class MovingAverageOptimizer(WrappingOptimizer):
    """Has another optimizer update the variables, and keeps moving averages of them."""

    def __init__(
        self,
        opt: tf.train.Optimizer,
        average_decay: Any = 0.9999,
        num_updates: Any = None,
        sequential_update: bool = True,
    ):
        super().__init__(opt, "MovingAverage")
        self._averages = tf.train.ExponentialMovingAverage(average_decay, num_updates)
        self._in_sequence = sequential_update
        self._swapped = {}  # a variable's name -> the other of the pair: variable and average

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        grads_and_vars = list(grads_and_vars)
        update = self._optimizer.apply_gradients(grads_and_vars, global_step, name)
        variables = [variable for gradient, variable in grads_and_vars if gradient is not None]
        # Out of sequence, the averages may be of the values before the update.
        with tf.control_dependencies([update] if self._in_sequence else []):
            average = self._averages.apply(variables)
        for variable in variables:
            other = self._averages.average(variable)
            self._swapped.update({variable.op.name: other, other.op.name: variable})
        return tf.group(update, average, name="train_with_avg")

    def swapping_saver(
        self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any
    ) -> tf.train.Saver:
        """Returns a Saver that saves averages by the names of their variables, and vice versa; a
        `var_list` of None means all global variables."""
        if not self._swapped:
            raise RuntimeError(
                "Must call apply_gradients or minimize before creating the swapping_saver"
            )
        variables = tf.global_variables() if var_list is None else var_list
        if not isinstance(variables, dict):
            variables = {variable.op.name: variable for variable in variables}
        names = {variable.op.name: key for key, variable in variables.items()}
        swapped = {}
        for key, variable in variables.items():
            other = self._swapped.get(variable.op.name, variable)
            if other.op.name not in names:
                raise ValueError(
                    f"Variable to swap {other.op.name} is not in var_list, but {key} is"
                )
            swapped[key] = other
        return tf.train.Saver(swapped, name=name, **kwargs)


class LossScaleManager(abc.ABC):
    """Says by what a `LossScaleOptimizer` multiplies the loss."""

    @abc.abstractmethod
    def get_loss_scale(self) -> Any:
        """Returns the factor, a float32 scalar."""

    @abc.abstractmethod
    def update_loss_scale(self, finite_grads: tf.Tensor) -> tf.Operation:
        """Returns the operation that sets the next factor; `finite_grads` is a scalar bool."""


class FixedLossScaleManager(LossScaleManager):
    """Gives the same factor, at least 1, at every step."""

    def __init__(self, loss_scale: float):
        if loss_scale < 1:
            raise ValueError("loss scale must be at least 1.")
        self._loss_scale = tf.convert_to_tensor(loss_scale, tf.float32)

    def get_loss_scale(self) -> tf.Tensor:
        return self._loss_scale

    def update_loss_scale(self, finite_grads: tf.Tensor) -> tf.Operation:
        return tf.no_op()


class ExponentialUpdateLossScaleManager(LossScaleManager):
    """Raises the factor after `incr_every_n_steps` steps in a row with finite gradients, and lowers
    it after `decr_every_n_nan_or_inf` other steps, in a row or not."""

    def __init__(
        self,
        init_loss_scale: float,
        incr_every_n_steps: int,
        decr_every_n_nan_or_inf: int = 2,
        incr_ratio: float = 2,
        decr_ratio: float = 0.8,
    ):
        self._steps_to_raise, self._steps_to_lower = incr_every_n_steps, decr_every_n_nan_or_inf
        self._incr_ratio, self._decr_ratio = incr_ratio, decr_ratio
        start = tf.convert_to_tensor(init_loss_scale, tf.float32)
        self._loss_scale = tf.Variable(start, name="loss_scale", trainable=False)
        self._good_steps = tf.Variable(0, name="good_steps", trainable=False)
        self._bad_steps = tf.Variable(0, name="bad_steps", trainable=False)

    def get_loss_scale(self) -> tf.Variable:
        return self._loss_scale

    def update_loss_scale(self, finite_grads: tf.Tensor) -> tf.Operation:
        # All are read before the first of them is assigned.
        scale, good, bad = (
            tf.identity(variable)
            for variable in (self._loss_scale, self._good_steps, self._bad_steps)
        )
        failed = tf.logical_not(finite_grads)
        is_raised = finite_grads & (good + 1 >= self._steps_to_raise)
        is_lowered = failed & (bad + 1 >= self._steps_to_lower)
        larger = scale * self._incr_ratio
        # The factor stays finite, and at least 1.
        larger = tf.where(tf.is_finite(larger), larger, scale)
        smaller = tf.maximum(1.0, scale * self._decr_ratio)
        counted = 1 - tf.cast(is_raised | is_lowered, tf.int32)
        after = {
            self._loss_scale: tf.where(is_raised, larger, tf.where(is_lowered, smaller, scale)),
            self._good_steps: counted * tf.where(finite_grads, good + 1, 0),
            self._bad_steps: counted * tf.where(failed, bad + 1, bad),
        }
        with tf.control_dependencies(list(after.values())):
            return tf.group(*(variable.assign(value) for variable, value in after.items()))


class LossScaleOptimizer(WrappingOptimizer):
    """Scales the loss for float16, and leaves a step out whose gradients are not finite."""

    def __init__(self, opt: tf.train.Optimizer, loss_scale_manager: LossScaleManager):
        super().__init__(opt, "LossScale")
        self._loss_scale_manager = loss_scale_manager

    def compute_gradients(self, loss, *args, **kwargs):
        scale = self._loss_scale_manager.get_loss_scale()
        loss = loss() if callable(loss) else loss
        loss *= tf.cast(scale, loss.dtype.base_dtype)
        inverse = tf.reciprocal(scale)
        return [
            # Sparse gradients become dense, as in TensorFlow 1.
            (None if gradient is None else gradient * tf.cast(inverse, gradient.dtype), variable)
            for gradient, variable in self._optimizer.compute_gradients(loss, *args, **kwargs)
        ]

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        grads_and_vars = list(grads_and_vars)
        finite = [tf.reduce_all(tf.is_finite(g)) for g, _ in grads_and_vars if g is not None]
        failed = 1 - tf.cast(tf.reduce_all(tf.stack(finite)), tf.int32)
        # If one core leaves a step out, all cores do.
        are_finite = tf.equal(tpu.cross_replica_sum(failed), 0)
        update = tf.cond(
            are_finite,
            lambda: self._optimizer.apply_gradients(grads_and_vars, global_step, name),
            tf.no_op,
        )
        return tf.group(update, self._loss_scale_manager.update_loss_scale(are_finite))
