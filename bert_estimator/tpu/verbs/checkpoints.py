"""Finds the checkpoint to start from, and checks that it is complete.

`tf.train.Saver` writes a checkpoint as the files `model.ckpt-N.index`, `.data-*` and `.meta`, and
lists the checkpoints in the state file `checkpoint`. It stores a checksum with every tensor. So
reading a checkpoint shows whether it was cut short, by a kill or a full disk.
"""

import collections
import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2
from google.protobuf import text_format
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph
from tensorflow.python.checkpoint import graph_view
from tensorflow.python.lib.io import file_io
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

from bert_estimator.system.errors import listed
from bert_estimator.system.paths import is_remote
from bert_estimator.tpu import errors
from bert_estimator.tpu.verbs import snapshot

BASENAME = "model.ckpt"
_STATE = "checkpoint"
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"  # the tensor that describes a tf.train.Checkpoint
_FILE = re.compile(r"((.+)-(\d+))\.(?:index|data-\d+-of-\d+)")

# These errors mean that the file system cannot be read now, not that a checkpoint is damaged.
_OTHER_TROUBLE = (
    tf.errors.PermissionDeniedError,
    tf.errors.UnauthenticatedError,
    tf.errors.UnavailableError,
    tf.errors.ResourceExhaustedError,
    tf.errors.DeadlineExceededError,
)

# What was read of checkpoints, by their `_fingerprint`s: the damage (or None), and the global step.
# A run checks a checkpoint several times, and an evaluator every second. Reading all tensors of a
# large network takes as long as restoring it.
_damages: dict[tuple, str | None] = {}
_steps: dict[tuple, int] = {}

_warnings: set[str] = set()  # of this process


def newest_whole(model_dir: str | None, quiet: bool = False) -> str | None:
    """Returns the path prefix of the newest complete checkpoint in a directory, or None, and warns
    of what is wrong with later ones and with the state file, unless `quiet`."""
    # This process may be writing a checkpoint there.
    snapshot.wait_for(model_dir)
    problems, whole = {}, None
    prefixes, doubt = _candidates(model_dir)
    # The state file does not decide: after a kill it may be older than the files. To go back to an
    # earlier checkpoint, the user removes the later ones.
    for prefix in prefixes:
        problem = damage(prefix)
        if problem is None:
            whole = prefix
            break
        problems[prefix] = problem
    # Training must not start over in silence.
    if whole is None and any(map(_has_progress, problems)):
        reasons = "".join(f"\n  {prefix}: {problem}" for prefix, problem in problems.items())
        raise errors.NoWholeCheckpointError(
            f"No checkpoint in {model_dir} is whole:{reasons}\nPut back a copy of one, or remove "
            "them, or use another model_dir, to start over from step 0."
        )
    # Callers that neither train nor evaluate do not warn.
    if quiet:
        return whole
    instead = f"{whole} is" if whole else "there is no other, so initial values are"
    for prefix, problem in problems.items():
        _warn_once(f"Checkpoint {prefix} is not complete and is skipped; {instead} used: {problem}")
    if doubt:
        used = (
            f"The newest complete checkpoint beside it is used: {whole}"
            if whole
            else "No complete checkpoint lies beside it: variables have their initial values"
        )
        _warn_once(f"The state file {os.path.join(model_dir, _STATE)} {doubt}. {used}")
    return whole


def _warn_once(text):
    """Logs a warning, unless this process has: several verbs in a row may find the same."""
    if text not in _warnings:
        _warnings.add(text)
        tf.logging.warning("%s", text)


def last_written(model_dir: str | None) -> str:
    """Returns a sentence for an error, which names the checkpoint to resume from."""
    snapshot.wait_for(model_dir)
    path = next((each for each in _candidates(model_dir)[0] if damage(each) is None), None)
    if path is None:
        return f"There is no checkpoint in {model_dir} to go on from."
    return f"The last checkpoint, {path}, was written before."


