"""Evaluation: the mean loss and the metrics of a checkpoint over a number of batches.

The eval step is a variable with the number of evaluated steps, which hooks may read.
"""

import contextlib
from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import message
from tensorflow.python.training import evaluation

from bert_estimator.cluster import hosts
from bert_estimator.system import ticker
from bert_estimator.tpu import errors, summary
from bert_estimator.tpu.step.feeds import EndOfInput
from bert_estimator.tpu.verbs import checkpoints
from bert_estimator.tpu.verbs.interrupts import Interrupts
from bert_estimator.tpu.verbs.opened_run import KeptRun
from bert_estimator.tpu.verbs.progress import round_number


class EvalStepCounter(tf.train.SessionRunHook):
    """Counts steps in the graph's eval step (`tf.GraphKeys.EVAL_STEP`), `steps_a_loop` between two
    visits of the hooks; TensorFlow's own `StopAfterNEvalsHook` among `hooks` gets the count."""

    def __init__(self, steps_a_loop: int, hooks: list[tf.train.SessionRunHook]):
        with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
            eval_step = evaluation._get_or_create_eval_step()
        self._count = tf.assign_add(eval_step, steps_a_loop, use_locking=True)
        with tf.control_dependencies([self._count]):
            completed = tf.identity(eval_step.read_value())
        for hook in hooks:
            if hasattr(hook, "_set_evals_completed_tensor"):
                hook._set_evals_completed_tensor(completed)

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._count)


_MOST_BYTES = 1 << 20  # of an array in the events, where TensorBoard does not show it
_RESERVED = ("loss", tf.GraphKeys.GLOBAL_STEP)


def evaluate(
    job,
    opened: Callable,
    hooks: list[tf.train.SessionRunHook],
    steps: int | None,
    checkpoint_path: str | None,
    eval_dir: str,
) -> dict:
    """Evaluates a job's model, opened by a function of a checkpoint and `make_hooks`, on `steps`
    batches (None: all); returns a dict with the mean `loss`, each metric, and `global_step`."""
    signalled = Interrupts("ending the evaluation after the current step", job.hosts.number)
    with hosts.noting_exit(), signalled as interrupts:
        path = checkpoints.given_or_newest(job.config.model_dir, checkpoint_path)
        with checkpoints.explaining_loss(path):
            start_step = checkpoints.global_step_of(path)
        # All hosts must restore the same checkpoint.
        hosts.agree_on("the checkpoint to evaluate", start_step)
        hosts.check_settings(steps=steps, eval_batch_size=job.batch_size)

        def make_hooks(step):
            reserved = sorted(set(step.metric_values) & set(_RESERVED))
            if reserved:
                raise ValueError(
                    f"Metrics named {reserved} clash with the entries that evaluate adds: rename "
                    "them"
                )
            checkpoints.warn_if_untrained(path, job, step, "evaluating")
            given = [*hooks, *step.spec.evaluation_hooks]
            # Under TPU rules, hooks only visit before and after all steps.
            steps_a_loop = steps if job.tpu_rules else 1
            return [EvalStepCounter(steps_a_loop, given), *given]

        with contextlib.ExitStack() as stack:
            with checkpoints.explaining_loss(path):
                # Training may remove the checkpoint between finding and restoring it; what comes
                # later does not read it.
                run = stack.enter_context(opened(path, make_hooks))
            stack.enter_context(run.graph.as_default())
            run.step.start(run.session, steps, start_step)
            loop = _EvaluationLoop(run, steps, interrupts)
            loop.run()
            run.step.finish(run.session)
            # In float64, since the sum of many batches loses digits in float32.
            results = {"loss": np.mean(loop.losses, dtype=np.float64).astype(np.float32)}
            results.update(sorted(run.session.run(run.step.metric_values).items()))
            results[tf.GraphKeys.GLOBAL_STEP] = run.session.run(tf.train.get_global_step())
            run.end()
    # A signal, perhaps to the training whose listener calls this, is raised on all hosts.
    interrupts.raise_if_requested()
    tf.logging.info(
        "Evaluation at step %d over %d batches: %s",
        results[tf.GraphKeys.GLOBAL_STEP],
        len(loop.losses),
        ", ".join(f"{name} = {_shown(v)}" for name, v in results.items() if _is_shown(v)),
        extra={"evaluation": results, "checkpoint_path": path},  # for the legacy runner
    )
    if job.hosts.is_chief:
        with tf.Graph().as_default():  # a FileWriter refuses to be made in eager mode
            _write_events(eval_dir, results, path)
    return results


class KeptEvaluation(KeptRun):
    """Evaluates checkpoints one after the other, with one graph and one session, for an `input_fn`
    (of a Dataset) and a `model_fn` that always do the same; the results are `evaluate`'s."""

    def __init__(self, job, step_class: type, input_fn: Callable, steps: int | None, eval_dir: str):
        super().__init__(job, step_class, input_fn)
        self._steps, self._eval_dir = steps, eval_dir

    def evaluate(self, checkpoint_path: str | None = None) -> dict:
        """Evaluates a checkpoint, by default the newest; see `evaluate`."""
        return evaluate(self._job, self.opened, [], self._steps, checkpoint_path, self._eval_dir)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()


