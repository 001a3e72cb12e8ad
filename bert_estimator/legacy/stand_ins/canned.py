"""What canned estimators and heads need of the modules beneath them, and `add_metrics`."""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.eager import monitoring

from bert_estimator import tpu

# The names of the loss among the metrics.
LOSS_METRIC_KEY = "loss"
AVERAGE_LOSS_METRIC_KEY = "average_loss"

# Counts, in TensorFlow's own monitoring, which canned estimators a process makes.
API_GAUGE = monitoring.StringGauge("/bert_estimator/canned", "the canned estimators in use", "kind")

_METRIC_FN_ARGS = ("features", "labels", "predictions", "config")


def estimator_export(*args: str, **kwargs: Any) -> Callable:
    """Returns a decorator without effect: canned estimators name their place in TensorFlow."""
    return lambda exported: exported


def call_logit_fn(
    logit_fn: Callable, features: Any, mode: str, params: Any, config: tpu.RunConfig
) -> tf.Tensor | dict[str, tf.Tensor]:
    """Calls a logit_fn with `features`, and with the other arguments if it takes them.

    Raises:
      ValueError: logit_fn does not return a tensor, or a dict of name -> tensor.
    """
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
    """Returns an estimator that has further metrics in its evaluations.

    Args:
      estimator: the estimator to extend; the new one shares its model_dir.
      metric_fn: function of `features`, `labels`, `predictions` and `config`, or some of them. It
        returns metrics as `EstimatorSpec.eval_metric_ops` has them; its names win.

    Raises:
      ValueError: metric_fn has other arguments.
    """
    unknown = sorted(set(inspect.signature(metric_fn).parameters) - set(_METRIC_FN_ARGS))
    if unknown:
        raise ValueError(
            f"metric_fn takes {unknown}, which are not expected; it may take {_METRIC_FN_ARGS}"
        )

    def model_fn(features, labels, mode, config):
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != tpu.ModeKeys.EVAL:
            return spec
        if isinstance(spec, tpu.TPUEstimatorSpec):
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
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in available.items() if name in parameters}
