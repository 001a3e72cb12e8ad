"""Hooks that end training early: because of the evaluations so far, or at a step."""

import collections
import operator
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from bert_estimator.tpu import base_estimator, summary


def make_early_stopping_hook(
    estimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Returns a hook that ends training when a function returns True.

    Args:
      estimator: the `Estimator` that trains.
      should_stop_fn: function without arguments that returns a bool.
      run_every_secs, run_every_steps: how often the function is called. Exactly one of the two must
        be None.

    Raises:
      TypeError: estimator is not an `Estimator`, or should_stop_fn is not a function.
      ValueError: both intervals are given, or neither is.
    """
    if not callable(should_stop_fn):
        raise TypeError(f"should_stop_fn must be a function, not {should_stop_fn!r}")
    return _StoppingHook(estimator, lambda step: should_stop_fn(), run_every_secs, run_every_steps)


def stop_if_higher_hook(
    estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Returns a hook that ends training when a metric has been above a threshold.

    Args:
      estimator: the `Estimator` that trains.
      metric_name: a key of the dict that `evaluate` returns.
      threshold: the threshold.
      eval_dir: the directory of the evaluations' events; None means `estimator.eval_dir()`.
      min_steps: evaluations before this global step do not count.
      run_every_secs, run_every_steps: see `make_early_stopping_hook`.
    """
    crossed = _crossed(estimator, metric_name, threshold, operator.gt, eval_dir, min_steps)
    return _StoppingHook(estimator, crossed, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Returns a hook that ends training when a metric has been below a threshold.

    The arguments are as in `stop_if_higher_hook`.

    Example, with the estimator in the example of `TPUEstimator`, whose loss was evaluated to be 0:

      >>> hook = tpu.early_stopping.stop_if_lower_hook(estimator, "loss", threshold=0.1)
      >>> estimator.train(input_fn, [hook], max_steps=100).global_step() < 100
      True
    """
    crossed = _crossed(estimator, metric_name, threshold, operator.lt, eval_dir, min_steps)
    return _StoppingHook(estimator, crossed, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Returns a hook that ends training when a metric has not risen for a number of global steps.

    The other arguments are as in `stop_if_higher_hook`.
    """
    stuck = _stuck(
        estimator, metric_name, max_steps_without_increase, operator.gt, eval_dir, min_steps
    )
    return _StoppingHook(estimator, stuck, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> tf.train.SessionRunHook:
    """Returns a hook that ends training when a metric has not fallen for a number of global steps.

    The other arguments are as in `stop_if_higher_hook`.
    """
    stuck = _stuck(
        estimator, metric_name, max_steps_without_decrease, operator.lt, eval_dir, min_steps
    )
    return _StoppingHook(estimator, stuck, run_every_secs, run_every_steps)


def make_stop_at_checkpoint_step_hook(
    estimator, last_step: int, wait_after_file_check_secs: float = 30
) -> tf.train.SessionRunHook:
    """Returns a hook that ends training at a global step.

    Upstream's hook waits for a checkpoint of that step, which another worker of a cluster may
    write. Here all workers run the same steps, so the step itself ends training.
    """
    return tf.train.StopAtStepHook(last_step=last_step)


def read_eval_metrics(eval_dir: str) -> collections.OrderedDict[int, dict[str, float]]:
    """Reads the metrics that evaluations wrote to their event files.

    Returns:
      A dict of global step -> dict of metric name -> value, sorted by step.
    """
    return summary.read_events(f"{eval_dir}/events.out.tfevents.*")


class _StoppingHook(tf.train.SessionRunHook):
    """Ends training when a function of the global step returns True."""

    def __init__(self, estimator, should_stop, every_secs, every_steps):
        if not isinstance(estimator, base_estimator.Estimator):
            raise TypeError(f"estimator must be an Estimator, not {estimator!r}")
        if (every_secs is None) == (every_steps is None):
            raise ValueError(
                "give exactly one of run_every_secs and run_every_steps, the other None"
            )
        self._should_stop = should_stop
        self._timer = tf.train.SecondOrStepTimer(every_secs=every_secs, every_steps=every_steps)

    def begin(self):
        self._global_step = tf.train.get_global_step()

    def after_create_session(self, session, coord):
        # A resumed training may be where the one before it was to end.
        step = session.run(self._global_step)
        if step and self._should_stop(int(step)):
            tf.logging.info("Early stopping at global step %d", step)
            coord.request_stop()

    def after_run(self, run_context, run_values):
        # Fetched with the step, in local mode, it may be from before the update.
        step = int(run_context.session.run(self._global_step))
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            if self._should_stop(step):
                tf.logging.info("Early stopping at global step %d", step)
                run_context.request_stop()


def _evaluations(estimator, metric_name, eval_dir, first, last):
    """Returns the (step, value) pairs of a metric from a step to another."""
    by_step = read_eval_metrics(eval_dir or estimator.eval_dir())
    # There may be evaluations of later steps: a killed training goes on from its last checkpoint,
    # and somebody may go back to an earlier one.
    counted = [(step, of_step) for step, of_step in by_step.items() if first <= step <= last]
    if counted and not any(metric_name in of_step for _, of_step in counted):
        names = ", ".join(sorted(counted[-1][1]))
        raise KeyError(f"{metric_name}: the evaluations give only {names}")
    # Evaluations of earlier versions of a program may lack it.
    return [(step, of_step[metric_name]) for step, of_step in counted if metric_name in of_step]


def _crossed(estimator, metric_name, threshold, is_beyond, eval_dir, min_steps):
    def should_stop(now):
        evaluations = _evaluations(estimator, metric_name, eval_dir, min_steps, now)
        return any(is_beyond(value, threshold) for _, value in evaluations)

    return should_stop


def _stuck(estimator, metric_name, most_steps, is_better, eval_dir, min_steps):
    def should_stop(now):
        best_step, best = None, None
        for step, value in _evaluations(estimator, metric_name, eval_dir, min_steps, now):
            if best is None or is_better(value, best):
                best_step, best = step, value
            if step - best_step >= most_steps:
                return True
        return False

    return should_stop