def warn_if_untrained(path: str | None, job, step, doing: str) -> None:
    """Warns if a step reads variables that nothing has trained: there is not a checkpoint, and
    neither a warm start nor the model_fn's scaffold gives them the values of another model."""
    if path is None and job.warm_start is None and step.spec.scaffold.init_fn is None:
        tf.logging.warning(
            "There is no trained model in %s: %s newly initialized variables.",
            job.config.model_dir,
            doing,
        )


def given_or_newest(model_dir: str | None, checkpoint_path: str | None) -> str | None:
    """Returns checkpoint_path, which must exist, or if it is None, the newest complete
    checkpoint."""
    check_given(checkpoint_path)
    return checkpoint_path or newest_whole(model_dir)


def check_given(checkpoint_path: str | None) -> None:
    """Raises ValueError if the caller asked for a checkpoint that does not exist."""
    if checkpoint_path and not tf.io.gfile.exists(checkpoint_path + ".index"):
        raise ValueError(f"checkpoint_path={checkpoint_path!r}: there is no such checkpoint")


def damage(prefix: str) -> str | None:
    """Returns None if every tensor of a checkpoint can be read, else what is wrong with it."""
    try:
        fingerprint = _fingerprint(prefix)
        if fingerprint not in _damages:
            reader = tf.train.load_checkpoint(prefix)
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
            _damages[fingerprint] = None
    # The file system fails, not the checkpoint.
    except _OTHER_TROUBLE:
        raise
    # TensorFlow raises some errors as Python's types, such as IndexError for a short read.
    except (tf.errors.OpError, FileNotFoundError, ValueError, LookupError, RuntimeError) as error:
        problem = str(error).splitlines()[0]
        is_lasting = isinstance(error, (tf.errors.DataLossError, IndexError))
        if is_lasting or "Checksum does not match" in problem:  # Other errors may pass.
            _damages[fingerprint] = problem
        return problem
    return _damages[fingerprint]


@contextlib.contextmanager
def explaining_loss(prefix: str | None) -> Iterator[None]:
    """Raises CheckpointGoneError for an error of a checkpoint that is not there any more."""
    try:
        yield
    except (tf.errors.OpError, OSError, ValueError, LookupError, RuntimeError) as error:
        if prefix is None or tf.io.gfile.exists(f"{prefix}.index"):
            raise
        raise errors.CheckpointGoneError(
            f"Checkpoint {prefix} was removed while it was opened, perhaps by a training that "
            "keeps the newest ones. Try again, or have it keep more: keep_checkpoint_max"
        ) from error


def global_step_of(prefix: str | None) -> int:
    """Returns the global step in a checkpoint; 0 if it does not have one, or `prefix` is None."""
    if prefix is None:
        return 0
    fingerprint = _fingerprint(prefix)
    if fingerprint not in _steps:
        _steps[fingerprint] = _read_step(prefix)
    return _steps[fingerprint]


def _read_step(prefix):
    reader = tf.train.load_checkpoint(prefix)
    name = tf.GraphKeys.GLOBAL_STEP
    if not reader.has_tensor(name) and reader.has_tensor(_OBJECTS):  # a tf.train.Checkpoint's file
        objects = TrackableObjectGraph.FromString(reader.get_tensor(_OBJECTS))
        attributes = [attribute for node in objects.nodes for attribute in node.attributes]
        name = next((a.checkpoint_key for a in attributes if a.full_name == name), name)
    return int(reader.get_tensor(name)) if reader.has_tensor(name) else 0


