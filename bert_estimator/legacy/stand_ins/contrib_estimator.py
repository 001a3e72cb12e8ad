"""Estimators and heads of TensorFlow 1 that today's TensorFlow has not.

This module has what canned estimators and heads need of the modules beneath them, and
tf.contrib.estimator, whose heads are the tensorflow-estimator package's. They also take an
optimizer of `tf.train`, which canned estimators of TensorFlow 1 give them.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.eager import monitoring

from bert_estimator import tpu
from bert_estimator.legacy import wheel
from bert_estimator.legacy.stand_ins.optimizers import WrappingOptimizer
from bert_estimator.tpu import checkpoints
from bert_estimator.tpu.base_config import RunConfig
from bert_estimator.tpu.call import argument_names

# The names of the loss among the metrics.
LOSS_METRIC_KEY = "loss"
AVERAGE_LOSS_METRIC_KEY = "average_loss"

# Counts, in TensorFlow's own monitoring, which canned estimators a process makes.
API_GAUGE = monitoring.StringGauge("/bert_estimator/canned", "the canned estimators in use", "kind")

_METRIC_FN_ARGS = ("features", "labels", "predictions", "config")


def call_logit_fn(
    logit_fn: Callable, features: Any, mode: str, params: Any, config: tpu.RunConfig
) -> tf.Tensor | dict[str, tf.Tensor]:
    """Calls a logit_fn with `features`, and with the other arguments if it takes them."""
    available = {"mode": mode, "params": params, "config": config}
    logits = logit_fn(features=features, **_taken(logit_fn, available))
    tensors = logits.values() if isinstance(logits, dict) else [logits]
    if not all(isinstance(tensor, tf.Tensor) for tensor in tensors):
        raise ValueError(
            "logit_fn should return a Tensor or a dictionary mapping strings to Tensors, not "
            f"{logits!r}"
        )
    return logits


def add_metrics(estimator: tpu.Estimator, metric_fn: Callable) -> tpu.Estimator:
    """Returns an estimator of the same model_dir that evaluates `metric_fn`'s metrics, too."""
    unknown = sorted(set(argument_names(metric_fn)) - set(_METRIC_FN_ARGS))
    if unknown:
        raise ValueError(
            f"metric_fn takes {unknown}, which are not expected; it may take {_METRIC_FN_ARGS}"
        )

    def model_fn(features, labels, mode, config):
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != tpu.ModeKeys.EVAL:
            return spec
        if isinstance(spec, tpu.TPUEstimatorSpec):
            # Its metrics are a function and tensors, which now become operations.
            spec = spec.as_estimator_spec()
        available = dict(
            features=features, labels=labels, predictions=spec.predictions, config=config
        )
        metrics = metric_fn(**_taken(metric_fn, available))
        return spec._replace(eval_metric_ops={**(spec.eval_metric_ops or {}), **metrics})

    return tpu.Estimator(
        model_fn,
        estimator.model_dir,
        config=estimator.config,
        warm_start_from=estimator._warm_start,
    )


def _taken(function, available):
    """Returns the arguments of a dict that a function takes."""
    return {name: available[name] for name in argument_names(function) if name in available}


class ModeKeys(tpu.ModeKeys):
    """Names the modes as `tf.contrib.learn` did."""

    INFER = tpu.ModeKeys.PREDICT


class LearnRunConfig(RunConfig):
    """Says how a program runs, by the arguments that `tf.contrib.learn.RunConfig` has."""

    def __init__(
        self,
        master: str | None = None,
        num_cores: int = 0,
        log_device_placement: bool = False,
        gpu_memory_fraction: float = 1,
        tf_random_seed: int | None = None,
        *,
        evaluation_master: str = "",
        save_checkpoints_steps: int | None = None,
        **kwargs: Any,
    ):
        if save_checkpoints_steps is not None:  # None means the default here, every 600 s
            kwargs["save_checkpoints_steps"] = save_checkpoints_steps
        super().__init__(tf_random_seed=tf_random_seed, **kwargs)
        # Estimators of `tf.estimator` do not read this.
        self.tf_config = tf.ConfigProto(
            log_device_placement=log_device_placement,
            inter_op_parallelism_threads=num_cores,
            intra_op_parallelism_threads=num_cores,
            gpu_options=tf.GPUOptions(per_process_gpu_memory_fraction=gpu_memory_fraction),
        )
        # Without it, the master is TF_CONFIG's.
        if master is not None:
            self._master = master
        self._evaluation_master = evaluation_master or ""


def replace_monitors_with_hooks(monitors_or_hooks: Any, estimator: tpu.Estimator) -> list:
    """Returns a list of hooks as it is, and refuses monitors, which are older than hooks."""
    hooks = list(monitors_or_hooks or ())
    monitors = [hook for hook in hooks if not isinstance(hook, tf.train.SessionRunHook)]
    if monitors:
        raise ValueError(f"monitors are not supported, only tf.train.SessionRunHooks: {monitors}")
    return hooks


