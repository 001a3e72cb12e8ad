"""What TF_CONFIG says of this process: its task among those of a program."""

import collections
import json
import os

_CHIEFS = ("chief", "master")
_WORKER, _EVALUATOR = "worker", "evaluator"
_EXPECTED = (
    'Expected is such as {"cluster": {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


class Task(
    collections.namedtuple(
        "Task", ["type", "index", "trains", "evaluates", "addresses"], defaults=[()]
    )
):
    """A process's part in a program.

    Fields: type, index (as in TF_CONFIG), trains, evaluates (whether `train_and_evaluate` does
    here), addresses (of the processes that train together, the chief's first).
    """

    @property
    def host(self):
        """This process's number among those that train together."""
        return self.index + 1 if self.addresses and self.type == _WORKER else 0


def tf_config():
    """Returns the environment variable TF_CONFIG, a JSON object; {} where it is absent.

    Raises:
      ValueError: it is none, or its cluster or its task is not as TensorFlow writes them.
    """
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"TF_CONFIG={text!r} is not JSON: {error}. {_EXPECTED}") from None
    if not isinstance(config, dict):
        raise ValueError(f"TF_CONFIG={text!r} is not a JSON object. {_EXPECTED}")
    cluster, task = config.get("cluster", {}), config.get("task", {})
    if not isinstance(cluster, dict) or not all(isinstance(t, list) for t in cluster.values()):
        raise ValueError(f"TF_CONFIG: the cluster {cluster!r} is no lists by name. {_EXPECTED}")
    if not isinstance(task, dict):
        raise ValueError(f"TF_CONFIG: the task {task!r} is no object. {_EXPECTED}")
    return config


def of_tf_config():
    """Returns this process's `Task`.

    One process leads the training ("chief", or "master", which evaluates as well), others may be
    its further hosts ("worker"), and one may evaluate its checkpoints ("evaluator"). Without a
    cluster, one process does everything.

    Raises:
      ValueError: an impossible task, or one for parameter servers.
    """
    config = tf_config()
    task, cluster = config.get("task", {}), config.get("cluster", {})
    kind, index = task.get("type"), task.get("index")
    if not cluster:
        if kind not in (None, "worker") or index not in (None, 0):
            raise ValueError(
                f"TF_CONFIG: task {task} without a cluster; allowed is type worker, index 0"
            )
        return Task("worker", 0, trains=True, evaluates=True)
    chiefs = [name for name in _CHIEFS if cluster.get(name)]
    if len(chiefs) != 1 or len(cluster[chiefs[0]]) != 1:
        raise ValueError(f"TF_CONFIG: the cluster {cluster} must have one chief (or master) task")
    others = [
        name
        for name in sorted(cluster)
        if name not in (*chiefs, _WORKER, _EVALUATOR) and cluster[name]
    ]
    if others:
        raise ValueError(
            f"TF_CONFIG: tasks of type {others} are not supported: every host of a training runs "
            "the whole program. Allowed: one chief (or master), workers, one evaluator"
        )
    if kind is None or index is None:
        raise ValueError(f"TF_CONFIG: a cluster needs a task with type and index, not {task}")
    number = {_WORKER: len(cluster.get(_WORKER, [])), _EVALUATOR: 1, chiefs[0]: 1}.get(kind, 0)
    if not str(index).isdecimal() or int(index) >= number:
        raise ValueError(f"TF_CONFIG: the task {task} is none of the cluster {cluster}")
    addresses = (*cluster[chiefs[0]], *cluster.get(_WORKER, []))
    if len(addresses) > 1 and chiefs[0] == "master":
        raise ValueError(
            "TF_CONFIG: a master trains and evaluates in turn, which it can do alone only: name "
            "the first of several hosts chief, and give it an evaluator if you want one"
        )
    if kind == _EVALUATOR:
        return Task(kind, 0, trains=False, evaluates=True)
    return Task(kind, int(index), trains=True, evaluates=kind == "master", addresses=addresses)
