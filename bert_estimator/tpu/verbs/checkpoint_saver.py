"""Writes checkpoints: only finite weights, durably, and without leftovers.

A checkpoint is written by the operation that a saver's `SaverDef` names. Once its files are on the
disk, older ones may be deleted, and the state file names it, last. After a kill before that, the
next training does the rest (`complete_save`). Of a checkpoint, the index is deleted first, and the
data last. So data without an index, before the newest complete checkpoint, are always a leftover.
"""

import contextlib
import glob
import inspect
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.saver_pb2 import SaverDef
from tensorflow.python.client import session as session_lib
from tensorflow.python.framework import meta_graph
from tensorflow.python.lib.io import file_io

from bert_estimator.system import disk_files
from bert_estimator.system.errors import listed
from bert_estimator.tpu import errors, summary
from bert_estimator.tpu.verbs import checkpoints
from bert_estimator.tpu.verbs.snapshot import PendingWrite, saves_in_its_own_way

# TensorFlow writes these first, and then renames them.
_FOLDER = re.compile(rf"{checkpoints.BASENAME}-\d+_temp")
_FILE = re.compile(
    rf"{checkpoints.BASENAME}-\d+\..*\.tempstate\d+|"
    rf"({checkpoints.BASENAME}-\d+\.meta|graph\.pbtxt|checkpoint)\.tmp[0-9a-f]+|"
    # Version 0.2's mark of a checkpoint that it was deleting.
    rf"{checkpoints.BASENAME}-\d+\.deleting\.tmp"
)

_OF_CHECKPOINT = re.compile(
    rf"({checkpoints.BASENAME}-(\d+))(?:\.(index|meta|data)(?:-\d+-of-\d+)?|-\d+-of-\d+)?"
)
_IN_ORDER_OF_DELETION = (r"\.index", r"\.meta", r"\.data-\d+-of-\d+")


def remove_unwritten(model_dir: str) -> None:
    """Removes the files of a checkpoint that a kill or a full disk kept from being written."""
    for name in checkpoints.names_in(model_dir):
        path = os.path.join(model_dir, name)
        if _FOLDER.fullmatch(name) and os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        elif _FILE.fullmatch(name):
            tf.io.gfile.remove(path)


def remove_half_deleted(model_dir: str, newest: str | None) -> None:
    """Removes what is left of checkpoints that a saver was deleting when it was killed; the caller
    must hold the directory's lock. If `newest` (a path prefix) is None, nothing is removed."""
    # Without a complete checkpoint nothing is removed: damaged checkpoints must not disappear.
    matched = _OF_CHECKPOINT.fullmatch(os.path.basename(newest or ""))
    if matched is None or matched[0] != matched[1]:  # It is not a name that this project gives.
        return
    kinds = {}  # checkpoint -> kinds of its files; None: of format V1
    for file in filter(None, map(_OF_CHECKPOINT.fullmatch, checkpoints.names_in(model_dir))):
        # A saver deletes only what is older than its newest checkpoint, so newer files stay.
        if int(file[2]) < int(matched[2]):
            kinds.setdefault(file[1], set()).add(file[3])
    for checkpoint, found in kinds.items():
        # Somebody may keep a .meta file, for its graph.
        if "data" in found and not found & {None, "index"}:
            delete(os.path.join(model_dir, checkpoint))


def delete(prefix: str) -> None:
    """Deletes the files of a checkpoint, the index first: without it, nobody takes the rest for a
    checkpoint."""
    folder, name = os.path.split(prefix)
    files = checkpoints.names_in(folder)
    for ending in _IN_ORDER_OF_DELETION:
        for file in files:
            if re.fullmatch(re.escape(name) + ending, file):
                file_io.delete_file(os.path.join(folder, file))