def check_restorable(prefix: str, variables: list[tf.Variable], rounds: bool = False) -> None:
    """Checks, before restoring, that a checkpoint holds all variables, in their shapes and types;
    if `rounds`, it may have float32 for variables of bfloat16."""
    reader = tf.train.load_checkpoint(prefix)
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    problems = []
    for variable in variables:
        name, shape = name_and_shape(variable)
        if name not in shapes:
            problems.append(f"{name}: not in the checkpoint")
        elif not tf.TensorShape(shape).is_compatible_with(shapes[name]):
            problems.append(f"{name}: {shape} in the model, {shapes[name]} in the checkpoint")
        elif variable.dtype.base_dtype != types[name] and not (
            rounds and (variable.dtype.base_dtype, types[name]) == (tf.bfloat16, tf.float32)
        ):
            found = f"{types[name].name} in the checkpoint"
            problems.append(f"{name}: {variable.dtype.base_dtype.name} in the model, {found}")
    if problems:
        missing = any(name_and_shape(variable)[0] not in shapes for variable in variables)
        raise (errors.VariablesMissingError if missing else errors.VariablesDifferError)(
            f"Checkpoint {prefix} does not fit this model:\n  "
            + listed(problems, "\n  ")
            + "\nUse the configuration it was written with, or another model_dir."
        )


def not_finite(prefix: str, names: Iterable[str]) -> list[str]:
    """Returns which of these tensors a checkpoint has with a value that is not finite."""
    reader = tf.train.load_checkpoint(prefix)
    types = reader.get_variable_to_dtype_map()
    floats = [name for name in names if name in types and types[name].is_floating]
    return [name for name in floats if not np.isfinite(reader.get_tensor(name)).all()]


def warn_unless_finite(prefix: str, variables: Iterable[tf.Variable]) -> None:
    """Warns, with their names, if variables get values from a checkpoint that are not finite."""
    bad = not_finite(prefix, [name_and_shape(variable)[0] for variable in variables])
    if bad:
        _warn_once(
            f"Checkpoint {prefix} has values that are not finite: {listed(bad)}. Results "
            "computed with them are not finite either; use another checkpoint"
        )


def ensure_saver(scaffold: tf.train.Scaffold, config) -> bool:
    """Adds a saver of all variables, with upstream's settings, if the model_fn did not make a
    saver; returns whether it did. (The saver of a model_fn may restore fewer variables.)"""
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


def saver_of(scaffold: tf.train.Scaffold) -> tf.train.Saver | None:
    """Returns the saver that a model_fn gave, or None; it may be a `tf.train.Checkpoint`."""
    if isinstance(scaffold.saver, tf2.train.Checkpoint):
        # The session of training saves the objects in the same way.
        objects = graph_view.ObjectGraphView(scaffold.saver).frozen_saveable_objects()
        return tf.train.Saver(objects, sharded=True)
    return scaffold.saver


def named(model_dir: str) -> str | None:
    """Returns the name of the checkpoint that the state file of a directory names as the newest;
    None if there is no state file that can be read."""
    state = _state(model_dir)
    return state and os.path.basename(state.model_checkpoint_path)


def write_state(model_dir: str, prefixes: list[str]) -> None:
    """Writes the state file, which lists checkpoints in the directory and names the last one."""
    names = [os.path.basename(prefix) for prefix in prefixes]  # relative: a run may be moved
    state = CheckpointState(model_checkpoint_path=names[-1], all_model_checkpoint_paths=names)
    path = os.path.join(model_dir, _STATE)
    file_io.atomic_write_string_to_file(path, text_format.MessageToString(state))


def earlier(model_dir: str) -> list[str]:
    """Returns the checkpoints of a directory among which a saver deletes the oldest, oldest
    first."""
    # Earlier checkpoints than the listed ones, that the file does not list, are kept for good,
    # because of `keep_checkpoint_every_n_hours`; later ones were written before a kill. All count
    # if the state file cannot be read. What the file names in another directory is not ours.
    paths = [
        path
        for path in reversed(_candidates(model_dir)[0])
        if is_there(os.path.join(model_dir, os.path.basename(path)))
    ]
    state = _state(model_dir)
    if state is not None:
        names = {os.path.basename(path) for path in state.all_model_checkpoint_paths}
        named = [number for number, p in enumerate(paths) if os.path.basename(p) in names]
        last = named[-1] if named else -1
        paths = [p for number, p in enumerate(paths) if number in named or number > last]
    return paths


