"""Evaluations while a training runs: after its checkpoints, with exports, or by a hook."""

import collections
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from bert_estimator.cluster import hosts
from bert_estimator.storage import remote
from bert_estimator.system import lock
from bert_estimator.tpu import call, errors
from bert_estimator.tpu.base_estimator import Estimator
from bert_estimator.tpu.train_eval.exporters import Exporter
from bert_estimator.tpu.verbs import checkpoints, interrupts


class InMemoryEvaluatorHook(tf.train.SessionRunHook):
    """Evaluates the variables of a training as they are: at its start, on its way and at its end.

    The training goes on after each evaluation with the same session and data. The variables reach
    the evaluation in a temporary checkpoint, so model_dir gets only the evaluation's event file.
    If a signal ends the training, it also ends an evaluation, and the training saves its state.

    Args:
      estimator: the `Estimator` or `TPUEstimator` that trains, and evaluates.
      input_fn: the input of the evaluations, as `Estimator.evaluate` takes it.
      steps: number of batches. None means until the data ends (not under TPU rules).
      hooks: hooks of the evaluations.
      name: if given, events go to `model_dir/eval_<name>`, not to `model_dir/eval`.
      every_n_iter: how many training steps are between two evaluations. Under TPU rules hooks are
        called after each loop, so it is at the end of a loop.

    Raises:
      ValueError: every_n_iter or steps is not positive, or TF_CONFIG names several processes.
      TypeError: an item of hooks is not a hook.
    """

    def __init__(
        self,
        estimator,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[tf.train.SessionRunHook] | None = None,
        name: str | None = None,
        every_n_iter: int = 100,
    ):
        if every_n_iter is None or every_n_iter <= 0:
            raise ValueError(f"invalid every_n_iter={every_n_iter}. It must be positive")
        if steps is not None and steps <= 0:
            raise ValueError(f"Must specify steps > 0, given: {steps}")
        config = estimator.config
        if config.num_worker_replicas > 1 or config.num_ps_replicas > 0:
            raise ValueError(
                "InMemoryEvaluator supports only single machine (aka Local) setting. Unset "
                "TF_CONFIG, or use train_and_evaluate"
            )
        self._estimator, self._input_fn = estimator, input_fn
        self._evaluation = {"steps": steps, "hooks": list(call.hooks(hooks, "hooks"))}
        self._name, self._every = name, every_n_iter

    def begin(self) -> None:
        """Adds what saves the variables to the training's graph."""
        self._global_step = tf.train.get_or_create_global_step()
        # Its own saver, so that the files of model_dir and the training's saver stay as they are.
        self._saver = tf.train.Saver(max_to_keep=1)
        self._evaluated = None

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Evaluates the initial or restored variables."""
        del coord
        self._evaluate(session, session.run(self._global_step))

    def after_run(self, run_context, run_values) -> None:
        """Evaluates if enough steps have been trained."""
        del run_values  # In local mode, a step fetched there may be from before the update.
        step = run_context.session.run(self._global_step)
        if step - self._evaluated >= self._every:
            self._evaluate(run_context.session, step)

    def end(self, session: tf.Session) -> None:
        """Evaluates the variables at the end, if that has not been done."""
        step = session.run(self._global_step)
        if step != self._evaluated:
            self._evaluate(session, step)

    def _evaluate(self, session, step):
        self._evaluated = step
        if interrupts.stop_requested():
            return
        with tempfile.TemporaryDirectory(prefix="in_memory_evaluator_") as folder:
            path = self._saver.save(
                session,
                os.path.join(folder, "model.ckpt"),
                global_step=int(step),
                write_meta_graph=False,
                write_state=False,
            )
            try:
                self._estimator.evaluate(
                    self._input_fn, checkpoint_path=path, name=self._name, **self._evaluation
                )
            except (KeyboardInterrupt, SystemExit):
                # The training sees the signal after this, saves its state, and raises.
                if not interrupts.stop_requested():
                    raise


# How often an evaluator looks for a new checkpoint.
_POLL_SECS = 1


@call.checked
class TrainSpec(NamedTuple):
    """Says how `train_and_evaluate` trains. The arguments are as in `Estimator.train`.

    Raises:
      ValueError, TypeError: a value cannot work.
    """

    input_fn: Callable
    max_steps: int | None = None
    hooks: Sequence[tf.train.SessionRunHook] | None = None
    saving_listeners: Sequence[tf.train.CheckpointSaverListener] | None = None

    def _checked_values(self, replaced):
        _check_input_fn(self.input_fn)
        if self.max_steps is not None and self.max_steps <= 0:
            raise ValueError(f"TrainSpec: max_steps must be positive, not {self.max_steps}")
        listeners = call.listeners(self.saving_listeners, "TrainSpec.saving_listeners")
        return {"hooks": call.hooks(self.hooks, "TrainSpec.hooks"), "saving_listeners": listeners}


@call.checked
class EvalSpec(NamedTuple):
    """Says how `train_and_evaluate` evaluates. Other arguments are as in `Estimator.evaluate`.

    Args:
      exporters: an `Exporter`, or a list of them. They are called after each evaluation.
      start_delay_secs: how many seconds an evaluator in a process of its own waits at first.
      throttle_secs: the least number of seconds between the starts of two evaluations.

    Raises:
      ValueError, TypeError: a value cannot work.
    """

    input_fn: Callable
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[tf.train.SessionRunHook] | None = None
    exporters: Exporter | Sequence[Exporter] | None = None
    start_delay_secs: float = 120
    throttle_secs: float = 600

    def _checked_values(self, replaced):
        _check_input_fn(self.input_fn)
        if self.steps is not None and self.steps <= 0:
            raise ValueError(f"EvalSpec: steps must be positive, not {self.steps}")
        if not isinstance(self.name, str | None):
            raise TypeError(f"EvalSpec: name must be a string, not {self.name!r}")
        for key in ("start_delay_secs", "throttle_secs"):
            if getattr(self, key) < 0:
                raise ValueError(f"EvalSpec: {key} must be 0 or more, not {getattr(self, key)}")
        given = [self.exporters] if isinstance(self.exporters, Exporter) else self.exporters
        exporters = call.all_of(Exporter, given, "EvalSpec.exporters")
        names = [exporter.name for exporter in exporters]
        are_texts = all(isinstance(name, str) and name for name in names)
        if not are_texts or len(set(names)) < len(names):
            raise ValueError(
                f"EvalSpec: exporters must have distinct names, which are texts, not {names}"
            )
        return {"hooks": call.hooks(self.hooks, "EvalSpec.hooks"), "exporters": exporters}


EvalResult = collections.namedtuple("EvalResult", ["status", "metrics", "checkpoint_path"])
EvalResult.__doc__ = """What a `ContinuousEvalListener` is told.

