"""Writes checkpoints: only finite weights, durably, and without leftovers.

A saver deletes a checkpoint file by file, and does not say before what it deletes. After a kill,
the files that are left look like a damaged checkpoint, or like a checkpoint that is to be kept. So
an empty file, `model.ckpt-N.deleting.tmp`, marks a checkpoint from before the state file drops it
until its last file is gone.
"""

import contextlib
import glob
import inspect
import os
import re
import shutil
from collections.abc import Iterator

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.saver_pb2 import SaverDef
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.client.session import SessionInterface
from tensorflow.python.framework import meta_graph
from tensorflow.python.lib.io import file_io

from bert_estimator.system import disk_files
from bert_estimator.system.errors import listed
from bert_estimator.tpu import errors, summary
from bert_estimator.tpu.verbs import checkpoints
from bert_estimator.tpu.verbs.snapshot import PendingWrite

# TensorFlow writes these first, and then renames them.
_FOLDER = re.compile(rf"{checkpoints.BASENAME}-\d+_temp")
_FILE = re.compile(
    rf"{checkpoints.BASENAME}-\d+\..*\.tempstate\d+|"
    rf"({checkpoints.BASENAME}-\d+\.meta|graph\.pbtxt|checkpoint)\.tmp[0-9a-f]+"
)

_MARK = ".deleting.tmp"  # no such file is uploaded to remote storage
_OF_CHECKPOINT = re.compile(
    rf"({checkpoints.BASENAME}-(\d+))(?:\.(index|meta|data-\d+-of-\d+|deleting\.tmp)|-\d+-of-\d+)?"
)


def remove_unwritten(model_dir: str) -> None:
    """Removes the files of a checkpoint that a kill or a full disk kept from being written."""
    for name in _names(model_dir):
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
    last_step = int(matched[2])
    kinds = {}  # name of a checkpoint before the last step -> its files: {name: kind}
    for file in filter(None, map(_OF_CHECKPOINT.fullmatch, _names(model_dir))):
        # A saver deletes only what is older than its newest checkpoint, so newer files stay.
        if int(file[2]) < last_step:
            kinds.setdefault(file[1], {})[file[0]] = file[3]  # None: a file of format V1
    listed = checkpoints.listed_names(model_dir)
    for checkpoint, files in kinds.items():
        mark, found = checkpoint + _MARK, set(files.values())
        # TensorFlow's own savers, which do not set marks, leave data files without an index.
        cannot_be_restored = not found & {None, "index"} and any("data" in kind for kind in found)
        names = {mark} & files.keys()  # alone, if a kill came before the deletion was decided
        if checkpoint not in listed and (names or cannot_be_restored):
            names = files
        for name in sorted(names, key=lambda name: name == mark):  # The mark is the last to go.
            file_io.delete_file(os.path.join(model_dir, name))


@contextlib.contextmanager
def marking(saver: tf.train.Saver) -> Iterator["Marks"]:
    """Gives the `Marks` of a saver, and removes them after the block, unless it fails."""
    marks = Marks(saver)
    yield marks
    marks.remove()


class Marks:
    """Holds the marks of checkpoints that a saver is about to delete."""

    def __init__(self, saver):
        self._saver, self._paths = saver, []

    def add(self, newest: str) -> None:
        """Marks what the saver deletes when it has written the checkpoint of this path prefix."""
        saver = self._saver
        if not isinstance(getattr(saver, "_last_checkpoints", None), list):
            return  # A program's own saver, which wraps one, does not say what it deletes.
        # The saver has not recorded the newest checkpoint yet, unless it saves it again.
        earlier = [entry for entry in saver._last_checkpoints if entry[0] != newest]
        due = list(saver._checkpoints_to_be_deleted)
        if 0 < (saver.saver_def.max_to_keep or 0) <= len(earlier):
            due.append(earlier[0])
        # The saver keeps a checkpoint every few hours, and deletes one at a time.
        for prefix, secs in due[:1]:
            if secs <= saver._next_checkpoint_time:
                self._paths.append(prefix + _MARK)
                file_io.write_string_to_file(self._paths[-1], "")

    def remove(self) -> None:
        """Removes the marks."""
        while self._paths:
            file_io.delete_file(self._paths.pop())


def _names(model_dir):
    names = tf.io.gfile.listdir(model_dir) if tf.io.gfile.isdir(model_dir) else ()
    return [name.rstrip("/") for name in names]


_NEVER_HOURS = 10_000  # TensorFlow's default of keep_checkpoint_every_n_hours

# The settings of a saver of which nothing else is known. It has no operations.
_KEEPS_ALL = SaverDef(
    version=SaverDef.V2,
    max_to_keep=0,
    filename_tensor_name="unknown",
    save_tensor_name="unknown",
    restore_op_name="unknown",
)


def complete_save(model_dir: str | None, newest: str | None) -> None:
    """Does what a kill kept a saver from doing after it had written the newest checkpoint: the
    state file names it, and the oldest checkpoint is deleted if the saver keeps fewer."""
    if newest is None or checkpoints.is_named(model_dir, newest):
        return
    # Nothing is deleted if we do not know what the saver would keep.
    settings = _settings_of_saver(newest)
    deletes = settings is not None and checkpoints.has_state(model_dir)
    with tf.Graph().as_default():
        saver = tf.train.Saver(saver_def=settings if deletes else _KEEPS_ALL)
        checkpoints.remember_earlier(saver, model_dir)
        sync(newest)
        with marking(saver) as marks:
            marks.add(newest)
            saver._RecordLastCheckpoint(newest)
            checkpoint_management.update_checkpoint_state_internal(
                model_dir, newest, saver.last_checkpoints, save_relative_paths=True
            )
            saver._MaybeDeleteOldCheckpoints()


