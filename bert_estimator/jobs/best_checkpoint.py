"""Evaluates checkpoints while training goes on, keeps the best one, and ends training early.

`best/best.json` lists the steps that have been evaluated, with their metrics. The list says which
checkpoint is the best, and how many evaluations ago that was.
"""

import glob
import math
import os
import shutil
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from bert_estimator.command_line import run_directory
from bert_estimator.command_line.run_directory import NETWORK_FILES
from bert_estimator.jobs.groups import EvaluationFlags
from bert_estimator.system import disk_files


class BestCheckpoint(tf.train.CheckpointSaverListener):
    """Copies the best checkpoint so far to `<output_dir>/best`, as a saving listener.

    Args:
      evaluate: function that evaluates a checkpoint and returns (its metric, its path), given the
        path; None means the newest. A larger metric is better; NaN is worse than every number.
      of: a digest of the data and the settings of the evaluation. If they are others than in the
        training that is resumed, the best checkpoint until then is evaluated anew.
    """

    def __init__(
        self,
        output_dir: str,
        evaluation: EvaluationFlags,
        num_train_steps: int,
        evaluate: Callable[[str | None], tuple[float, str]],
        of: str | None = None,
    ):
        # The saver does not delete checkpoints there.
        self._directory = os.path.join(output_dir, run_directory.BEST_DIRECTORY)
        self._evaluate = evaluate
        self._last_step = num_train_steps
        self._every = evaluation.eval_steps or 1  # by default every checkpoint is evaluated
        self._patience = evaluation.early_stopping_patience
        self._keeps_best = bool(evaluation.keep_best_checkpoint or self._patience)
        self._of = of
        self._values = run_directory.read_evaluations(self._directory, of)
        # Evaluations of other data, or with other settings.
        self._others = {} if self._values else run_directory.read_evaluations(self._directory)

    @property
    def has_others(self) -> bool:
        """Whether the evaluations until now are of other data or settings than those to come."""
        return bool(self._others)

    @property
    def exhausted(self) -> bool:
        """Whether patience is exhausted, in this training or in the training that it resumes."""
        values = list((self._values or self._others).values())
        if not self._patience or not values:
            return False
        return len(values) - 1 - values.index(max(values)) >= self._patience

    def resume(self, step: int) -> None:
        """Completes what an earlier process, which came to a step, did not complete."""
        if self._others:
            self._evaluate_anew(step)
        # Training will come to later steps again, so their evaluations are forgotten. Then the
        # checkpoint that training resumes from may be the best one, so it is evaluated again.
        values = {at: value for at, value in self._values.items() if at <= step}
        if values != self._values:
            values.pop(step, None)
            self._values = values
            run_directory.write_evaluations(self._directory, self._values, self._of)
        self._remove_others()
        self.after_save(None, step)

    def _evaluate_anew(self, step):
        """Evaluates the best checkpoint until now, so that it competes with those to come."""
        best = run_directory.best_kept_step(self._directory, self._others)
        self._others = {}
        if best is None or best > step or not self._keeps_best:
            tf.logging.warning(
                "Other data or settings are evaluated than until now: the best checkpoint is "
                "chosen from the newest one and later ones."
            )
            return
        tf.logging.warning(
            "Other data or settings are evaluated than until now: the best checkpoint, of step %d, "
            "is evaluated anew, and compared with the newest one and later ones.",
            best,
        )
        path = os.path.join(self._directory, f"{run_directory.CHECKPOINT_PREFIX}{best}")
        self._values = {best: self._value_of(best, path)[0]}
        run_directory.write_evaluations(self._directory, self._values, self._of)

    def _value_of(self, step, path=None):
        """Evaluates a checkpoint, or the newest; returns (its metric or -inf, its path)."""
        value, checkpoint = self._evaluate(path)
        if math.isnan(value):  # a correlation with constant predictions
            tf.logging.warning("The metric of step %d is not a number: others are better.", step)
            value = -math.inf
        return value, checkpoint

    def reads_checkpoint(self, step: int) -> bool:
        """Returns whether the checkpoint of a step is evaluated, and so read."""
        # Which steps are due follows from the list, and so not from when a process was killed.
        if step == self._last_step and self._keeps_best:
            return step not in self._values
        return step // self._every != max(self._values, default=0) // self._every

    def after_save(self, session: tf.Session, global_step_value: int) -> bool:
        """Evaluates the checkpoint that was saved; returns whether training is to end."""
        del session
        step = int(global_step_value)
        if not self.reads_checkpoint(step):
            return self.exhausted
        value, checkpoint = self._value_of(step)
        # The step is added to the list when all else is done. So a process may be killed at any
        # instant: the next process finds that the list lacks the step, and repeats what was begun.
        values = {**self._values, step: value}
        # Training may have gone back to a checkpoint, and the best one until then may be gone.
        kept = run_directory.best_kept_step(self._directory, self._values)
        is_best = (
            kept is None or run_directory.best_step({kept: self._values[kept], step: value}) == step
        )
        if self._keeps_best and is_best:
            self._copy(checkpoint)
        self._values = values
        run_directory.write_evaluations(self._directory, self._values, self._of)
        self._remove_others()
        if self.exhausted and max(values.values()) == -math.inf:
            tf.logging.info("Ending at step %d: no evaluation had a number as its metric.", step)
        elif self.exhausted:
            tf.logging.info(
                "Ending at step %d: the last %d evaluations were not better than step %d's.",
                step,
                self._patience,
                run_directory.best_step(values),
            )
        return self.exhausted

    def _copy(self, checkpoint):
        """Copies a checkpoint, with the files that describe its network, into `best`."""
        os.makedirs(self._directory, exist_ok=True)
        # The index file is the last: without it TensorFlow does not see a checkpoint.
        paths = sorted(glob.glob(glob.escape(checkpoint) + ".*"), key=lambda p: p.endswith("index"))
        folder = os.path.dirname(checkpoint)
        for path in [*(os.path.join(folder, name) for name in NETWORK_FILES), *paths]:
            if os.path.exists(path):
                copy = os.path.join(self._directory, os.path.basename(path))
                # It reaches the disk before best.json names it and the best one until then goes.
                with open(path, "rb") as reader, disk_files.writer(copy, "wb") as writer:
                    shutil.copyfileobj(reader, writer)

    def _remove_others(self):
        """Removes the files of all checkpoints but the best one."""
        best = run_directory.best_kept_step(self._directory, self._values)
        prefix = run_directory.CHECKPOINT_PREFIX
        for name in os.listdir(self._directory) if os.path.isdir(self._directory) else ():
            if name.startswith(prefix) and not name.startswith(f"{prefix}{best}."):
                os.remove(os.path.join(self._directory, name))
