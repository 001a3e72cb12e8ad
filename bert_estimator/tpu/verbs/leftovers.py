"""Removes what kills leave in a model_dir: checkpoints half written, checkpoints half deleted.

A saver deletes a checkpoint file by file, and does not say before what it deletes. After a kill,
the files that are left look like a damaged checkpoint, or like a checkpoint that is to be kept.
So an empty file, `model.ckpt-N.deleting.tmp`, marks a checkpoint from before the state file drops
it until its last file is gone.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator

import tensorflow.compat.v1 as tf
from tensorflow.python.lib.io import file_io

from bert_estimator.tpu.verbs import checkpoints

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
    """Removes what is left of checkpoints that a saver was deleting when it was killed.

    These are checkpoints with a mark, and data files without an index, as the savers of TensorFlow
    leave them. A checkpoint that the state file lists stays, and so does a checkpoint as new as
    the newest complete one, or newer. The caller must hold the lock of the directory.

    Args:
      model_dir: the directory.
      newest: the path prefix of its newest complete checkpoint; None if it does not have one. Then
        nothing is removed: damaged checkpoints must not disappear.
    """
    matched = _OF_CHECKPOINT.fullmatch(os.path.basename(newest or ""))
    if matched is None or matched[0] != matched[1]:  # It is not a name that this project gives.
        return
    last_step = int(matched[2])
    kinds = {}  # name of a checkpoint before the last step -> its files: {name: kind}
    for file in filter(None, map(_OF_CHECKPOINT.fullmatch, _names(model_dir))):
        if int(file[2]) < last_step:
            kinds.setdefault(file[1], {})[file[0]] = file[3]  # None: a file of format V1
    listed = checkpoints.listed_names(model_dir)
    for checkpoint, files in kinds.items():
        mark, found = checkpoint + _MARK, set(files.values())
        cannot_be_restored = not found & {None, "index"} and any("data" in kind for kind in found)
        names = {mark} & files.keys()  # alone, if a kill came before the deletion was decided
        if checkpoint not in listed and (names or cannot_be_restored):
            names = files
        for name in sorted(names, key=lambda name: name == mark):  # The mark is the last to go.
            file_io.delete_file(os.path.join(model_dir, name))


@contextlib.contextmanager
def marking(saver: tf.train.Saver) -> Iterator["Marks"]:
    """Gives the marks of the checkpoints that a saver deletes in the `with` block.

    The marks are removed at the end of the block, if it does not raise an error.
    """
    marks = Marks(saver)
    yield marks
    marks.remove()


class Marks:
    """The marks of checkpoints that a saver is about to delete."""

    def __init__(self, saver):
        self._saver, self._paths = saver, []

    def add(self, newest: str) -> None:
        """Marks what the saver deletes when it has written a checkpoint.

        Args:
          newest: the path prefix of the checkpoint. The saver has not recorded it yet.
        """
        saver = self._saver
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
