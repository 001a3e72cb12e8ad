"""Which checkpoints of a run have been evaluated, and so which is the best: `best/best.json`.

The file lists the steps in the order of their evaluations, each with its metric. Everything else
follows from the list and from the checkpoints that lie beside it.
"""

import json
import math
import os
from collections.abc import Mapping

from bert_estimator.command_line.flags import FlagError
from bert_estimator.system import disk_files, json_files

DIRECTORY = "best"
PREFIX = "model.ckpt-"

_FILE = "best.json"


def read(directory: str, of: str | None = None) -> dict[int, float]:
    """Returns what the file in a directory lists.

    Args:
      directory: the directory.
      of: a digest of what is evaluated. If the file has another one, its metrics cannot be compared
        with new ones. None takes them whatever they are of.

    Returns:
      A dict of step -> metric, a float (larger is better; -inf for NaN), in the order of the
      evaluations; empty if there is no file, or it has another digest.

    Raises:
      FlagError: the file cannot be read.
    """
    path = os.path.join(directory, _FILE)
    if not os.path.exists(path):
        return {}
    try:
        content = json_files.read(path)
        recorded = json_files.field(content, "of", str, path, default=None)
        if None not in (of, recorded) and of != recorded:
            return {}
        evaluations = json_files.field(content, "evaluations", list, path)
        return {
            json_files.field(each, "step", int, path): json_files.field(
                each, "value", float, path, default=-math.inf
            )
            for each in json_files.items(evaluations, dict, f"{path}: evaluations")
        }
    except (ValueError, OSError) as error:
        raise FlagError(
            f"--output_dir: {path} cannot be read ({error}). Remove {directory}: the best "
            "checkpoint is then chosen from the checkpoints that follow"
        ) from None


def write(directory: str, values: Mapping[int, float], of: str | None = None) -> None:
    """Writes the file, all of it or nothing; `values` and `of` as in `read`."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, _FILE)
    evaluations = [
        {"step": step, "value": None if value == -math.inf else value}
        for step, value in values.items()
    ]
    with disk_files.writer(path) as writer:
        json.dump({"of": of, "evaluations": evaluations}, writer, indent=1)


def best_of(values: Mapping[int, float]) -> int | None:
    """Returns the first step of the largest metric, or None if there is no step.

    If no metric is a number, it returns the last step, which has been trained most.
    """
    if values and max(values.values()) == -math.inf:
        return list(values)[-1]
    return max(values, key=values.get, default=None)


def best_kept(directory: str, values: Mapping[int, float]) -> int | None:
    """Returns the best of the evaluated steps whose checkpoint is in the directory, or None."""
    names = set(os.listdir(directory)) if os.path.isdir(directory) else ()
    return best_of({step: v for step, v in values.items() if f"{PREFIX}{step}.index" in names})


def path_of_best(output_dir: str) -> str | None:
    """Returns the path prefix of the best checkpoint of a run's directory, or None if none was
    kept.

    Raises:
      FlagError: the file cannot be read.
    """
    directory = os.path.join(output_dir, DIRECTORY)
    best = best_kept(directory, read(directory))
    return best and os.path.join(directory, f"{PREFIX}{best}")
