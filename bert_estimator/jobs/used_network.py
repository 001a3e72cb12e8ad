"""Tells whether a network that a command uses without training it is of a run, or of others.

A run has recorded its flags, so that a command which names the run need not repeat them. Other
networks do not say what to judge them by, and the embedded tasks do not suit them.

This module does not import TensorFlow, so wrong flags are reported before it is loaded.
"""

import glob
import os
from typing import Any, NamedTuple

from bert_estimator.command_line import flags, own_directory, provenance, run_directory
from bert_estimator.command_line.choices import ONNX_INT8

# A run's directory has the network and its vocabulary, and what follows from the training's files.
_NOT_REPEATED = (
    "init_checkpoint", "bert_config_file", "vocab_file", "train_file", "recipe", "scale", "stage",
)  # fmt: skip
# What task.json says of a network for answers, too.
_OF_ANSWERS = ("n_best_size", "max_answer_length", "null_score_diff_threshold")
_NAMED_TASK, _OWN_FILES = ("task_name", "data_dir"), ("train_file", "eval_file", "predict_file")


class UsedNetwork(NamedTuple):
    """Says which network is used."""

    flag: str  # the flag that names it
    path: str  # the value of the flag
    # Flag -> value, as the run of the network has recorded them; empty if no run of the script has
    # trained it.
    recorded: dict[str, Any]


def _find(settings, sources, own_flag):
    """Returns the network that a command uses; None if it trains, or does not name a network."""
    if settings["do_train"] or settings["compile_only"]:
        return None
    path, start = settings["output_dir"], settings["init_checkpoint"]
    if (settings.get("num_seeds") or 1) > 1:
        path = os.path.join(path, f"seed-{settings['random_seed']}")
    flag = "output_dir"
    # A default --init_checkpoint is a start for training, and not what the command asks about.
    if not glob.glob(os.path.join(glob.escape(path), "*.index")):
        if not start or sources["init_checkpoint"] != provenance.FLAG:
            return None
        flag, path = "init_checkpoint", start
    run = own_directory.run_of(path)
    recorded = run_directory.recorded_settings(run) if run else {}
    # Networks of other scripts are trained for something else.
    return UsedNetwork(flag, path, recorded if own_flag in recorded else {})


def recall(
    config_class: type, settings: dict[str, Any], sources: dict[str, Any], own_flag: str
) -> UsedNetwork | None:
    """Returns the network that a command uses without training it, if it names one, and puts the
    flags that its run has recorded into `settings` and `sources`, if the command line does not give
    them; only the script's own runs record `own_flag`."""
    used = _find(settings, sources, own_flag)
    given = {name for name, source in sources.items() if source == provenance.FLAG}
    # Flags that say how to report, or what to run on, are not a run's own.
    names = {f.name for f in flags.of(config_class) if f.metadata["may_differ"] is not True}
    names |= {*_OF_ANSWERS}
    # Files are recalled for what the command does with them, and not if it names others in another
    # way.
    if settings["do_eval"] or settings.get("export_format") == ONNX_INT8:
        names |= {"eval_file", "eval_input_file"}
    if settings.get("do_predict"):
        names |= {"predict_file"}
    if given & {*_OWN_FILES}:
        names -= {*_NAMED_TASK, "encoding"}
    if "task_name" in given:
        names -= {*_OWN_FILES}
    for name, value in (used.recorded if used else {}).items():
        if name in settings and name in names and name not in {*_NOT_REPEATED, *given}:
            settings[name], sources[name] = value, provenance.RUN
    return used


def check_data(used: UsedNetwork | None, what: str) -> None:
    """Raises FlagError if others have trained the network, so that it needs other data than the
    embedded data; `what` says what to give."""
    if used is not None and not used.recorded:
        raise flags.FlagError(
            f"--{used.flag}={used.path}: nothing says what this network is to be judged by, since "
            f"no run of this script trained it; {what}"
        )