def remember(saver: tf.train.Saver, prefixes: list[str]) -> None:
    """Tells a saver which checkpoints there are, the oldest first, which it is to delete first."""
    if not hasattr(saver, "set_last_checkpoints_with_time"):  # a program's own saver
        saver.recover_last_checkpoints(prefixes)
        return
    now = time.time()  # A time to come is from a clock that has been set back since.
    times = [tf.io.gfile.stat(f"{prefix}.index").mtime_nsec / 1e9 for prefix in prefixes]
    saver.set_last_checkpoints_with_time(
        [(prefix, min(now, secs)) for prefix, secs in zip(prefixes, times, strict=True)]
    )


def names_in(folder: str) -> list[str]:
    """Returns the sorted names of what is in a directory; [] if there is no such directory."""
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else ()
    return sorted(name.rstrip("/") for name in names)


def _fingerprint(prefix):
    """Returns the names, times and sizes of a checkpoint's files, which are not opened for that."""
    folder, name = os.path.split(prefix.removeprefix("file://"))
    own = re.compile(rf"{re.escape(name)}(\.index|(\.data)?-\d+-of-\d+)?")
    folder = folder or "."

    def described(path):
        if is_remote(path):
            stat = tf.io.gfile.stat(path)
            return path, stat.mtime_nsec, stat.length
        stat = os.stat(path)  # TensorFlow's gives times only to the second.
        return path, stat.st_mtime_ns, stat.st_size

    return prefix, *(described(f"{folder}/{n}") for n in names_in(folder) if own.fullmatch(n))


def _state(model_dir):
    """Returns the contents of the state file; None if it is missing or cannot be read."""
    try:
        return tf.train.get_checkpoint_state(model_dir)
    except ValueError:  # The file is empty, as after a full disk, or it is not UTF-8.
        return None


def _candidates(model_dir):
    """Returns the path prefixes of a directory's checkpoints, complete or damaged, with the latest
    step first; and what is wrong with the state file, or None."""
    names = names_in(model_dir)
    steps = collections.defaultdict(dict)  # name without the step -> {checkpoint's name: step}
    for match in filter(None, map(_FILE.fullmatch, names)):
        steps[match[2]][match[1]] = int(match[3])
    state = _state(model_dir)
    named = os.path.basename(state.model_checkpoint_path) if state is not None else None
    base = named and re.sub(r"-\d+$", "", named)
    # Checkpoints with another base name (a script's own saver) count if the state file names one.
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
        if not prefixes and is_there(state.model_checkpoint_path):  # It is in another directory.
            return [state.model_checkpoint_path], None
        doubt = f"names {named}, which is not there"
    elif state is not None and named != ordered[0]:
        doubt = f"names {named}, but {ordered[0]} is later"
    return prefixes, doubt


def is_there(prefix: str) -> bool:
    """Returns whether a checkpoint exists at this path, which may be any string."""
    try:
        return tf.io.gfile.exists(prefix + ".index")
    except (tf.errors.OpError, ValueError):
        return False


def _has_progress(prefix):
    """Returns whether a checkpoint has files, and a later step than 0."""
    folder, name = os.path.split(prefix)
    has_files = any(each.startswith(f"{name}.") for each in names_in(folder))
    return has_files and not name.endswith("-0")


def name_and_shape(variable: tf.Variable) -> tuple[str, list[int | None] | None]:
    """Returns the name and shape (None if unknown) of a variable in checkpoints; for a part of a
    partitioned variable, the whole variable's."""
    part = variable._get_save_slice_info()
    if part is not None:
        return part.full_name, list(part.full_shape)
    shape = variable.shape
    return variable.op.name, None if shape.rank is None else shape.as_list()