def _settings_of_saver(prefix):
    """Returns the `SaverDef` in a checkpoint's .meta file, if it says which checkpoints to keep."""
    try:
        settings = meta_graph.read_meta_graph_file(f"{prefix}.meta").saver_def
    except (OSError, ValueError, DecodeError, tf.errors.OpError):
        return None
    is_whole = settings.save_tensor_name and settings.restore_op_name
    hours = settings.keep_checkpoint_every_n_hours
    # Which checkpoints it keeps every few hours, only the killed process knew.
    return settings if is_whole and hours >= _NEVER_HOURS else None


class CheckpointSaver(tf.train.CheckpointSaverHook):
    """Saves like TensorFlow's saver hook, but keeps good checkpoints safe.

    - If a weight is not finite, it raises an error, so that the last good checkpoint stays.
    - The files of a checkpoint are on the disk before the state file names it, and before an
      earlier checkpoint is deleted. So a complete checkpoint survives a power loss.
    - If a checkpoint cannot be written, as on a full disk, nothing is left of it.
    - If the snapshot is possible, a thread writes the checkpoint while training goes on. Training
      waits for the thread before it saves again, and at its end. If a listener may read the
      checkpoint, training waits. An error of the write is raised before the next loop.
    """

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
            with self._without_leftovers(None):
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
        saver = _DurableSaver(self._get_saver(), snapshot)
        try:
            with self._without_leftovers(step):
                saver.save(session, self._save_path, step, self._meta_graph)
        finally:
            if snapshot is not None:
                snapshot.release(session)
        status = tf.SessionLog(status=tf.SessionLog.CHECKPOINT, checkpoint_path=self._save_path)
        self._summary_writer.add_session_log(status, step)

    @contextlib.contextmanager
    def _without_leftovers(self, step):
        """Surrounds a write, and cleans up if it fails; `step` is None if it is not a
        checkpoint's."""
        try:
            yield
        except (OSError, tf.errors.OpError):
            with contextlib.suppress(OSError, tf.errors.OpError):
                self._remove_unfinished(step)
            raise

    def _remove_unfinished(self, step):
        """Removes what was written of a checkpoint that the state file does not name."""
        remove_unwritten(self._model_dir)
        prefix = f"{self._save_path}-{step}"
        known = getattr(self._get_saver(), "last_checkpoints", None)
        if step is not None and isinstance(known, list) and prefix not in known:
            for path in _files_of(prefix):
                os.remove(path)


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


class _DurableSaver:
    """Wraps a `tf.train.Saver`: a checkpoint is on the disk before the state file names it."""

    def __init__(self, saver, snapshot):
        self._saver, self._snapshot = saver, snapshot

    def save(self, session, path, global_step, meta_graph):
        """Writes a checkpoint, with a serialized `MetaGraphDef`, if it is not None."""
        # The .meta file comes first. The index, which makes a checkpoint complete, is the last
        # file.
        if meta_graph is not None:
            # A program's own saver may have public names alone, or have any name, as mocks do.
            is_padded = getattr(self._saver, "_pad_step_number", False) is True
            number = f"{global_step:08d}" if is_padded else str(global_step)
            file_io.atomic_write_string_to_file(f"{path}-{number}.meta", meta_graph)
        # The method of a TF1 program's own saver may not have the argument.
        takes_it = _takes_write_meta_graph(self._saver.save)
        without_meta = {"write_meta_graph": False} if takes_it else {}
        # A thread of its own does not have a graph, and a saver without a graph runs eagerly.
        with session.graph.as_default(), marking(self._saver) as marks:
            prefix = self._saver.save(
                _SyncingSession(session, self._snapshot, marks),
                path,
                global_step=global_step,
                **without_meta,
            )
        if prefix:
            sync(prefix)


def _takes_write_meta_graph(save):
    parameters = inspect.signature(save).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    return "write_meta_graph" in parameters or inspect.Parameter.VAR_KEYWORD in kinds


class _SyncingSession(SessionInterface):
    """Wraps the session for a saver: the saver's files reach the disk as soon as they are
    written."""

    def __init__(self, session, snapshot, marks):
        self._session, self._snapshot, self._marks = session, snapshot, marks

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        if self._snapshot is not None:
            result = self._snapshot.run_write(self._session, fetches, feed_dict)
        else:
            result = self._session.run(fetches, feed_dict, options, run_metadata)
        # The saver has written the files. It names them in the state file next, and then deletes an
        # earlier checkpoint, which is marked here.
        if isinstance(result, bytes | str):
            prefix = os.fsdecode(result)
            sync(prefix)
            self._marks.add(prefix)
        return result

    def as_default(self):
        return self._session.as_default()

    @property
    def graph(self) -> tf.Graph:
        return self._session.graph

    def __getattr__(self, name):
        return getattr(self._session, name)


def sync(prefix: str) -> None:
    """Brings the files of a checkpoint, if they are on this machine, to the disk, so that they
    survive a power loss."""
    folder = os.path.dirname(prefix) or "."
    if os.path.isdir(folder):
        for path in [*sorted(_files_of(prefix)), folder]:
            disk_files.sync(path)


def _files_of(prefix):
    return glob.glob(glob.escape(prefix) + ".*")
