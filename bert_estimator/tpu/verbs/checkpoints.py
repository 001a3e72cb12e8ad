"""Which checkpoint to start from, whether it is whole, and when to write the next one.

A checkpoint is a `tf.train.Saver` one: `model.ckpt-N.index`, `.data-*`, `.meta`, and the state file
`checkpoint` that lists them. TensorFlow stores a checksum with every tensor, so a checkpoint cut
short (by a kill, a full disk) is found by reading it.
"""

import collections
import os
import re
import shutil

import tensorflow.compat.v1 as tf

from bert_estimator.tpu import errors

BASENAME = "model.ckpt"
_STATE = "checkpoint"
_FILE = re.compile(r"((.+)-(\d+))\.(?:index|data-\d+-of-\d+)")

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


def newest_whole(model_dir, quiet=False):
    """Returns the path prefix of the newest complete checkpoint in a directory, or None.

    What lies in the directory decides, not what the state file `checkpoint` says: the checkpoint of
    the highest step all of whose tensors can be read. To go back to an earlier one, the user
    removes the later ones. A warning names each later checkpoint that is damaged, and the state
    file where it cannot be read or names another checkpoint.

    Args:
      quiet: whether the warnings are left out, by a caller who trains and evaluates nothing.

    Raises:
      NoWholeCheckpointError: all checkpoints are damaged, and one of them is of a later step than
        0. To start over in silence would be a training lost.
    """
    problems, whole = {}, None
    prefixes, doubt = _candidates(model_dir)
    for prefix in prefixes:
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
    if quiet:
        return whole
    instead = whole or "initial values, as there is no other"
    for prefix, problem in problems.items():
        tf.logging.warning(
            "Checkpoint %s is not whole and is passed over for %s: %s", prefix, instead, problem
        )
    if doubt:
        tf.logging.warning(
            "The state file %s %s. %s",
            os.path.join(model_dir, _STATE),
            doubt,
            f"The newest complete checkpoint beside it is used: {whole}"
            if whole
            else "No complete checkpoint lies beside it: variables have their initial values",
        )
    return whole


def last_written(model_dir):
    """Returns, as a sentence for an error, which checkpoint there is to go on from."""
    path = next((each for each in _candidates(model_dir)[0] if damage(each) is None), None)
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
        name, shape = name_and_shape(variable)
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
    """Tells a saver which checkpoints a restarted training has: else they are never deleted.

    They are those that the state file lists, and any later ones; all, if it cannot be read. Earlier
    ones that it does not list are kept for good (`keep_checkpoint_every_n_hours`).
    """
    state = _state(model_dir)
    paths = [p for p in reversed(_candidates(model_dir)[0]) if tf.io.gfile.exists(p + ".index")]
    if state is not None:
        names = {os.path.basename(path) for path in state.all_model_checkpoint_paths}
        listed = [number for number, p in enumerate(paths) if os.path.basename(p) in names]
        last = listed[-1] if listed else -1
        paths = [p for number, p in enumerate(paths) if number in listed or number > last]
    saver.set_last_checkpoints_with_time(
        [(path, tf.io.gfile.stat(path + ".index").mtime_nsec / 1e9) for path in paths]
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
    except ValueError:  # an empty file, as a full disk leaves it; or one that is not UTF-8
        return None


def _candidates(model_dir):
    """Returns the checkpoints of a directory, damaged ones included, and what the state file lacks.

    Returns:
      (path prefixes, of the latest step first; what is wrong with the state file, or None).
    """
    names = tf.io.gfile.listdir(model_dir) if tf.io.gfile.isdir(model_dir) else ()
    steps = collections.defaultdict(dict)  # what comes before the step -> {checkpoint's name: step}
    for match in filter(None, map(_FILE.fullmatch, names)):
        steps[match[2]][match[1]] = int(match[3])
    state = _state(model_dir)
    named = os.path.basename(state.model_checkpoint_path) if state is not None else None
    base = named and re.sub(r"-\d+$", "", named)
    if f"{named}.index" not in names:
        base = BASENAME
    elif named not in steps[base]:  # a name without a step
        return [os.path.join(model_dir, named)], None
    of_bases = [steps[base]] if base in steps else steps.values()
    numbers = {name: step for of_base in of_bases for name, step in of_base.items()}
    ordered = sorted(numbers, key=numbers.get, reverse=True)
    prefixes = [os.path.join(model_dir, name) for name in ordered]
    doubt = None
    if state is None and _STATE in names:
        doubt = "cannot be read"
    elif state is not None and named not in numbers:
        if not prefixes and _is_there(state.model_checkpoint_path):  # of a directory that has none
            return [state.model_checkpoint_path], None
        doubt = f"names {named}, which is not there"
    elif state is not None and named != ordered[0]:
        doubt = f"names {named}, but {ordered[0]} is later"
    return prefixes, doubt


def _is_there(prefix):
    """Whether there is a checkpoint of this path, which may be any string."""
    try:
        return tf.io.gfile.exists(prefix + ".index")
    except (tf.errors.OpError, ValueError):
        return False


def _has_progress(prefix):
    """Whether there are files of a checkpoint, of another step than 0."""
    folder, name = os.path.split(prefix)
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else ()
    return not name.endswith("-0") and any(each.startswith(f"{name}.") for each in names)


def name_and_shape(variable):
    """Returns the name and shape a checkpoint knows a variable by: a part's are the whole's."""
    part = variable._get_save_slice_info()
    if part is not None:
        return part.full_name, list(part.full_shape)
    return variable.op.name, variable.shape.as_list()
