"""Training: loops of steps between visits of the hooks, until the last step or the end of data."""

import contextlib
import math
from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.cluster import hosts
from bert_estimator.graph import graph_walk, variable_uses
from bert_estimator.system import ticker
from bert_estimator.system.errors import listed
from bert_estimator.tpu import errors, summary
from bert_estimator.tpu.step.feeds import EndOfInput
from bert_estimator.tpu.verbs import checkpoint_saver, checkpoints
from bert_estimator.tpu.verbs.interrupts import Interrupts
from bert_estimator.tpu.verbs.opened_run import opened_run
from bert_estimator.tpu.verbs.progress import Progress, round_number
from bert_estimator.tpu.verbs.snapshot import Snapshot


def train(
    job,
    step_class: type,
    input_fn: Callable,
    hooks: list[tf.train.SessionRunHook],
    saving_listeners: list[tf.train.CheckpointSaverListener],
    steps: int | None,
    max_steps: int | None,
) -> None:
    """Trains a job's model from the newest complete checkpoint of its model_dir, for `steps`
    further steps, or to the global step `max_steps`; without either, to the end of the data."""
    model_dir = job.config.model_dir
    if job.is_chief:
        # Only the chief changes model_dir.
        checkpoint_saver.remove_unwritten(model_dir)
        summary.drop_stale_writer(model_dir)
    restored = checkpoints.newest_whole(model_dir)
    if job.is_chief:
        checkpoint_saver.remove_half_deleted(model_dir, restored)
        checkpoint_saver.complete_save(model_dir, restored)
    start_step = checkpoints.global_step_of(restored)
    hosts.agree_on("the step to start from", start_step)
    stop_step = start_step + steps if steps is not None else max_steps
    hosts.check_settings(
        max_steps=stop_step,
        train_batch_size=job.batch_size,
        iterations_per_loop=job.tpu_config.iterations_per_loop,
    )
    if stop_step is not None and start_step >= stop_step:
        tf.logging.info(
            "Nothing to train: %s is at step %d, max_steps is %d.", model_dir, start_step, stop_step
        )
        return
    observers = _Observers(job, hooks, saving_listeners, start_step, restored, stop_step)
    signalled = Interrupts("finishing the current step, then saving", job.hosts.number)
    with (
        # The order matters: signals count from before the model is built until the session is
        # closed, so that one never ends the process between a step and its checkpoint.
        hosts.noting_exit(),
        signalled as interrupts,
        opened_run(
            job,
            step_class,
            input_fn,
            restored,
            observers.make_hooks,
            observers.around_hooks,
        ) as run,
        run.graph.as_default(),
        observers.progress(run.global_step(), steps) as progress,
    ):
        loop = _TrainingLoop(run, observers.stop_step, progress, observers.finite, interrupts)
        loop.run()
    # This also waits until the chief has written the last checkpoint.
    hosts.agree_on("the step reached", loop.now)
    interrupts.raise_if_requested()


