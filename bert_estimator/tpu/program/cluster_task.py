"""The task that TF_CONFIG gives to this process."""

import collections
import json
import os

_CHIEFS = ("chief", "master")
_WORKER, _EVALUATOR = "worker", "evaluator"
_EXPECTED = (
    'A valid value is {"cluster": {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


class Task(
    collections.namedtuple(
        "Task", ["type", "index", "trains", "evaluates", "addresses"], defaults=[()]
    )
):
    """Describes this process's part in a program.

    Attributes:
      type, index: as in TF_CONFIG.
      trains, evaluates: whether `train_and_evaluate` trains and evaluates in this process.
      addresses: the addresses of the processes that train together, with the chief's first.
    """

    @property
    def host(self) -> int:
        """Returns this process's number among the processes that train together."""
        return self.index + 1 if self.addresses and self.type == _WORKER else 0


def tf_config() -> dict:
    """Returns the environment variable TF_CONFIG, a JSON object, or {} if it is not set.

    Raises:
      ValueError: it is not a JSON object, or its cluster or its task is malformed.
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
        raise ValueError(f"TF_CONFIG: the cluster {cluster!r} must map names to lists. {_EXPECTED}")
    if not isinstance(task, dict):
        raise ValueError(f"TF_CONFIG: the task {task!r} is not a JSON object. {_EXPECTED}")
    return config


def of_tf_config() -> Task:
    """Returns this process's `Task`.

    One process leads the training: the "chief", or a "master", which also evaluates. Other
    processes may train together with it ("worker"), and one may evaluate its checkpoints
    ("evaluator"). Without a cluster, one process does everything.

    Raises:
      ValueError: the task is not in the cluster, or the cluster has parameter servers.
    """
    config = tf_config()
    task, cluster = config.get("task", {}), config.get("cluster", {})
    kind, index = task.get("type"), task.get("index")
    if not cluster:
        if kind not in (None, "worker") or index not in (None, 0):
            raise ValueError(
                f"TF_CONFIG: the task {task} needs a cluster; without a cluster, only type worker "
                "and index 0 are allowed"
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
        raise ValueError(f"TF_CONFIG: the task {task} is not in the cluster {cluster}")
    addresses = (*cluster[chiefs[0]], *cluster.get(_WORKER, []))
    if len(addresses) > 1 and chiefs[0] == "master":
        raise ValueError(
            "TF_CONFIG: a master trains and evaluates in turn, so it must be the only host. For "
            "several hosts, name the first one chief, and add an evaluator if you need one"
        )
    if kind == _EVALUATOR:
        return Task(kind, 0, trains=False, evaluates=True)
    return Task(kind, int(index), trains=True, evaluates=kind == "master", addresses=addresses)