status is "evaluated", "no new checkpoint" or "missing checkpoint"; metrics (the dict that
`evaluate` returned) and checkpoint_path are None unless something was evaluated.
"""


class ContinuousEvalListener:
    """Is asked before and after each evaluation of `train_and_evaluate` whether to go on.

    An evaluator in a process of its own also asks when it has not found a new checkpoint.
    """

    def before_eval(self) -> bool:
        """Returns whether to evaluate; False ends the evaluator, or the training, before that."""
        return True

    def after_eval(self, eval_result: EvalResult) -> bool:
        """Returns whether to go on; False ends the evaluator, or the training."""
        del eval_result
        return True


def train_and_evaluate(estimator, train_spec, eval_spec):
    """Trains once, without a restart of its data, and evaluates checkpoints meanwhile.

    How often is `RunConfig.save_checkpoints_steps` or `_secs`: the checkpoint that training
    starts with is not evaluated, any other is unless the last evaluation started less than
    `throttle_secs` ago, and the last one always is, unless a signal ends the training. If a process
    was killed, or ended by a signal, before a checkpoint was evaluated and exported, the next call
    does that first.

    If TF_CONFIG says that this process belongs to a cluster, it only does its own task: the
    "evaluator" evaluates, a "master" trains and evaluates, and all other processes train.

    Args:
      estimator: an `Estimator`.
      train_spec: a `TrainSpec`; eval_spec: an `EvalSpec`.

    Returns:
      The results of the last evaluation (a dict), and a list of what the exporters returned. Both
      are None if this process did not evaluate, because training had ended before, or because in a
      cluster it only trains.

    Raises:
      TypeError: an argument has another type.
      ValueError: this process is a second evaluator.

    Example, with the estimator in the example of `TPUEstimator`:

      >>> results, exports = tpu.train_and_evaluate(
      ...     estimator,
      ...     tpu.TrainSpec(input_fn, max_steps=8),
      ...     tpu.EvalSpec(input_fn, steps=1, throttle_secs=0),
      ... )
      >>> int(results["global_step"])
      8
    """
    return train_with_listener(estimator, train_spec, eval_spec, ContinuousEvalListener())


def train_with_listener(estimator, train_spec, eval_spec, listener):
    """Does what `train_and_evaluate` does, until a `ContinuousEvalListener` ends it."""
    for value, kind in (
        (estimator, Estimator),
        (train_spec, TrainSpec),
        (eval_spec, EvalSpec),
        (listener, ContinuousEvalListener),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"train_and_evaluate needs a(n) {kind.__name__}, not {value!r}")
    config = estimator.config
    alone = not config.cluster_spec or getattr(config, "cluster", None) is not None
    evaluator = _Evaluator(estimator, train_spec.max_steps, eval_spec, listener)
    if config.task_type == "evaluator":
        if config.task_id:
            raise ValueError(
                "For distributed training, there can only be one `evaluator` task (with task id "
                f"0). TF_CONFIG's task id of this process is {config.task_id}: the first evaluator "
                "evaluates all checkpoints, so leave the others out"
            )
        evaluator.evaluate_new_checkpoints()
        return evaluator.results, evaluator.exports
    with contextlib.ExitStack() as stack:
        listeners = list(train_spec.saving_listeners)
        if alone or config.task_type == "master":
            listeners.append(evaluator)
            if hosts.find().number == 1:  # several hosts do not evaluate while they train
                # The evaluation of what is left must not race with another training of this
                # directory.
                stack.enter_context(lock.held(estimator.model_dir))
                if not evaluator.evaluate_what_is_left():
                    return evaluator.results, evaluator.exports
        estimator.train(
            train_spec.input_fn,
            hooks=train_spec.hooks,
            max_steps=train_spec.max_steps,
            saving_listeners=listeners,
        )
    return evaluator.results, evaluator.exports


class _Evaluator(tf.train.CheckpointSaverListener):
    """Evaluates and exports checkpoints as training writes them."""

    def __init__(self, estimator, max_steps, eval_spec, listener):
        self._estimator = estimator
        self._max_steps = max_steps
        self._spec = eval_spec
        self._listener = listener
        # This file says which step's checkpoint was begun last ("saved"), and which step was last
        # evaluated and exported, or passed over ("done"). So whenever a process is killed, the next
        # one knows whether the checkpoint that it resumes from has to be evaluated.
        self._notes_path = os.path.join(estimator.eval_dir(eval_spec.name), "evaluated.json")
        self._evaluated_step, self._started = None, None
        self.results, self.exports = None, None

    def evaluate_what_is_left(self):
        """Evaluates the checkpoint that training resumes from, if an earlier process did not come
        to do it; returns whether to go on."""
        # If the notes cannot be read, the checkpoint is evaluated once too often rather than never.
        step, notes = self._estimator.global_step(), self._read_notes()
        if step and (notes is None or notes.get("saved") == step != notes.get("done")):
            return self._listener.before_eval() and self._evaluate(step)
        return True

    def begin(self):
        self._first_step = self._estimator.global_step()

    def before_save(self, session, global_step_value):
        # Before the checkpoint is complete: a kill right after it must not lose its evaluation.
        self._note(saved=int(global_step_value))

    def reads_checkpoint(self, step):
        return step != self._first_step and not self._is_throttled()

    def after_save(self, session, global_step_value):
        if global_step_value == self._first_step:
            self._note(done=int(global_step_value))
            return False
        if not self._listener.before_eval():
            return True  # which ends training
        if self._is_throttled():
            tf.logging.info(
                "Checkpoint %d is not evaluated: the last evaluation started less than %s s ago.",
                global_step_value,
                self._spec.throttle_secs,
            )
            if not self._is_final(global_step_value):  # the last one will be evaluated in the end
                self._note(done=int(global_step_value))
            return False
        return not self._evaluate(global_step_value)

    def end(self, session, global_step_value):
        if global_step_value != self._evaluated_step and self._listener.before_eval():
            self._evaluate(global_step_value)

    def evaluate_new_checkpoints(self):
        """Evaluates what another process's training writes, until max_steps."""
        time.sleep(self._spec.start_delay_secs)
        goes_on = True
        while goes_on:
            if not self._listener.before_eval():
                return
            newest, before = self._estimator.latest_checkpoint(), self._evaluated_step
            try:
                with checkpoints.explaining_loss(newest):
                    step = checkpoints.global_step_of(newest)
                is_new = bool(step) and step != before
                goes_on = self._evaluate(step) if is_new else goes_on
            except errors.CheckpointGoneError as error:
                tf.logging.info("%s.", error)
                # The checkpoint was not evaluated; the next look may find a newer one.
                self._evaluated_step = before
                time.sleep(_POLL_SECS)
                continue
            if is_new:
                wait = self._started + self._spec.throttle_secs - time.monotonic()
            else:
                status = "no new checkpoint" if step else "missing checkpoint"
                goes_on = self._listener.after_eval(EvalResult(status, None, None))
                wait = _POLL_SECS
            # The last checkpoint is followed by none to wait for.
            goes_on = goes_on and not self._is_final(self._evaluated_step or 0)
            if goes_on:
                time.sleep(max(0, wait))

    def _evaluate(self, global_step):
        """Evaluates and exports the newest checkpoint; returns whether to go on."""
        self._evaluated_step, self._started = global_step, time.monotonic()
        if interrupts.stop_requested():
            tf.logging.info("Checkpoint %d is not evaluated: a signal ends training.", global_step)
            return True
        estimator, spec = self._estimator, self._spec
        checkpoint = estimator.latest_checkpoint()
        self.results = estimator.evaluate(
            spec.input_fn,
            steps=spec.steps,
            hooks=spec.hooks,
            checkpoint_path=checkpoint,
            name=spec.name,
        )
        self.exports = [
            exporter.export(
                estimator,
                os.path.join(estimator.model_dir, "export", exporter.name),
                checkpoint,
                self.results,
                self._is_final(global_step),
            )
            for exporter in spec.exporters
        ]
        # Only after the exports: if one is cut short, the next process makes it.
        self._note(done=int(global_step))
        return self._listener.after_eval(EvalResult("evaluated", self.results, checkpoint))

    def _is_throttled(self):
        since = None if self._started is None else time.monotonic() - self._started
        return since is not None and since < self._spec.throttle_secs

    def _is_final(self, global_step):
        return self._max_steps is not None and bool(global_step >= self._max_steps)

    def _read_notes(self):
        """Returns what the file says, a dict; None if it cannot be read."""
        if not tf.io.gfile.exists(self._notes_path):
            return {}
        try:
            return remote.read_json(self._notes_path)
        except ValueError as error:
            tf.logging.warning("%s cannot be read and is ignored: %s", self._notes_path, error)
            return None

    def _note(self, **changes):
        tf.io.gfile.makedirs(os.path.dirname(self._notes_path))
        # A kill between the two leaves the old notes, not half of the new ones.
        with tf.io.gfile.GFile(self._notes_path + ".tmp", "wb") as writer:
            writer.write(json.dumps({**(self._read_notes() or {}), **changes}))
        tf.io.gfile.rename(self._notes_path + ".tmp", self._notes_path, overwrite=True)


def _check_input_fn(input_fn):
    if not callable(input_fn):
        raise TypeError(f"input_fn must be a function, not {input_fn!r}")