class KeptCheckpoints:
    """Decides which checkpoints of a directory are kept, as `tf.train.Saver` does."""

    def __init__(self, model_dir: str):
        self._model_dir = model_dir
        self._start, self._num_for_good = time.time(), 0
        self._added_at = {}  # a checkpoint of this process -> when it was written

    def keep(self, newest: str, earlier: Iterable[str], settings: SaverDef) -> list[str]:
        """Takes in a checkpoint that is on the disk: deletes the oldest of the earlier ones if they
        are too many, and names it in the state file; returns all that are listed there."""
        kept = [path for path in earlier if path != newest and checkpoints.is_there(path)]
        kept.append(newest)
        self._added_at[newest] = time.time()
        # One at a time, as TensorFlow does: after the loss of the state file, all would count.
        if 0 < settings.max_to_keep < len(kept):
            oldest = kept.pop(0)
            try:
                if not self._is_for_good(oldest, settings.keep_checkpoint_every_n_hours * 3600):
                    delete(oldest)
            except (OSError, tf.errors.OpError) as error:  # Training need not end for that.
                tf.logging.warning("Could not delete the checkpoint %s: %s", oldest, error)
        checkpoints.write_state(self._model_dir, kept)
        return kept

    def _is_for_good(self, path, every_secs):
        """Returns whether a checkpoint stays, as the first one after a further `every_secs`."""
        # Of an earlier process's checkpoints, only that process knew it.
        due = self._start + (self._num_for_good + 1) * every_secs
        is_kept = self._added_at.pop(path, self._start) > due
        self._num_for_good += is_kept
        return is_kept


_NEVER_HOURS = 10_000  # TensorFlow's default of keep_checkpoint_every_n_hours


def complete_save(model_dir: str, newest: str | None) -> None:
    """Does what a kill kept a saver from doing after it had written the newest checkpoint: deletes
    the oldest one if the saver keeps fewer, and names the newest in the state file."""
    named = checkpoints.named(model_dir)
    if newest is None or named == os.path.basename(newest):
        return
    # Nothing is deleted if we do not know what counts, or what the saver would keep.
    settings = _settings_of_saver(newest) if named else None
    sync(newest)
    KeptCheckpoints(model_dir).keep(newest, checkpoints.earlier(model_dir), settings or SaverDef())


def _settings_of_saver(prefix):
    """Returns the `SaverDef` in a checkpoint's .meta file, if it says which checkpoints to keep."""
    try:
        settings = meta_graph.read_meta_graph_file(f"{prefix}.meta").saver_def
    except (OSError, ValueError, DecodeError, tf.errors.OpError):
        return None
    # Which checkpoints it keeps every few hours, only the killed process knew.
    return settings if settings.keep_checkpoint_every_n_hours >= _NEVER_HOURS else None


