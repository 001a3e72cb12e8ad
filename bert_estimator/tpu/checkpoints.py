"""Which checkpoint to start from, whether it is whole, and when to write the next one.

A checkpoint is a `tf.train.Saver` one: `model.ckpt-N.index`, `.data-*`, `.meta`, and the state file
`checkpoint` that lists them. TensorFlow stores a checksum with every tensor, so a checkpoint cut
short (by a kill, a full disk) is found by reading it.
"""

import os
import re
import shutil

import tensorflow.compat.v1 as tf

from bert_estimator.tpu import errors

BASENAME = "model.ckpt"


def newest_whole(model_dir):
    """Returns the path prefix of the newest whole checkpoint in a directory, or None.

    "Newest" goes by the state file `checkpoint`, the last one it lists first, so that a user who
    edits it to go back is obeyed; without one, by step. A checkpoint that is not whole is passed
    over with a warning.
    """
    for prefix in _candidates(model_dir):
        problem = damage(prefix)
        if problem is None:
            return prefix
        tf.logging.warning(
            "Checkpoint %s is not whole and is passed over for the one before it: %s",
            prefix,
            problem,
        )
    return None


def damage(prefix):
    """Returns None if every tensor of a checkpoint can be read, else what is wrong with it."""
    try:
        reader = tf.train.load_checkpoint(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, ValueError) as error:
        return str(error).splitlines()[0]
    return None


def global_step_of(prefix):
    """Returns the global step stored in a checkpoint; 0 if it has none, or `prefix` is None."""
    if prefix is None:
        return 0
    reader = tf.train.load_checkpoint(prefix)
    if not reader.has_tensor(tf.GraphKeys.GLOBAL_STEP):
        return 0
    return int(reader.get_tensor(tf.GraphKeys.GLOBAL_STEP))


def check_restorable(prefix, variables):
    """Checks before any restore that a checkpoint holds all variables, in their shapes.

    Raises:
      ValueError: names every variable that is missing or has another shape.
    """
    shapes = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    problems = []
    for variable in variables:
        name, shape = variable.op.name, variable.shape.as_list()
        if name not in shapes:
            problems.append(f"{name}: not in the checkpoint")
        elif shapes[name] != shape:
            problems.append(f"{name}: {shape} in the model, {shapes[name]} in the checkpoint")
    if problems:
        raise ValueError(
            f"Checkpoint {prefix} does not fit this model:\n  "
            + "\n  ".join(problems)
            + "\nUse the configuration it was written with, or another model_dir."
        )


def remove_leftovers(model_dir):
    """Removes what a killed process left of a checkpoint that it was writing."""
    for name in tf.io.gfile.listdir(model_dir) if tf.io.gfile.isdir(model_dir) else ():
        path = os.path.join(model_dir, name.rstrip("/"))
        if re.fullmatch(rf"{BASENAME}-\d+_temp", os.path.basename(path)) and os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        elif re.fullmatch(rf"{BASENAME}-\d+\..*\.tempstate\d+", os.path.basename(path)):
            tf.io.gfile.remove(path)


def make_saver(config):
    """Returns the graph's saver, making one with upstream's settings where there is none."""
    savers = tf.get_collection(tf.GraphKeys.SAVERS)
    if savers:
        return savers[0]
    saver = tf.train.Saver(
        sharded=True,
        max_to_keep=config.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
        defer_build=True,
        save_relative_paths=True,
    )
    tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
    return saver


class CheckpointSaver(tf.train.CheckpointSaverHook):
    """TensorFlow's saver hook, which never puts anything worse in a good checkpoint's place.

    - A weight that is not finite is refused, so the last good checkpoint stays.
    - The checkpoint that training was restored from is not written again: it is on disk already,
      and a kill during that write would cost the very state that training resumes from.
    """

    def __init__(self, config, scaffold, restored_step, listeners):
        super().__init__(
            config.model_dir,
            save_secs=config.save_checkpoints_secs,
            save_steps=config.save_checkpoints_steps,
            scaffold=scaffold,
            listeners=listeners,
            save_graph_def=config.checkpoint_save_graph_def,
        )
        self._restored_step = restored_step

    def begin(self):
        super().begin()
        self._finite = FiniteCheck()

    def _save(self, session, step):
        if step == self._restored_step:
            return False
        bad = self._finite.names_of_bad(session)
        if bad:
            raise errors.NonFiniteWeightsError(
                f"At step {step} these variables are not finite: {', '.join(bad)}. No checkpoint "
                "was written; the last one before it is good. Lower the learning rate, lengthen "
                "the warm-up, or look for bad records."
            )
        return super()._save(session, step)


class FiniteCheck:
    """Finds variables that are not finite. Made before the graph is finalized."""

    _MOST_NAMES = 10

    def __init__(self):
        self._variables = [v for v in tf.global_variables() if v.dtype.base_dtype.is_floating]
        self._finite = [tf.reduce_all(tf.math.is_finite(v)) for v in self._variables]

    def names_of_bad(self, session):
        """Returns the names of the variables with a value that is not finite, the first ten."""
        flags = session.run(self._finite)
        names = [v.op.name for v, ok in zip(self._variables, flags, strict=True) if not ok]
        return names[: self._MOST_NAMES] + ["..."] * (len(names) > self._MOST_NAMES)


def remember_earlier(saver, model_dir):
    """Tells a saver which checkpoints a restarted training has: else they are never deleted."""
    state = tf.train.get_checkpoint_state(model_dir)
    paths = state.all_model_checkpoint_paths if state is not None else []
    indices = [(path, path + ".index") for path in paths]
    saver.set_last_checkpoints_with_time(
        [
            (path, tf.io.gfile.stat(index).mtime_nsec / 1e9)
            for path, index in indices
            if tf.io.gfile.exists(index)
        ]
    )


def _candidates(model_dir):
    state = tf.train.get_checkpoint_state(model_dir)
    if state is not None:
        listed = [state.model_checkpoint_path, *reversed(state.all_model_checkpoint_paths)]
        return list(dict.fromkeys(listed))
    indices = tf.io.gfile.glob(os.path.join(model_dir, f"{BASENAME}-*.index"))
    prefixes = [path[: -len(".index")] for path in indices]
    return sorted(prefixes, key=lambda p: int(p.rsplit("-", 1)[1]), reverse=True)