class AsyncCheckpointSaverHook(tf.train.CheckpointSaverHook):
    """Saves as `tf.train.CheckpointSaverHook` does; in TensorFlow 1 it saved beside training."""


def load_global_step_from_checkpoint_dir(checkpoint_dir: str) -> int:
    """Returns the global step that training would resume from; 0 if there are no checkpoints."""
    return checkpoints.global_step_of(checkpoints.newest_whole(checkpoint_dir))


_SUM_OVER_BATCH_SIZE = tf.losses.Reduction.SUM_OVER_BATCH_SIZE
# The names of TensorFlow 2, which the package's heads take.
_REDUCTIONS = {_SUM_OVER_BATCH_SIZE: "sum_over_batch_size", tf.losses.Reduction.SUM: "sum"}


@functools.cache
def _head(module, name):
    """Returns a class of the package that also takes optimizers of `tf.train`."""
    kind = wheel.member(f"head.{module}", name)

    # From what a TPUEstimator gets, other heads than this one make what an Estimator gets.
    method = "create_estimator_spec" if name == "MultiHead" else "_create_tpu_estimator_spec"

    def create(
        self,
        features,
        mode,
        logits,
        labels=None,
        optimizer=None,
        trainable_variables=None,
        train_op_fn=None,
        update_ops=None,
        **further,
    ):
        further |= _either(optimizer, train_op_fn)
        further["trainable_variables"] = trainable_variables
        # The package's heads run only the updates that they are given; TensorFlow 1's ran the
        # collection.
        further["update_ops"] = update_ops or tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        return getattr(kind, method)(self, features, mode, logits, labels, **further)

    return type(name, (kind,), {method: create})


def _either(optimizer, train_op_fn):
    """Returns the arguments of a head for an optimizer, which may be of `tf.train`."""
    if not isinstance(optimizer, tf.train.Optimizer):
        return {"optimizer": optimizer, "train_op_fn": train_op_fn}
    step = tf.train.get_or_create_global_step()
    return {"train_op_fn": lambda loss: optimizer.minimize(loss, global_step=step)}


def _head_function(module, name):
    """Returns the function that makes a head of a class: it takes the class's arguments, but
    TensorFlow 1's names of reductions."""

    def head(*args, **kwargs):
        given = inspect.signature(wheel.member(f"head.{module}", name)).bind(*args, **kwargs)
        reduction = given.arguments.pop("loss_reduction", _SUM_OVER_BATCH_SIZE)
        if reduction not in _REDUCTIONS:
            raise ValueError(
                f"loss_reduction={reduction!r} is not supported; it must be "
                "tf.losses.Reduction.SUM or SUM_OVER_BATCH_SIZE"
            )
        return _head(module, name)(**given.arguments, loss_reduction=_REDUCTIONS[reduction])

    return head


multi_class_head = _head_function("multi_class_head", "MultiClassHead")
binary_classification_head = _head_function("binary_class_head", "BinaryClassHead")
multi_label_head = _head_function("multi_label_head", "MultiLabelHead")
logistic_regression_head = _head_function("regression_head", "LogisticRegressionHead")
_regression_head = _head_function("regression_head", "RegressionHead")
_poisson_regression_head = _head_function("regression_head", "PoissonRegressionHead")


def regression_head(
    weight_column: Any = None, label_dimension: int = 1, *args: Any, **kwargs: Any
) -> Any:
    """Returns a head for numbers, whose class takes these two arguments in the other order."""
    return _regression_head(label_dimension, weight_column, *args, **kwargs)


def poisson_regression_head(
    weight_column: Any = None, label_dimension: int = 1, *args: Any, **kwargs: Any
) -> Any:
    """Returns a head for counts, whose logits are logarithms of their means."""
    return _poisson_regression_head(label_dimension, weight_column, *args, **kwargs)


def multi_head(heads: Any, head_weights: Any = None) -> Any:
    """Returns a head that sums the losses of several heads, each of which has a name."""
    return _head("multi_head", "MultiHead")(heads, head_weights)


class _ClippingOptimizer(WrappingOptimizer):
    def __init__(self, optimizer, clip_norm):
        super().__init__(optimizer, "ClipByNorm")
        self._clip_norm = clip_norm

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        gradients, variables = zip(*grads_and_vars, strict=True)
        clipped, _ = tf.clip_by_global_norm(gradients, self._clip_norm)
        return self._optimizer.apply_gradients(
            list(zip(clipped, variables, strict=True)), global_step, name
        )


def clip_gradients_by_norm(optimizer: tf.train.Optimizer, clip_norm: Any) -> tf.train.Optimizer:
    """Returns an optimizer that clips gradients by their global norm; slots keep their names."""
    return _ClippingOptimizer(optimizer, clip_norm)