class CheckpointSaver(tf.train.CheckpointSaverHook):
    """Saves like TensorFlow's saver hook, but in a thread beside training, if the snapshot is
    possible and no listener may read the checkpoint; training waits for the thread before it saves
    again and at its end, and raises its error before the next loop."""

    def __init__(self, config, scaffold, restored_step, listeners, finite, snapshot):
        super().__init__(
            config.model_dir,
            save_secs=config.save_checkpoints_secs,
            save_steps=config.save_checkpoints_steps,
            scaffold=scaffold,
            listeners=listeners,
            save_graph_def=config.checkpoint_save_graph_def,
        )
        self._model_dir = config.model_dir
        self._log_every_secs = config.log_every_secs
        self._restored_step = restored_step
        self._finite, self._snapshot = finite, snapshot
        self._meta_graph = None  # serialized, once there is a session
        self._write = None  # the last `PendingWrite`
        self._kept = KeptCheckpoints(config.model_dir)
        # An event writer starts with the default graph, which would be written twice.
        with tf.Graph().as_default():
            summary.event_writer(config.model_dir)

    def after_create_session(self, session, coord):
        """Writes the graph, and saves."""
        # TensorFlow's method serializes the graph three times and prints it in Python, which takes
        # BERT-base 2 seconds. The graph cannot change any more, so it is serialized once, and
        # written beside each checkpoint.
        step = session.run(self._global_step_tensor)
        graph_def = tf.get_default_graph().as_graph_def(add_shapes=True)
        if self._save_graph_def:
            path = os.path.join(self._model_dir, "graph.pbtxt")
            with self._without_leftovers():
                file_io.atomic_write_string_to_file(path, str(graph_def))
        meta_graph_def = meta_graph.create_meta_graph_def(
            graph_def=graph_def, saver_def=self._get_saver().saver_def
        )
        self._summary_writer.add_event(tf.Event(graph_def=graph_def.SerializeToString()))
        self._summary_writer.add_meta_graph(meta_graph_def)
        if self._save_graph_def:
            self._meta_graph = meta_graph_def.SerializeToString()
        self._finite.begin(session)
        self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def before_run(self, run_context):
        if self._write is not None:
            self._write.raise_if_failed()
        return super().before_run(run_context)

    def end(self, session):
        last_step = session.run(self._global_step_tensor)
        if last_step != self._timer.last_triggered_step():
            self._save(session, last_step)
        self.wait()
        for listener in self._listeners:
            listener.end(session, last_step)

    def wait(self) -> None:
        """Waits until a checkpoint that is being written is complete; raises the write's error."""
        if self._write is not None:
            self._write.wait()

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Surrounds a training: if it fails, the checkpoint that is being written is completed."""
        try:
            yield
        except BaseException as first:
            try:
                self.wait()
            except Exception as error:
                if error is not first:
                    tf.logging.warning("Could not write %s: %s", self._write.what, error)
            raise

    def _save(self, session, step):
        """Saves the variables; returns whether a listener asks to end training."""
        # A kill during the write would destroy the state that training resumes from.
        if step == self._restored_step:
            return False
        self.wait()
        self._check_finite(session, step)
        for listener in self._listeners:
            listener.before_save(session, step)
        tf.logging.info("Saving checkpoints for %d into %s.", step, self._save_path)
        if self._snapshot.is_possible and not any(_reads(each, step) for each in self._listeners):
            self._snapshot.take(session)
            self._write = PendingWrite(
                self._model_dir,
                f"the checkpoint of step {step}",
                lambda: self._write_files(session, step, self._snapshot),
                self._log_every_secs,
            )
        else:
            self._write_files(session, step)
        # All listeners are called, whatever the first one returns.
        return any([listener.after_save(session, step) for listener in self._listeners])

    def _check_finite(self, session, step):
        bad = self._finite.names_of_bad(session)
        if bad:
            raise errors.NonFiniteWeightsError(
                f"At step {step} these variables are not finite: {listed(bad)}. No checkpoint "
                f"of this step was written. {checkpoints.last_written(self._model_dir)} Lower the "
                "learning rate, lengthen the warm-up, or look for bad records.",
                int(step),
            )

    def _write_files(self, session, step, snapshot=None):
        """Writes a checkpoint of the session's variables, or of a snapshot, which it releases."""
        saver = self._get_saver()
        try:
            with self._without_leftovers():
                if saves_in_its_own_way(saver):
                    self._save_in_its_own_way(saver, session, step)
                else:
                    self._save_with(saver, session, step, snapshot)
        finally:
            if snapshot is not None:
                snapshot.release(session)
        status = tf.SessionLog(status=tf.SessionLog.CHECKPOINT, checkpoint_path=self._save_path)
        self._summary_writer.add_session_log(status, step)

    def _save_with(self, saver, session, step, snapshot):
        """Writes a checkpoint with a saver's tensors, and then does what the saver would do."""
        settings = saver.as_saver_def()
        # No public name of a saver says how it writes the number.
        number = f"{step:08d}" if saver._pad_step_number else str(step)
        prefix = f"{self._save_path}-{number}"
        try:
            # The .meta file comes first. The index, which makes a checkpoint complete, is the last
            # file.
            if self._meta_graph is not None:
                file_io.atomic_write_string_to_file(f"{prefix}.meta", self._meta_graph)
            if snapshot is not None:
                snapshot.run_write(session, prefix)
            else:
                session.run(settings.save_tensor_name, {settings.filename_tensor_name: prefix})
            sync(prefix)
        except (OSError, tf.errors.OpError):
            self._delete_unfinished(saver, prefix)
            raise
        kept = self._kept.keep(prefix, saver.last_checkpoints, settings)
        if settings.max_to_keep:  # or else a saver does not remember any
            checkpoints.remember(saver, kept)

    def _save_in_its_own_way(self, saver, session, step):
        # The method of a TF1 program's own saver may not have the argument.
        parameters = inspect.signature(saver.save).parameters
        takes_it = "write_meta_graph" in parameters or any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
        )
        options = {"write_meta_graph": self._meta_graph is not None} if takes_it else {}
        syncing = _SyncingSession(session)
        try:
            prefix = saver.save(syncing, self._save_path, global_step=step, **options)
            if prefix:  # written in some other way than by a session
                sync(prefix)
        except (OSError, tf.errors.OpError):
            self._delete_unfinished(saver, f"{self._save_path}-{step}")
            raise

    def _delete_unfinished(self, saver, prefix):
        known = getattr(saver, "last_checkpoints", None)
        # A step that is written again may have a good checkpoint.
        if isinstance(known, list) and prefix not in known:
            with contextlib.suppress(OSError, tf.errors.OpError):
                delete(prefix)

    @contextlib.contextmanager
    def _without_leftovers(self):
        """Surrounds a write, and removes the unfinished files if it fails."""
        try:
            yield
        except (OSError, tf.errors.OpError):
            with contextlib.suppress(OSError, tf.errors.OpError):
                remove_unwritten(self._model_dir)
            raise