class _Observers:
    """Makes the observers of a training: the hooks, checks of the weights, log lines."""

    def __init__(self, job, hooks, saving_listeners, start_step, restored, stop_step):
        self._job, self._config = job, job.config
        self._callers_hooks, self._listeners = hooks, saving_listeners
        self._start_step, self._restored, self.stop_step = start_step, restored, stop_step
        self._saver, self._last_hooks = None, []

    def make_hooks(self, step):
        """Returns all hooks of a training, in the order of their visits."""
        spec = step.spec
        self._scaffold = spec.scaffold
        # The model_fn may have made a summary of this name.
        if "loss" not in [each.op.name for each in tf.get_collection(tf.GraphKeys.SUMMARIES)]:
            tf.summary.scalar("loss", spec.loss)
        self.finite = checkpoint_saver.FiniteCheck()
        callers_hooks = [*self._callers_hooks, *spec.training_hooks]
        callers_hooks += spec.training_chief_hooks if self._job.is_chief else ()
        own_hooks = step.add_summaries(self._config)
        own_hooks = own_hooks if self._job.is_chief else []  # Only the chief writes summaries.
        own_hooks += self._savers(spec.scaffold, callers_hooks)
        # A checkpoint of a step is begun before the caller's hooks see the step.
        self._hooks = [*own_hooks, *callers_hooks, *self._last_hooks]
        tf.logging.info(
            "Training from step %d%s to %s.",
            self._start_step,
            f" (restored from {self._restored})" if self._restored else "",
            "the end of the data" if self.stop_step is None else f"step {self.stop_step}",
        )
        return self._hooks

    def _savers(self, scaffold, callers_hooks):
        """Returns a list with our own checkpoint saver; it is empty if the caller has a saver."""
        config = self._config
        callers_savers = [h for h in callers_hooks if isinstance(h, tf.train.CheckpointSaverHook)]
        saves = config.save_checkpoints_steps or config.save_checkpoints_secs
        if not saves or callers_savers:
            if self._listeners:
                if not callers_savers:
                    raise ValueError(
                        "There should be a CheckpointSaverHook to use saving_listeners: set "
                        "RunConfig.save_checkpoints_steps or save_checkpoints_secs"
                    )
                callers_savers[0]._listeners.extend(self._listeners)
            return []
        if not self._job.is_chief:  # Only the chief saves, so only its listeners are called.
            return []
        restored_step = self._start_step if self._restored else None
        snapshot = Snapshot(scaffold)
        self._last_hooks.append(snapshot)
        self._saver = checkpoint_saver.CheckpointSaver(
            config, scaffold, restored_step, self._listeners, self.finite, snapshot
        )
        return [self._saver]

    def around_hooks(self):
        """Returns the context manager that completes the last checkpoint if training fails."""
        # The saver is new, and must be told of the earlier checkpoints, to delete the oldest.
        # This runs before the first hook sees the session: a caller's saver saves right then.
        checkpoints.remember(self._scaffold.saver, checkpoints.earlier(self._config.model_dir))
        return self._saver.finishing() if self._saver is not None else contextlib.nullcontext()

    def progress(self, first_step, steps):
        """Returns the `Progress` of this training."""
        # A warm start may have brought a global step.
        if steps is not None and first_step != self._start_step:
            self.stop_step = first_step + steps
            tf.logging.info(
                "The warm start begins at step %d: training to step %d.", first_step, self.stop_step
            )
        # Only the chief writes rates into the event file.
        job, config = self._job, self._config
        if not job.is_chief:
            config = config.replace(model_dir=None)
        return Progress(config, job.batch_size, job.units_per_example, self.stop_step, self._hooks)


