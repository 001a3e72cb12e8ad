"""What programs take from behind `tf.estimator.train_and_evaluate` to train in their own way, and
functions of tf.contrib.framework whose arguments have other names in tf.train."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.util import nest

from bert_estimator import tpu
from bert_estimator.legacy.strictness import taking


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
    """Trains and evaluates as `tpu.train_and_evaluate` does, when `run` is called; its listener may
    end training, or the evaluator."""

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
        # EasyRec runs TensorFlow's private `_TrainingExecutor`; its listener ends the evaluator.
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


def py_func(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    output_types: Any = None,
    output_shapes: Any = None,
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Returns what a function of NumPy arrays gives, in the structure of `output_types`, as
    `tf.contrib.framework.py_func` does."""
    given = tuple(args), dict(kwargs or {})

    def flat(*values):
        called, named = tf.nest.pack_sequence_as(given, values)
        result = func(*called, **named)
        # Only a structure is flattened: a list may also be the one array that the function returns.
        if isinstance(output_types, list | tuple | dict):
            return tf.nest.flatten(result)
        return result

    dtypes = tf.nest.flatten(output_types)
    results = tf.py_func(flat, tf.nest.flatten(given), dtypes, stateful, name)
    packed = tf.nest.pack_sequence_as(output_types, results)
    if output_shapes is not None:
        for tensor, shape in zip(results, nest.flatten_up_to(packed, output_shapes), strict=True):
            tensor.set_shape(shape)
    return packed


load_checkpoint = taking(tf.train.load_checkpoint, "filepattern", "ckpt_dir_or_file")
load_variable, list_variables, init_from_checkpoint = (
    taking(function, "checkpoint_dir", "ckpt_dir_or_file")
    for function in (
        tf.train.load_variable,
        tf.train.list_variables,
        tf.train.init_from_checkpoint,
    )
)