class _SyncingSession(session_lib.SessionInterface):
    """Passes all on to a session; what a saver has written is brought to the disk at once, before
    the saver names it and deletes an earlier checkpoint."""

    def __init__(self, session):
        self._session = session

    @property
    def graph(self) -> tf.Graph:
        return self._session.graph

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run(self, *args, **kwargs):
        result = self._session.run(*args, **kwargs)
        if isinstance(result, bytes | str):
            sync(os.fsdecode(result))
        return result


def _reads(listener, step):
    """Returns whether a listener's `after_save` may read the checkpoint: it does not if it is
    inherited, or if the listener's `reads_checkpoint(step)` says so."""
    # The function may be the class's, or be set on the listener itself.
    function = getattr(listener.after_save, "__func__", listener.after_save)
    if function is tf.train.CheckpointSaverListener.after_save:
        return False
    reads = getattr(listener, "reads_checkpoint", None)
    return reads is None or reads(int(step))


class FiniteCheck:
    """Finds variables that are not finite; it must be made before the graph is finalized."""

    def __init__(self):
        graph = tf.get_default_graph()
        variables = [v for v in tf.global_variables() if v.dtype.base_dtype.is_floating]
        # The sum of squares is only finite if all values are. It is not if a square overflows.
        self._squares = [
            (variable, tf.raw_ops.L2Loss(t=graph.as_graph_element(variable)))
            for variable in variables
        ]

    def begin(self, session: tf.Session) -> None:
        """Leaves variables out that start with a value that is not finite, if they are not
        trained."""
        # A model_fn may make such variables, as a running minimum that starts at infinity. A slot
        # of an optimizer, which is named after its weight, is not left out.
        trained = {variable.op.name for variable in tf.trainable_variables()}
        others = [
            (variable, square)
            for variable, square in self._squares
            if variable.op.name not in trained
            and variable.op.name.rpartition("/")[0] not in trained
        ]
        left_out = set(_names_of_bad(session, others))
        self._squares = [pair for pair in self._squares if pair[0].op.name not in left_out]

    def names_of_bad(self, session: tf.Session) -> list[str]:
        """Returns the names of the variables with a value that is not finite."""
        return _names_of_bad(session, self._squares)


def _names_of_bad(session, squares):
    sums = session.run([square for _, square in squares])
    return [
        variable.op.name
        for (variable, _), value in zip(squares, sums, strict=True)
        # A sum of squares may overflow although all values are finite, so the values decide.
        if not np.isfinite(value) and not np.isfinite(session.run(variable)).all()
    ]


def sync(prefix: str) -> None:
    """Brings the files of a checkpoint, if they are on this machine, to the disk, so that they
    survive a power loss."""
    folder = os.path.dirname(prefix) or "."
    if os.path.isdir(folder):
        for path in [*sorted(glob.glob(glob.escape(prefix) + ".*")), folder]:
            disk_files.sync(path)
