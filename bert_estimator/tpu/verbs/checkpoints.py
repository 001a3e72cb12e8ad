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

# A file system that cannot be read now does not make a checkpoint a damaged one.
_OTHER_TROUBLE = (
    tf.errors.PermissionDeniedError,
    tf.errors.UnauthenticatedError,
    tf.errors.UnavailableError,
    tf.errors.ResourceExhaustedError,
    tf.errors.DeadlineExceededError,
)

# What `_fingerprint` said of the checkpoints found whole: one run asks several times, and reading
# every tensor of a large network takes as long as restoring it.
_found_whole = set()


def newest_whole(model_dir):
    """Returns the path prefix of the newest whole checkpoint in a directory, or None.

    "Newest" is the one that the state file `checkpoint` names, so that a user who edits it to go
    back is obeyed; without such a file, the one of the highest step. A checkpoint that is not
    whole is passed over, with a warning, for the one before it.

    Raises:
      NoWholeCheckpointError: and one of them was of a later step than 0: to start over in silence
        would be a training lost.
    """
    problems, whole = {}, None
    for prefix in _candidates(model_dir):
        problem = damage(prefix)
        if problem is None:
            whole = prefix
            break
        problems[prefix] = problem
    if whole is None and any(map(_has_progress, problems)):
        listed = "".join(f"\n  {prefix}: {problem}" for prefix, problem in problems.items())
        raise errors.NoWholeCheckpointError(
            f"No checkpoint in {model_dir} is whole:{listed}\nPut back a copy of one, or remove "
            "them, or use another model_dir, to start over from step 0."
        )
    for prefix, problem in problems.items():
        tf.logging.warning(
            "Checkpoint %s is not whole and is passed over for %s: %s",
            prefix,
            whole or "initial values, as there is no other",
            problem,
        )
    return whole


def last_written(model_dir):
    """Returns, as a sentence for an error, which checkpoint there is to go on from."""
    path = next((each for each in _candidates(model_dir) if damage(each) is None), None)
    if path is None:
        return f"There is no checkpoint in {model_dir} to go on from."
    return f"The last checkpoint, {path}, was written before."


def to_read(model_dir, checkpoint_path, doing):
    """Returns the path prefix of the checkpoint to evaluate or to predict with.

    Args:
      checkpoint_path: what the caller asked for; None: the newest whole one.
      doing: "evaluating" or the like, for the warning where there is none.

    Returns:
      None where there is none: then variables have their initial values.

    Raises:
      ValueError: there is no such checkpoint.
    """
    path = given_or_newest(model_dir, checkpoint_path)
    if path is None:
        tf.logging.warning(
            "There is no trained model in %s: %s newly initialized variables.", model_dir, doing
        )
    return path


def given_or_newest(model_dir, checkpoint_path):
    """Returns the checkpoint that the caller asked for, or else the newest whole one, or None.

    Raises:
      ValueError: there is no such checkpoint.
    """
    check_given(checkpoint_path)
    return checkpoint_path or newest_whole(model_dir)


def check_given(checkpoint_path):
    """Raises ValueError where the caller asked for a checkpoint that is not there."""
    if checkpoint_path and not tf.io.gfile.exists(checkpoint_path + ".index"):
        raise ValueError(f"checkpoint_path={checkpoint_path!r}: there is no such checkpoint")


def damage(prefix):
    """Returns None if every tensor of a checkpoint can be read, else what is wrong with it.

    A whole one is read once in a process, unless its files change.
    """
    try:
        fingerprint = _fingerprint(prefix)
        if fingerprint in _found_whole:
            return None
        reader = tf.train.load_checkpoint(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except _OTHER_TROUBLE:
        raise
    # Some of TensorFlow's errors arrive as Python's: a short read as an IndexError.
    except (tf.errors.OpError, FileNotFoundError, ValueError, LookupError, RuntimeError) as error:
        return str(error).splitlines()[0]
    if fingerprint is not None:
        _found_whole.add(fingerprint)
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
        name, shape = _name_and_shape(variable)
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


def ensure_saver(scaffold, config):
    """Adds a saver with upstream's settings to a graph for which its author made none.

    Returns:
      Whether it did. Then a checkpoint must hold all variables; what another saver restores is
      its author's business.
    """
    if scaffold.saver is not None or tf.get_collection(tf.GraphKeys.SAVERS):
        return False
    saver = tf.train.Saver(
        sharded=True,
        max_to_keep=config.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
        defer_build=True,
        save_relative_paths=True,
    )
    tf.add_to_collection(tf.GraphKeys.SAVERS, saver)
    return True


class CheckpointSaver(tf.train.CheckpointSaverHook):
    """TensorFlow's saver hook, which never puts anything worse in a good checkpoint's place.

    - A weight that is not finite is refused, so the last good checkpoint stays.
    - The checkpoint that training was restored from is not written again: it is on disk already,
      and a kill during that write would cost the very state that training resumes from.

    Args:
      restored_step: the step of that checkpoint, or None.
      finite: a `FiniteCheck`.
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
                f"of it was written. {last_written(self._model_dir)} Lower the learning rate, "
                "lengthen the warm-up, or look for bad records."
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
    state = _state(model_dir)
    paths = state.all_model_checkpoint_paths if state is not None else []
    indices = [(path, path + ".index") for path in paths]
    saver.set_last_checkpoints_with_time(
        [
            (path, tf.io.gfile.stat(index).mtime_nsec / 1e9)
            for path, index in indices
            if tf.io.gfile.exists(index)
        ]
    )


def _fingerprint(prefix):
    """Returns what changes when a checkpoint's files do; None on a file system not the machine's.

    TensorFlow's own `stat` knows times to the second only.
    """
    folder, name = os.path.split(prefix)
    if not os.path.isdir(folder or "."):
        return None
    names = (f"{name}.index", f"{name}.data-")
    stats = [(f.name, f.stat()) for f in os.scandir(folder or ".") if f.name.startswith(names)]
    return prefix, *sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def _state(model_dir):
    """Returns what the state file says, or None if there is none that can be read."""
    try:
        return tf.train.get_checkpoint_state(model_dir)
    except ValueError:  # an empty file, as a full disk leaves it
        tf.logging.warning("%s is empty and is ignored", os.path.join(model_dir, "checkpoint"))
        return None


def _candidates(model_dir):
    """Returns the checkpoints to try, newest first: none after the one the state file names."""
    names = tf.io.gfile.listdir(model_dir) if tf.io.gfile.isdir(model_dir) else ()
    found = [re.fullmatch(rf"{BASENAME}-(\d+)\.index", name) for name in names]
    steps = sorted((int(match[1]) for match in found if match), reverse=True)
    state = _state(model_dir)
    first = []
    if state is not None:
        first = [state.model_checkpoint_path]
        named = re.fullmatch(rf"{BASENAME}-(\d+)", os.path.basename(first[0]))
        steps = [step for step in steps if named and step < int(named[1])]
    return first + [os.path.join(model_dir, f"{BASENAME}-{step}") for step in steps]


def _has_progress(prefix):
    """Whether there are files of a checkpoint, of another step than 0."""
    folder, name = os.path.split(prefix)
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else ()
    return name != f"{BASENAME}-0" and any(each.startswith(f"{name}.") for each in names)


def _name_and_shape(variable):
    """Returns the name and shape a checkpoint knows a variable by: a part's are the whole's."""
    part = variable._get_save_slice_info()
    if part is not None:
        return part.full_name, list(part.full_shape)
    return variable.op.name, variable.shape.as_list()
