"""Writes checkpoints: only finite weights, durably, and without leftovers."""

import contextlib
import glob
import os
import re
import shutil

import tensorflow.compat.v1 as tf
from tensorflow.python.client.session import SessionInterface

from bert_estimator import atomic_file
from bert_estimator.tpu import errors
from bert_estimator.tpu.verbs import checkpoints

# TensorFlow writes these first, and then renames them.
_LEFTOVER_FOLDER = re.compile(rf"{checkpoints.BASENAME}-\d+_temp")
_LEFTOVER_FILE = re.compile(
    rf"{checkpoints.BASENAME}-\d+\..*\.tempstate\d+|checkpoint\.tmp[0-9a-f]+"
)


def remove_leftovers(model_dir: str | None) -> None:
    """Removes the files of a checkpoint that a kill or a full disk cut short."""
    for name in tf.io.gfile.listdir(model_dir) if tf.io.gfile.isdir(model_dir) else ():
        name = name.rstrip("/")
        path = os.path.join(model_dir, name)
        if _LEFTOVER_FOLDER.fullmatch(name) and os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        elif _LEFTOVER_FILE.fullmatch(name):
            tf.io.gfile.remove(path)


class CheckpointSaver(tf.train.CheckpointSaverHook):
    """TensorFlow's saver hook, but it keeps good checkpoints safe.

    - If a weight is not finite, it raises an error, so that the last good checkpoint stays.
    - A checkpoint survives a power loss before the state file names it and an earlier checkpoint is
      deleted.
    - If a checkpoint cannot be written, as on a full disk, nothing is left of it.
    - It does not write the checkpoint again from which training was restored. A kill during the
      write would destroy the state that training resumes from.

    Args:
      config: the `RunConfig`.
      scaffold: the `tf.train.Scaffold` that has the saver.
      restored_step: the step of the checkpoint that training was restored from, or None.
      listeners: list of `tf.train.CheckpointSaverListener`.
      finite: a `FiniteCheck`.

    Raises:
      NonFiniteWeightsError: when saving, a weight is not finite.
    """

    def __init__(self, config, scaffold, restored_step, listeners, finite):
        super().__init__(
            config.model_dir,
            save_secs=config.save_checkpoints_secs,
            save_steps=config.save_checkpoints_steps,
            scaffold=scaffold,
            listeners=listeners,
            save_graph_def=config.checkpoint_save_graph_def,
        )
        self._model_dir = config.model_dir
        self._restored_step = restored_step
        self._finite = finite

    def _save(self, session, step):
        if step == self._restored_step:
            return False
        bad = self._finite.names_of_bad(session)
        if bad:
            raise errors.NonFiniteWeightsError(
                f"At step {step} these variables are not finite: {', '.join(bad)}. No checkpoint "
                f"of it was written. {checkpoints.last_written(self._model_dir)} Lower the "
                "learning rate, lengthen the warm-up, or look for bad records.",
                int(step),
            )
        try:
            return super()._save(session, step)
        except (OSError, tf.errors.OpError):
            with contextlib.suppress(OSError, tf.errors.OpError):
                self._remove_unfinished(step)
            raise

    def _get_saver(self):
        return _DurableSaver(super()._get_saver())

    def _remove_unfinished(self, step):
        """Removes what was written of a checkpoint that the state file does not name."""
        remove_leftovers(self._model_dir)
        prefix = f"{self._save_path}-{step}"
        if prefix not in self._get_saver().last_checkpoints:
            for path in _files_of(prefix):
                os.remove(path)


class FiniteCheck:
    """Finds variables that are not finite. It must be made before the graph is finalized."""

    _MOST_NAMES = 10

    def __init__(self):
        self._variables = [v for v in tf.global_variables() if v.dtype.base_dtype.is_floating]
        self._finite = [tf.reduce_all(tf.math.is_finite(v)) for v in self._variables]

    def names_of_bad(self, session: tf.Session) -> list[str]:
        """Returns the names of the first ten variables with a value that is not finite."""
        flags = session.run(self._finite)
        names = [v.op.name for v, ok in zip(self._variables, flags, strict=True) if not ok]
        return names[: self._MOST_NAMES] + ["..."] * (len(names) > self._MOST_NAMES)


class _DurableSaver:
    """Wraps a `tf.train.Saver`: a checkpoint is on the disk before the state file names it.

    The .meta file is written first. The index file, which makes a checkpoint complete, is the last.
    """

    def __init__(self, saver):
        self._saver = saver

    def save(self, session, path, global_step, write_meta_graph):
        if write_meta_graph and not self._saver._pad_step_number:
            write_meta_graph = False
            with session.graph.as_default():
                self._saver.export_meta_graph(f"{path}-{global_step}.meta")
        prefix = self._saver.save(
            _SyncingSession(session),
            path,
            global_step=global_step,
            write_meta_graph=write_meta_graph,
        )
        if prefix:
            sync(prefix)
        return prefix

    def __getattr__(self, name):
        return getattr(self._saver, name)


class _SyncingSession(SessionInterface):
    """Wraps the session for a saver: a checkpoint that was written is brought to the disk at once.

    The saver runs the operation that writes the files, and then names them in the state file.
    """

    def __init__(self, session):
        self._session = session

    def run(self, fetches, *args, **kwargs):
        result = self._session.run(fetches, *args, **kwargs)
        if isinstance(result, bytes | str):
            sync(os.fsdecode(result))
        return result

    def as_default(self):
        return self._session.as_default()

    @property
    def graph(self) -> tf.Graph:
        return self._session.graph

    def __getattr__(self, name):
        return getattr(self._session, name)


def sync(prefix: str) -> None:
    """Brings the files of a checkpoint to the disk, so that they survive a power loss.

    Args:
      prefix: the path prefix of the checkpoint. If it is not in a file system of this machine,
        nothing is done.
    """
    folder = os.path.dirname(prefix) or "."
    if os.path.isdir(folder):
        for path in [*sorted(_files_of(prefix)), folder]:
            atomic_file.sync(path)


def _files_of(prefix):
    return glob.glob(glob.escape(prefix) + ".*")