def _is_shown(value):
    # NumPy cannot tell the dimensions of a structure whose parts have different shapes.
    return not isinstance(value, dict | tuple | list) and np.ndim(value) == 0


def _shown(value):
    """Returns a metric's value as text; a number that is not whole has five significant digits."""
    is_float = isinstance(value, float | np.floating)
    return round_number(float(value), 5) if is_float else str(value)


class _EvaluationLoop:
    """Runs the steps: under TPU rules all steps in one loop, otherwise a loop for each step."""

    def __init__(self, run, steps, interrupts):
        self._run, self._steps, self._interrupts = run, steps, interrupts
        self.losses = []
        self._num_in_loop = 0  # how many steps of the present loop have ended
        self._time_so_far = ticker.so_far("Evaluating")

    def run(self):
        """Evaluates all batches, and says by time how many are done."""
        with ticker.every(self._run.job.config.log_every_secs, self._line):
            while not self._is_finished():
                # The evaluation has nothing to save, so a signal ends it here.
                self._interrupts.raise_if_requested()
                try:
                    self._one_loop()
                except EndOfInput:
                    if not self._run.job.tpu_rules:
                        break
                    raise errors.DataEndedError(
                        f"input_fn's data ended before the {self._steps} batches to evaluate. With "
                        "use_tpu=True the data must last: use dataset.repeat(), or fewer steps",
                    ) from None
        if not self.losses:
            stopped = self._run.driver.stop_requested
            cause = "a hook stopped the evaluation" if stopped else "input_fn gave no batch"
            raise ValueError(f"{cause}: there is nothing to evaluate")

    def _is_finished(self):
        at_end = self._steps is not None and len(self.losses) >= self._steps
        return at_end or self._run.driver.stop_requested

    def _one_loop(self):
        step, length = self._run.step, self._steps if self._run.job.tpu_rules else 1
        result = self._run.driver.around(
            self._run.session,
            [step.spec.loss],
            lambda hook_run: step.run_loop(length, hook_run, self._visit),
        )
        if result is not None:  # None if a hook stopped the evaluation before the loop
            self.losses += result.losses
        self._num_in_loop = 0

    def _visit(self, so_far):
        """Returns whether to end a loop."""
        # Several hosts only end together, after a loop.
        self._num_in_loop = len(so_far.losses)
        return self._run.job.hosts.number == 1 and self._interrupts.requested is not None

    def _line(self):
        of = f" of {self._steps}" if self._steps else ""
        return f"{self._time_so_far()} {len(self.losses) + self._num_in_loop}{of} batches are done."


def _write_events(eval_dir, results, checkpoint_path):
    """Writes the results' scalars, and the checkpoint's path as text, to an event file."""
    summary.drop_stale_writer(eval_dir)
    writer = summary.event_writer(eval_dir)
    scalars = tf.Summary()
    for name, value in results.items():
        if name == tf.GraphKeys.GLOBAL_STEP:
            continue
        if isinstance(value, dict | tuple | list):
            tf.logging.warning(
                "The metric %s is a nested structure: it is returned, and left out of the events.",
                name,
            )
        elif isinstance(value, bytes):
            scalars.value.extend(_values_of_text(name, value))
        elif np.ndim(value) == 0 and np.isrealobj(value):
            scalars.value.add(tag=name, simple_value=float(value))
        elif np.asarray(value).nbytes > _MOST_BYTES:
            tf.logging.info(
                "The metric %s is an array of more than 1 MiB: it is returned, and left out of the "
                "events.",
                name,
            )
        else:
            scalars.value.add(tag=name, tensor=tf.make_tensor_proto(value))
    step = results[tf.GraphKeys.GLOBAL_STEP]
    writer.add_summary(scalars, step)
    if checkpoint_path:
        tensor = tf.make_tensor_proto(checkpoint_path, tf.string)
        # TensorBoard shows a string tensor only if its plugin is named.
        text = tf.Summary.Value(tag="checkpoint_path", tensor=tensor)
        text.metadata.plugin_data.plugin_name = "text"
        writer.add_summary(tf.Summary(value=[text]), step)
    writer.flush()


def _values_of_text(name, text):
    """Returns the summary values that a metric of type string adds to the events: the values of a
    serialized summary, with the tags `name/0` and so on, or none, with a warning."""
    values = ()
    with contextlib.suppress(message.DecodeError):
        values = tf.Summary.FromString(text).value
    if not values:
        tf.logging.warning(
            "The metric %s is a string, but not a serialized summary: it is returned, and left out "
            "of the events.",
            name,
        )
    for number, value in enumerate(values):
        value.tag = f"{name}/{number}"
    return values
