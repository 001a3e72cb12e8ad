"""Names and order of a task's labels: a network that has learned labels says both.

Files only say which labels there are. A network in the run's directory, or of --init_checkpoint,
says what each row of its head means, in task.json or id2label: the task then has the network's
labels, in the network's order.
"""

import unicodedata
from collections.abc import Collection, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_estimator import interchange
from bert_estimator.command_line import flags
from bert_estimator.interchange import Source
from bert_estimator.interchange.network_variables import CLASSIFIER
from bert_estimator.system import json_files
from bert_estimator.tpu import checkpoints

_WHAT_TO_DO = "in task.json (labels) or config.json (id2label) beside its weights"


class LabelsOfFiles(NamedTuple):
    """Holds the labels that a task's files have."""

    names: Sequence[str]
    place: str  # the file or the flag that they come from, for messages
    # Whether the task has no other labels; the rows of a file to evaluate may lack some.
    are_all: bool


def network(output_dir: str | None, init_checkpoint: str | None) -> Source | None:
    """Returns the network that a run goes on with or uses, in its directory, or else starts from;
    None if it does not have a classifier."""
    checkpoint = output_dir and checkpoints.newest_whole(output_dir, True)
    flag = "init_checkpoint" if checkpoint is None else "output_dir"
    if not (path := checkpoint or init_checkpoint):
        return None
    with flags.named(flag):
        source = interchange.open_source(path)
    return source if CLASSIFIER in source.shapes else None


def of_task(
    source: Source | None, kind: str, used: LabelsOfFiles, trains: bool, allow_partial_init: bool
) -> tuple[str, ...]:
    """Returns a task's labels in the order of the network's outputs; ValueError if they do not fit.

    Args:
      used: the labels of the files, in the order that they have without a network.
      trains: whether the network is trained, so that it may learn other labels.
      allow_partial_init: whether a training may begin with a new head.
    """
    if source is None:
        return tuple(used.names)
    learned = source.labels
    if source.kind not in (None, kind):  # `facts` has an error or a warning
        return _arranged(used.names or learned, learned)
    # Without names, the order of the labels is an assumption, which a warning names.
    if learned in ((), _defaults(source)):
        return _of_unnamed(source, used, trains)
    # The same labels, or none to compare: only the network knows their order.
    if set(used.names) == set(learned) or (not used.names and not used.are_all):
        return learned
    if not trains:
        if not set(used.names) <= set(learned):
            raise ValueError(
                f"{_different(source, used)}; if not, add --do_train to train for them"
            )
        return learned
    # A label spelled otherwise would get a row of its own, and the learned row would be lost.
    if _are_spelled_otherwise(used.names, learned):
        raise ValueError(_different(source, used))
    # A small training file may lack labels by chance, and a smaller head would start anew.
    if set(used.names) < set(learned) and not allow_partial_init:
        tf.logging.warning(
            "%s: lacks %s, which %s has learned; the network keeps these labels.",
            used.place,
            json_files.shown([name for name in learned if name not in used.names]),
            source.path,
        )
        return learned
    return _arranged(used.names, learned)


def _of_unnamed(source, used, trains):
    """Returns the labels of a network whose outputs do not have names, and warns of the order."""
    names, defaults = tuple(used.names), _defaults(source)
    number = len(defaults)
    are_some = bool(names) and not used.are_all
    if set(names) == set(defaults) or (are_some and set(names) < set(defaults)):
        return defaults
    if not names:
        names = defaults
    elif are_some and set(names) <= set(map(str, range(number))):
        names = tuple(map(str, range(number)))
    if len(names) != number:
        if trains or used.are_all:
            return names  # the numbers of the outputs are compared later
        raise ValueError(
            f"{used.place}: has the labels {json_files.shown(list(names))}, but {source.path} has "
            f"{number} outputs without names. Name them {_WHAT_TO_DO}, or give --train_file"
        )
    tf.logging.warning(
        "The outputs of %s do not have names; they are taken for %s, in this order. If that is "
        "wrong, name them %s.",
        source.path,
        json_files.shown(list(names)),
        _WHAT_TO_DO,
    )
    return names


def _defaults(source):
    """Returns the names that transformers gives outputs without names."""
    return tuple(f"LABEL_{i}" for i in range(source.shapes[CLASSIFIER][0]))


def _arranged(names: Sequence[str], learned: Sequence[str]) -> tuple[str, ...]:
    """Returns names in an order in which every learned name keeps its row of the head."""
    if len(names) != len(learned):
        return tuple(names)
    others = iter([name for name in names if name not in learned])
    return tuple(name if name in names else next(others) for name in learned)


def _different(source, used):
    labels = json_files.shown(list(used.names)), json_files.shown(list(source.labels))
    return (
        f"{used.place}: has the labels {labels[0]}, but {source.path} has learned {labels[1]}. "
        f"If they mean the same, spell them alike, in the file or {_WHAT_TO_DO}"
    )


def _are_spelled_otherwise(names: Collection[str], learned: Collection[str]) -> bool:
    """Returns whether a name that was not learned differs from a learned one only in its case,
    spaces and punctuation."""
    unused = {_letters(name) for name in learned if name not in names}
    return any(_letters(name) in unused for name in names if name not in learned)


def _letters(name):
    text = unicodedata.normalize("NFKC", name).casefold()
    return "".join(filter(str.isalnum, text)) or name
