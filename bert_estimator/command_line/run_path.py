"""Which run a path belongs to: its directory, its best checkpoint, or another of its files."""

import os

from bert_estimator.command_line import run_directory
from bert_estimator.system import json_files

_CONFIG = "config.json"


def run_of(path: str) -> str | None:
    """Returns the directory of the run that a path belongs to, or None.

    Args:
      path: the run's directory, its best/, or a checkpoint in either.
    """
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    parents = [os.path.dirname(folder)] * (os.path.basename(folder) == run_directory.BEST_DIRECTORY)
    return next(filter(_is_run, [folder, *parents]), None)


def _is_run(folder):
    """Returns whether a directory has a run's config.json, and not the one of transformers."""
    path = os.path.join(folder, _CONFIG)
    try:
        return os.path.isfile(path) and "flags" in json_files.read(path)
    except ValueError:
        return True  # `recorded_settings` says what is wrong
