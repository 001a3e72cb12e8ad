"""A hook that evaluates while a training goes on, apart from the training's own checkpoints."""

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.tpu import call
from bert_estimator.tpu.verbs import interrupts


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
        self._saver = tf.train.Saver(max_to_keep=1)
        self._evaluated = None

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        """Evaluates the initial or restored variables."""
        del coord
        self._evaluate(session, session.run(self._global_step))

    def before_run(self, run_context) -> tf.train.SessionRunArgs:
        """Asks for the global step."""
        return tf.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context, run_values) -> None:
        """Evaluates if enough steps have been trained."""
        del run_values  # In local mode the step may be from before the update.
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
