"""Warm start: the initial values of variables while a model_dir does not have a checkpoint."""

import collections
import os

import tensorflow.compat.v1 as tf

from bert_estimator.system.errors import listed
from bert_estimator.tpu.verbs import checkpoints


class WarmStartSettings(
    collections.namedtuple(
        "WarmStartSettings",
        [
            "ckpt_to_initialize_from",
            "vars_to_warm_start",
            "var_name_to_vocab_info",
            "var_name_to_prev_var_name",
        ],
    )
):
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

    __slots__ = ()

    def __new__(
        cls,
        ckpt_to_initialize_from,
        vars_to_warm_start=".*",
        var_name_to_vocab_info=None,
        var_name_to_prev_var_name=None,
    ):
        if not ckpt_to_initialize_from:
            raise ValueError(
                "WarmStartSettings: ckpt_to_initialize_from must be a path, not "
                f"{ckpt_to_initialize_from!r}"
            )
        return super().__new__(
            cls,
            ckpt_to_initialize_from,
            vars_to_warm_start,
            var_name_to_vocab_info or {},
            var_name_to_prev_var_name or {},
        )


def settings_of(
    warm_start_from: str | bytes | WarmStartSettings | None,
) -> WarmStartSettings | None:
    """Returns the settings for an estimator's `warm_start_from`; None stays None.

    Raises:
      ValueError: warm_start_from is neither a path nor a `WarmStartSettings`.
    """
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
    """Initializes the variables of the current graph from a checkpoint.

    Args:
      settings: which variables; if None, the graph is not changed. Of a directory's checkpoints,
        the newest complete one is taken.

    Raises:
      ValueError: values in the checkpoint are not finite.
    """
    if settings is None:
        return
    path = settings.ckpt_to_initialize_from
    if tf.io.gfile.isdir(path):
        path = checkpoints.newest_whole(path) or path
    _check_finite(path, settings)
    tf.logging.info("Warm-starting from %s", settings)
    tf.train.warm_start(path, *settings[1:])


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
    variables = os.path.join(path, "variables", "variables")
    return variables if tf.io.gfile.exists(variables + ".index") else path
