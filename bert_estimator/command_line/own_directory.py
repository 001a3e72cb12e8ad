"""Which directories a command may write into: new ones, empty ones, and its own.

What else a directory holds belongs to the user: a published network, data, a source checkout. A run
has files of the same names, and would replace them.
"""

import os
import re

from bert_estimator.command_line import flags
from bert_estimator.command_line.run_directory import BEST_DIRECTORY, RunDirectory
from bert_estimator.storage import remote
from bert_estimator.storage.mirror import RESULTS
from bert_estimator.system import disk_files, json_files, paths

_CONFIG = "config.json"

# What may lie anywhere: no command replaces it.
_HARMLESS = re.compile(r"\..*|.*\.(log|out|err)|([^.]*[-_])?logs?(\.txt)?|lost\+found")

# What a run writes before its config.json, or without training; and what is not complete.
_UNFINISHED = rf"({re.escape(disk_files.ENDING)}|{re.escape(remote.UNFINISHED)})"
_OF_RUN = re.compile(
    r"(checkpoint|model\.ckpt-\d+(_temp|\..*)|graph\.pbtxt|events\.out\.tfevents\..*|eval(_\w+)?|best"
    r"|export|data\.(incomplete|replaced)|record_lengths\.npz|metrics\.jsonl|curves\.svg"
    rf"|rollbacks\.json|tracker\.json|owner\.json|compile_report\.json|{RESULTS.pattern})"
    rf"{_UNFINISHED}?|config\.json{_UNFINISHED}"
)
_RUN_WITHIN = re.compile(r"(stage_|seed-|host-)\d+")
_INDEX = re.compile(r"model\.ckpt-\d+\.index")
# The embedded records: the file that is written last.
_DATA, _DATA_MARK = "data", "default_data.json"

_PROGRAM_MARK = "step.stablehlo"  # which an export of a program writes first

_MOST_SHOWN = 3


def check_run(path: str) -> None:
    """Raises FlagError unless the directory of --output_dir (or its URL) is not there, or holds
    nothing but a run; call it before anything is written there."""
    with flags.named("output_dir"):
        if paths.is_remote(path):
            remote.check(path)  # A wrong name is reported at once: this is tried only once.
        # The run may have been killed at any instant, and another program, such as TensorFlow 1's
        # scripts, may have begun it.
        _check("output_dir", path, "run", _not_of_run(path))


def check_start(directory: RunDirectory, init_checkpoint: str | None) -> None:
    """Raises FlagError if a training would start from what another program left where it runs."""
    # It would go on from the newest checkpoint there, whatever the flag names. (Of runs with a
    # config.json, the flag of their beginning counts.)
    if init_checkpoint and directory.is_of_another_program():
        is_own = paths.place(init_checkpoint) == paths.place(directory.path)
        rule = (
            "is in --output_dir, whose training goes on from its newest checkpoint: leave the flag "
            "out for that, or start from it in another --output_dir"
        )
        is_own = is_own or directory.is_checkpoint(init_checkpoint)
        flags.check(not is_own, "init_checkpoint", init_checkpoint, rule)


def check_program(path: str) -> None:
    """Raises FlagError unless the directory of --export_program has nothing but a program."""
    with flags.named("export_program"):
        names = _names(path)
        others = [] if _PROGRAM_MARK in names else _others(names)
        _check("export_program", path, "program", others)


def run_of(path: str) -> str | None:
    """Returns the directory of the run of a path (it, its best/, or a checkpoint), or None."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    parents = [os.path.dirname(folder)] * (os.path.basename(folder) == BEST_DIRECTORY)
    return next((f for f in (folder, *parents) if _is_run(f, _names(f))), None)


def _check(flag, path, what, others):
    advice = f"give the {what} a directory of its own, such as {path.rstrip('/')}/{what}"
    if (place := _special_place(path)) is not None:
        flags.check(False, flag, path, f"is {place}; {advice}")
    more = len(others) - _MOST_SHOWN
    held = ", ".join(others[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
    rule = f"holds {held}, which this command has not written; nothing was changed there: {advice}"
    flags.check(not others, flag, path, rule)


def _special_place(path):
    """Returns in words what a directory is in which nobody wants a run, or None."""
    place = paths.place(path)
    if not path or not os.path.isdir(place):
        return None
    if place == os.path.dirname(place):
        return "the root of the file system"
    return "the home directory" if place == paths.place(os.path.expanduser("~")) else None


def _not_of_run(path):
    """Returns the names in a directory that are not a run's."""
    names = _names(path)
    if _is_run(path, names):
        return []
    if _CONFIG not in names and "checkpoint" in names and any(map(_INDEX.fullmatch, names)):
        return []  # a run of another program
    others = []
    for name in _others(names):
        inside = os.path.join(path, name)
        # A stage of a recipe, a seed or a host has a run of its own below the directory.
        if _RUN_WITHIN.fullmatch(name):
            others += [f"{name}/{other}" for other in _not_of_run(inside)]
        elif name == _DATA:
            within = _names(inside)
            others += [name] if within and _DATA_MARK not in within else []
        elif not _OF_RUN.fullmatch(name):
            others.append(name)
    return others


def _is_run(path, names):
    """Returns whether a directory has a run's config.json, rather than one of Hugging Face's."""
    if _CONFIG not in names:
        return False
    try:
        return "flags" in remote.read_json(os.path.join(path, _CONFIG))
    except json_files.JsonError:
        # If it is a run's, the run says what is wrong with it.
        return any(map(_INDEX.fullmatch, names))
    except OSError:
        return False


def _others(names):
    return sorted(name for name in names if not _HARMLESS.fullmatch(name))


def _names(path):
    """Returns the names in a directory; none if there is no directory."""
    if paths.is_remote(path):
        return remote.names(path)
    return os.listdir(path) if os.path.isdir(path) else []
