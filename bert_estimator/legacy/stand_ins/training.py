"""What programs take from behind `tf.estimator.train_and_evaluate` to train in their own way.

EasyRec runs TensorFlow's private `_TrainingExecutor` with a listener that ends the evaluator.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator import tpu


class TaskType:
    """Names the types of tasks in TF_CONFIG."""

    CHIEF = "chief"
    EVALUATOR = "evaluator"
    MASTER = "master"
    PS = "ps"
    WORKER = "worker"


class EvalStatus:
    """Names the statuses of an `EvalResult`."""

    EVALUATED = "evaluated"
    MISSING_CHECKPOINT = "missing checkpoint"
    NO_NEW_CHECKPOINT = "no new checkpoint"


class TrainingExecutor:
    """Trains and evaluates as `tpu.train_and_evaluate` does, when `run` is called.

    Args:
      estimator: an `Estimator`.
      train_spec: a `TrainSpec`; eval_spec: an `EvalSpec`.
      train_hooks: further hooks of the training.
      continuous_eval_listener: a `ContinuousEvalListener`, which may end training, or the
        evaluator.

    Raises:
      TypeError: an argument has another type.
    """

    def __init__(
        self,
        estimator: tpu.Estimator,
        train_spec: tpu.TrainSpec,
        eval_spec: tpu.EvalSpec,
        train_hooks: Sequence[tf.train.SessionRunHook] | None = None,
        continuous_eval_listener: tpu.ContinuousEvalListener | None = None,
    ):
        _check(estimator, tpu.Estimator, "estimator")
        _check(train_spec, tpu.TrainSpec, "train_spec")
        check_eval_spec(eval_spec)
        listener = continuous_eval_listener or tpu.ContinuousEvalListener()
        _check(listener, tpu.ContinuousEvalListener, "continuous_eval_listener")
        hooks = (*train_spec.hooks, *(train_hooks or ()))
        self._estimator = estimator
        self._arguments = (train_spec._replace(hooks=hooks), eval_spec, listener)

    @property
    def estimator(self) -> tpu.Estimator:
        """The `Estimator` that is trained and evaluated."""
        return self._estimator

    def run(self) -> tuple[dict[str, Any] | None, list | None]:
        """Does this process's task, and returns what `tpu.train_and_evaluate` does."""
        return tpu.train_with_listener(self._estimator, *self._arguments)


def check_eval_spec(eval_spec: Any) -> None:
    """Raises a TypeError unless `eval_spec` is an `EvalSpec`."""
    _check(eval_spec, tpu.EvalSpec, "eval_spec")


def should_run_distribute_coordinator(config: tpu.RunConfig) -> bool:
    """Returns False: processes are coordinated by TF_CONFIG, cores by the estimator."""
    del config
    return False


def _check(value, kind, name):
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a(n) {kind.__name__}, not {value!r}")