class _TrainingLoop:
    """Runs loops of steps until the stop step, the end of the data, or a request to stop by a hook
    or a signal; `now` is the global step reached."""

    def __init__(self, run, stop_step, progress, finite, interrupts):
        self._run, self._job, self._step = run, run.job, run.step
        self._stop_step, self._progress = stop_step, progress
        self._finite, self._interrupts = finite, interrupts
        self._last = None  # the `LoopResult` of the last loop that ran a step
        self._rise = 1.0  # of the global step, by a step of the last loop
        self.now = run.global_step()

    def run(self):
        """Trains, and ends the step and the hooks if nothing went wrong."""
        steps_to_go = None if self._stop_step is None else self._stop_step - self.now
        if self._job.tpu_rules and not _may_count(self._step.update):
            raise RuntimeError(
                "train_op does not change the global step, so training would never end: with "
                "use_tpu=True it must, as optimizer.minimize(loss, tf.train.get_global_step()) does"
            )
        log_secs = self._job.config.log_every_secs
        with ticker.every(log_secs, ticker.so_far("Starting the step")):
            self._step.start(self._run.session, steps_to_go, self.now)
        self._progress.start(self.now)
        with ticker.every(log_secs, self._progress.line):
            ended = self._is_finished()
            while not ended:
                self._progress.before_loop()
                try:
                    self._one_loop()
                except EndOfInput:
                    if not self._job.tpu_rules:
                        break
                    raise errors.DataEndedError(
                        f"input_fn's data ended at step {self._run.global_step()}, before step "
                        f"{self._stop_step}. With use_tpu=True the data must last: use "
                        "dataset.repeat(), or train for fewer steps",
                    ) from None
                ended = self._is_finished()
        if self._last is not None:
            # The last step is always logged, whatever the interval.
            self._report(self._last, ended=True)
            tf.logging.info("Loss for final step: %s.", round_number(self._last.losses[-1], 5))
        # Host functions finish, or raise their errors, before the hooks' `end`.
        self._step.finish(self._run.session)
        self._run.end()

    def _is_finished(self):
        """Returns whether training ends here; all hosts get the same answer."""
        at_end = self._stop_step is not None and self.now >= self._stop_step
        return at_end or self._interrupts.wanted_by_any_host(self._run.driver.stop_requested)

    def _one_loop(self):
        """Runs the steps up to the next visit of the hooks, and then that visit."""
        next_stop = self.now + 1 if self._stop_step is None else self._stop_step
        # If a step raises the global step by more than one, fewer steps are left.
        next_stop = self.now + math.ceil((next_stop - self.now) / max(1, self._rise))
        length = self._step.loop_length(self.now, next_stop)
        fetches = [self._step.spec.train_op, self._step.spec.loss]

        start = self.now

        # A step is logged before the hooks see it, and so before its checkpoint is written. A
        # resumed training logs all steps after the checkpoint, so each is logged once, no matter
        # when a kill came.
        def run_loop(hook_run):
            result, hook_values = self._step.run_loop(length, hook_run, self._visit)
            self._check_losses(result)
            # If gradients are summed over several steps, it rises in the last of them.
            self.now = self._run.global_step()
            self._step.reached(self.now)
            if result.losses:
                self._rise = (self.now - start) / len(result.losses)
                if start == 0:
                    self._progress.after_first(1, result.losses[0], result.first_scalars)
                self._report(result, ended=self.now == self._stop_step)
            return result, hook_values

        self._run.driver.around(self._run.session, fetches, run_loop)

    def _visit(self, so_far):
        """Shows how a loop goes on; returns whether to end it."""
        if so_far.losses:
            step = self.now + int(len(so_far.losses) * self._rise)
            self._progress.within_loop(
                step, so_far.losses[-1], so_far.scalars, self._step.waited_secs
            )
        # Several hosts only end together, after a loop.
        return self._job.hosts.number == 1 and self._interrupts.requested is not None

    def _check_losses(self, result):
        """Raises NanLossDuringTrainingError if a loss is not finite; the text helps to find why."""
        not_finite = [i for i, loss in enumerate(result.losses) if not np.isfinite(loss)]
        if not not_finite:
            return
        # If gradients are summed over several steps, the global step rises in the last of them.
        rise = self._run.global_step() - self.now
        failed_step = self.now + (not_finite[0] + 1) * rise // len(result.losses)
        # Only the last step's scalars are known.
        is_last = not_finite[0] == len(result.losses) - 1
        of_last_step = result.scalars.items() if is_last else ()
        scalars = "".join(f", {name} = {value:.6g}" for name, value in of_last_step)
        bad_variables = self._finite.names_of_bad(self._run.session)
        raise errors.NanLossDuringTrainingError(
            f"The loss of step {failed_step} is {result.losses[not_finite[0]]}{scalars}. "
            f"Variables that are not finite after it: {listed(bad_variables) or 'none'}. "
            f"{checkpoints.last_written(self._job.config.model_dir)} Lower the learning rate, "
            "lengthen the warm-up, or look for bad records.",
            failed_step,
        )

    def _report(self, result, ended):
        """Writes the loop's summary, and a log line if it is due."""
        if result.summary is not None and result is not self._last and self._job.is_chief:
            writer = summary.event_writer(self._job.config.model_dir)
            writer.add_summary(result.summary, self.now)
        self._last = result
        self._progress.after_loop(
            self.now, result.losses[-1], result.scalars, self._step.waited_secs, last=ended
        )


def _may_count(update):
    """Returns whether a train_op, or what it depends on, may change the global step."""
    operation = getattr(update, "op", update)  # of a tensor, or of an update of a variable
    handle = tf.train.get_global_step().handle
    captures = getattr(operation.graph, "captures", ())
    # On cores, the step's graph captures the handle of the session's variable.
    handles = {handle.ref(), *(inner.ref() for outer, inner in captures if outer is handle)}
    return any(
        before.type not in variable_uses.READERS
        and not handles.isdisjoint(tensor.ref() for tensor in before.inputs)
        for before in graph_walk.all_before([operation])
    )
