"""Evaluates every checkpoint of a training, keeps the best one, and ends training early.

The training goes on after each evaluation with the same graph, session and data.
"""

import glob
import json
import math
import os
import shutil
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from bert_estimator import atomic_file
from bert_estimator.command_line.run_directory import BEST_DIRECTORY, BEST_FILE, NETWORK_FILES


class BestCheckpoint(tf.train.CheckpointSaverListener):
    """A saving listener for `TPUEstimator.train`.

    The best checkpoint so far is copied to `<output_dir>/best`, where the saver does not delete it,
    together with the files that describe its network. `best.json` in that directory names the
    checkpoint. It is written last, so that it never names an incomplete copy.

    Args:
      output_dir: the directory of the run.
      evaluate: function without arguments that evaluates the newest checkpoint and returns (its
        metric, its path). A larger metric is better; NaN is worse than every number.
      early_stopping_patience: training ends after this many evaluations in a row without a better
        metric; 0: never.
    """

    def __init__(
        self,
        output_dir: str,
        evaluate: Callable[[], tuple[float, str]],
        early_stopping_patience: int = 0,
    ):
        self._directory = os.path.join(output_dir, BEST_DIRECTORY)
        self._evaluate = evaluate
        self._patience = early_stopping_patience
        self._state = _read(self._directory)

    @property
    def exhausted(self) -> bool:
        """Whether patience is exhausted, in this training or in the training that it resumes."""
        return bool(self._patience) and self._state["since"] >= self._patience

    def after_save(self, session: tf.Session, global_step_value: int) -> bool:
        """Evaluates the checkpoint that was saved; returns whether training is to end."""
        del session
        # A training resumed from a checkpoint saves it anew, and evaluates it a second time.
        if global_step_value <= self._state["step"]:
            return False
        value, checkpoint = self._evaluate()
        if math.isnan(value):  # a correlation with constant predictions
            value = -math.inf
        is_better = self._state["value"] is None or value > self._state["value"]
        kept = {k: self._state[k] for k in ("value", "checkpoint")}
        since = self._state["since"] + 1
        if is_better:
            kept, since = {"value": value, "checkpoint": self._copy(checkpoint)}, 0
        self._state = {**kept, "since": since, "step": int(global_step_value)}
        self._write()
        if is_better:
            self._remove_others()
        elif self.exhausted:
            tf.logging.info(
                "Ending at step %d: no better than %.4f for %d evaluations.",
                global_step_value,
                self._state["value"],
                since,
            )
        return self.exhausted

    def _copy(self, checkpoint):
        os.makedirs(self._directory, exist_ok=True)
        for path in glob.glob(glob.escape(checkpoint) + ".*"):
            shutil.copy(path, self._directory)
        for name in NETWORK_FILES:
            path = os.path.join(os.path.dirname(checkpoint), name)
            if os.path.exists(path):
                shutil.copy(path, self._directory)
        return os.path.basename(checkpoint)

    def _remove_others(self):
        kept = self._state["checkpoint"]
        for name in os.listdir(self._directory):
            if name.startswith("model.ckpt-") and not name.startswith(kept + "."):
                os.remove(os.path.join(self._directory, name))

    def _write(self):
        with atomic_file.writer(os.path.join(self._directory, BEST_FILE)) as writer:
            json.dump(self._state, writer)


def _read(directory):
    path = os.path.join(directory, BEST_FILE)
    if not os.path.exists(path):
        return {"value": None, "checkpoint": None, "since": 0, "step": 0}
    with open(path, encoding="utf-8") as reader:
        return json.load(reader)
