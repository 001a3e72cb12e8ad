"""Warm start: the initial values of variables while a model_dir does not have a checkpoint."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_estimator.graph import graph_walk
from bert_estimator.system.errors import listed
from bert_estimator.tpu import call
from bert_estimator.tpu.step import initial_values
from bert_estimator.tpu.verbs import checkpoints


@call.checked
class WarmStartSettings(NamedTuple):
    """Says which variables start from which values, as upstream's class of this name does.

    Args:
      ckpt_to_initialize_from: a checkpoint, a directory of checkpoints, whose newest is taken, or a
        SavedModel.
      vars_to_warm_start: a regular expression that is matched with the names of trainable
        variables; or a list of regular expressions, for all variables; or a list of variables; or
        None, for only the variables in var_name_to_vocab_info.
      var_name_to_vocab_info: dict of variable name -> `tf.train.VocabInfo`, for variables whose
        rows are found by their word.
      var_name_to_prev_var_name: dict of variable name -> its name in the checkpoint.

    Raises:
      ValueError: ckpt_to_initialize_from is empty.
    """

    ckpt_to_initialize_from: str | bytes
    vars_to_warm_start: str | Sequence | None = ".*"
    var_name_to_vocab_info: Mapping | None = None
    var_name_to_prev_var_name: Mapping | None = None

    def _checked_values(self, replaced):
        if not self.ckpt_to_initialize_from:
            raise ValueError(
                "WarmStartSettings: ckpt_to_initialize_from must be a path, not "
                f"{self.ckpt_to_initialize_from!r}"
            )
        names = ("var_name_to_vocab_info", "var_name_to_prev_var_name")
        return {name: getattr(self, name) or {} for name in names}


def settings_of(
    warm_start_from: str | bytes | WarmStartSettings | None,
) -> WarmStartSettings | None:
    """Returns the settings for an estimator's `warm_start_from`; None stays None."""
    if warm_start_from is None:
        return None
    if isinstance(warm_start_from, str | bytes):
        return WarmStartSettings(_checkpoint_in(tf.compat.as_str(warm_start_from)))
    if isinstance(warm_start_from, WarmStartSettings):
        path = _checkpoint_in(tf.compat.as_str(warm_start_from.ckpt_to_initialize_from))
        return warm_start_from._replace(ckpt_to_initialize_from=path)
    raise ValueError(
        "warm_start_from must be the path of a checkpoint or SavedModel, or a WarmStartSettings, "
        f"not {warm_start_from!r}"
    )


def apply(settings: WarmStartSettings | None) -> None:
    """Initializes the variables of the current graph from a checkpoint, of a directory the newest
    complete one; without settings, nothing changes."""
    if settings is None:
        return
    path = settings.ckpt_to_initialize_from
    if tf.io.gfile.isdir(path):
        # An empty directory is left to TensorFlow, whose message names it.
        path = checkpoints.newest_whole(path) or path
    _check_finite(path, settings)
    tf.logging.info("Warm-starting from %s", settings)
    tf.train.warm_start(path, *settings[1:])


_RESTORING = {"RestoreV2", "LoadAndRemapMatrix"}


def read_after_restoring() -> None:
    """Has variables whose initial values are read from restored variables wait for these."""
    # An average of a weight starts with the weight's value, or with its old initial value if the
    # weight is not initialized yet. If a checkpoint initializes the weight (`apply`,
    # `tf.train.init_from_checkpoint`), it would be chance which of them this is.
    variables = tf.global_variables()
    initializers = {
        v.op: initial_values.initializer_of(v) for v in variables if v.initializer is not None
    }
    restored = {
        operation: initializer
        for operation, initializer in initializers.items()
        if any(before.type in _RESTORING for before in graph_walk.all_before([initializer]))
    }
    for variable in variables if restored else ():
        initializer = initializers.get(variable.op)
        if initializer is None:
            continue
        before = set(graph_walk.all_before([initializer]))
        # A variable with a restored value may read others as well: a sum of two weights.
        read = restored.keys() & before - {variable.op}
        if read:
            _make_wait(variable, initializer, before, {w: restored[w] for w in read})
            if variable.op in restored:
                restored[variable.op] = initial_values.initializer_of(variable)


def _make_wait(variable, initializer, before, read):
    """Gives a variable an initializer whose reads of other variables (operation -> its initializer)
    wait for them; `before` is what the initializer depends on."""
    # Only what depends on the reads is copied, since a step may use the same operations.
    after = graph_walk.reached(read, lambda each: before.intersection(graph_walk.users_of(each)))
    after = set(after) - read.keys()
    kept = {operation: operation.outputs for operation in before - after}
    value = initializer.inputs[1]
    with tf.control_dependencies(None), tf.device("/cpu:0"):
        copy = graph_walk.copied(value, kept, f"{variable.op.name}/read_after_restoring")
        for operation in after:
            for source in {tensor.op for tensor in operation.inputs} & read.keys():
                # `copied` has added the copies to `kept`. What the value does not need has no copy,
                # and the copy of an operation without outputs cannot be found.
                if kept.get(operation):
                    kept[operation][0].op._add_control_input(read[source])
        if initializer.type == "Assign":
            assign = tf.raw_ops.Assign(ref=initializer.inputs[0], value=copy).op
        else:
            assign = tf.raw_ops.AssignVariableOp(resource=initializer.inputs[0], value=copy)
    # `tf.global_variables_initializer` takes the initializers from the variables.
    variable._initializer_op = assign


def _check_finite(path, settings):
    """Raises ValueError if a variable would begin with a value that is not finite."""
    names = [checkpoints.name_and_shape(variable)[0] for variable in _warm_started(settings)]
    try:
        bad = checkpoints.not_finite(
            path, [settings.var_name_to_prev_var_name.get(name, name) for name in names]
        )
    except (tf.errors.OpError, ValueError, RuntimeError):
        return  # tf.train.warm_start says what is wrong with it
    if bad:
        raise ValueError(
            f"warm_start_from: {path} has values that are not finite: {listed(bad)}. Training "
            "cannot start from them; use an earlier checkpoint"
        )


def _warm_started(settings):
    """Returns the variables of the current graph that begin with values of the checkpoint."""
    chosen, collection = settings.vars_to_warm_start, tf.GraphKeys.GLOBAL_VARIABLES
    if chosen is None:
        chosen = []
    elif isinstance(chosen, str):
        chosen, collection = [chosen], tf.GraphKeys.TRAINABLE_VARIABLES
    variables = [v for c in chosen if isinstance(c, str) for v in tf.get_collection(collection, c)]
    variables += [c for c in chosen if isinstance(c, tf.Variable)]
    names = settings.var_name_to_vocab_info
    return variables + [v for v in tf.global_variables() if v.op.name in names]


def _checkpoint_in(path):
    """Returns the checkpoint inside a SavedModel's directory; other paths are returned as given."""
    # TensorFlow names the checkpoint of a SavedModel so.
    variables = os.path.join(path, "variables", "variables")
    return variables if tf.io.gfile.exists(variables + ".index") else path
