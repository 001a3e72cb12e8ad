"""What TF_CONFIG says about this process: its task among the tasks of a cluster.

`of_tf_config` describes every cluster that TensorFlow's own `RunConfig` describes, by the same
rules. `Task.hosts` says which processes train together here, and refuses clusters that cannot.
"""

import dataclasses
import os

from bert_estimator.system import json_files

_WORKER, _PS, _EVALUATOR = "worker", "ps", "evaluator"
_EXPECTED = (
    'A valid value is {"cluster": {"chief": ["10.0.0.1:2222"], "worker": '
    '["10.0.0.2:2222"]}, "task": {"type": "worker", "index": 0}}'
)


@dataclasses.dataclass(frozen=True)
class Task:
    """Says which part a process has in a program."""

    # As in TF_CONFIG; worker 0 without a cluster.
    type: str = _WORKER
    index: int = 0
    # Task type -> index -> address; empty without a cluster, and for an evaluator, which is not
    # part of the training.
    cluster: dict = dataclasses.field(default_factory=dict)
    chief: str = "chief"  # the type of the task that leads: "chief" or "master"
    master: str = ""  # "" is this process
    evaluation_master: str = ""
    service: dict | None = None
    model_dir: str | None = None

    @property
    def is_chief(self) -> bool:
        """Returns whether this process leads the training."""
        return self.type == self.chief if self.cluster else self.type == _WORKER

    @property
    def global_id(self) -> int | None:
        """Returns this process's number in the cluster; None for an evaluator."""
        if self.type == _EVALUATOR:
            return None
        # As TensorFlow counts: the chief is the first, and parameter servers are the last.
        others = [kind for kind in sorted(self.cluster) if kind not in (self.chief, _PS)]
        order = [self.chief, *others, _PS]
        before = order[: order.index(self.type)] if self.cluster else []
        return self.index + sum(self._number(kind) for kind in before)

    @property
    def num_ps_replicas(self) -> int:
        return self._number(_PS)

    @property
    def num_worker_replicas(self) -> int:
        """Returns how many processes train: workers and the chief; 0 for an evaluator."""
        if self.type == _EVALUATOR:
            return 0
        return self._number(_WORKER) + self._number(self.chief) if self.cluster else 1

    @property
    def own_address(self) -> str:
        """Returns the address that TF_CONFIG gives this process; "" without a cluster."""
        address = self.cluster.get(self.type, {}).get(self.index)
        return f"grpc://{address}" if address else ""

    def hosts(self) -> tuple[tuple[str, ...], int]:
        """Returns (addresses of the processes that train together, this process's number); ()
        without a cluster, and for an evaluator."""
        others = [kind for kind in self.cluster if kind not in (self.chief, _WORKER, _EVALUATOR)]
        if others:
            raise ValueError(
                f"TF_CONFIG: tasks of type {sorted(others)} cannot run here: every host of a "
                "training runs the whole program, and parameter servers are not supported. "
                "Allowed are one chief (or master), workers and one evaluator. Leave out the "
                "others: workers with use_tpu=True and a master (local, gpu, rehearse:N) train "
                "one model without them"
            )
        workers = self.cluster.get(_WORKER, {})
        if workers and self.chief == "master":
            raise ValueError(
                "TF_CONFIG: a master trains and evaluates in turn, so it must be the only host. "
                "For several hosts, name the first one chief, and add an evaluator if you need one"
            )
        chiefs = self.cluster.get(self.chief, {})
        # The hosts meet at the first address, the chief's.
        addresses = [*chiefs.values(), *(workers[index] for index in sorted(workers))]
        if len(addresses) > 1:
            _check_addresses(addresses)
        number = sorted(workers).index(self.index) + 1 if self.type == _WORKER and workers else 0
        return tuple(addresses), number

    def _number(self, kind):
        return len(self.cluster.get(kind, ()))


def tf_config() -> dict:
    """Returns the environment variable TF_CONFIG, a JSON object; {} if it is not set."""
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        config = json_files.parse(text, "TF_CONFIG")
    except ValueError as error:
        raise ValueError(f"{error}. {_EXPECTED}") from None
    task = config.get("task", {})
    if not isinstance(task, dict):
        raise ValueError(f"TF_CONFIG: the task {task!r} is not an object. {_EXPECTED}")
    if not isinstance(task.get("type"), str | None):
        raise ValueError(
            f"TF_CONFIG: the type of the task must be a string, not {task['type']!r}. {_EXPECTED}"
        )
    for name in ("model_dir", "session_master", "eval_session_master"):
        if not isinstance(config.get(name), str | None):
            raise ValueError(f"TF_CONFIG: {name} must be a string, not {config[name]!r}")
    service = config.get("service")
    if not isinstance(service, dict | None):
        # TensorFlow's own RunConfig raises a TypeError here, too.
        raise TypeError(
            f'If "service" is set in TF_CONFIG, it must be a dict. Given is {service!r}'
        )
    return config


def of_tf_config() -> Task:
    """Returns this process's `Task`."""
    config = tf_config()
    model_dir = config.get("model_dir")
    if model_dir == "":
        raise ValueError("model_dir in TF_CONFIG should be non-empty: leave it out, or name one")
    rest = {"service": config.get("service"), "model_dir": model_dir}
    cluster, task = _cluster(config.get("cluster", {})), config.get("task", {})
    kind, index = task.get("type"), task.get("index")
    masters = config.get("session_master"), config.get("eval_session_master")
    if not cluster:
        without = 'If "cluster" is not set in TF_CONFIG, task'
        if kind not in (None, _WORKER):
            raise ValueError(f"{without} type must be WORKER, not {kind!r}")
        if index is not None and _int(index) != 0:
            raise ValueError(f"{without} index must be 0, not {index}")
        return Task(master=masters[0] or "", evaluation_master=masters[1] or "", **rest)
    # One process leads the training: "chief", or "master", which evaluates as well. Others may
    # train too ("worker"), hold variables ("ps") or evaluate checkpoints ("evaluator").
    chief = "master" if "master" in cluster else "chief"
    _check_cluster(cluster, chief)
    index = _checked_index(kind, index)
    if kind == _EVALUATOR:
        if chief == "master":
            raise ValueError(
                "TF_CONFIG: If `master` node exists in `cluster`, task_type `evaluator` is not "
                "supported: a master evaluates by itself. Name it chief"
            )
        return Task(kind, index, evaluation_master=masters[1] or "", **rest)
    _check_member(cluster, kind, index)
    task = Task(kind, index, cluster, chief, **rest)
    # A server at the address of a lone process would serve nobody.
    alone = sum(map(len, cluster.values())) == 1
    own = "" if alone else task.own_address
    return dataclasses.replace(task, master=own if masters[0] is None else masters[0])


def _cluster(given):
    """Returns a cluster as a dict of dicts, without types that have no task."""
    if not isinstance(given, dict):
        raise TypeError(
            f"TF_CONFIG: `cluster` must be a dictionary of job names, not {given!r}. {_EXPECTED}"
        )
    cluster = {}
    for kind, tasks in given.items():
        if isinstance(tasks, list):
            cluster[kind] = dict(enumerate(tasks))
        elif isinstance(tasks, dict):
            # A dict may leave out indices; keys of JSON are texts.
            cluster[kind] = {_int(index): address for index, address in tasks.items()}
        else:
            raise TypeError(
                f"TF_CONFIG: The tasks for job {kind!r} must be a list or a dictionary from "
                f"integers to strings, not {tasks!r}. {_EXPECTED}"
            )
    for kind, tasks in cluster.items():
        for index, address in tasks.items():
            if not isinstance(address, str):
                raise ValueError(
                    f"TF_CONFIG: the address of {kind} {index} must be a string, not {address!r}. "
                    f"{_EXPECTED}"
                )
    return {kind: tasks for kind, tasks in cluster.items() if tasks}


def _check_cluster(cluster, chief):
    if chief == "master" and "chief" in cluster:
        raise ValueError(
            "TF_CONFIG: If `master` node exists in `cluster`, job `chief` is not supported: one "
            "of them leads the training"
        )
    number = len(cluster.get(chief, ()))
    if number < 1:
        raise ValueError(
            f'If "cluster" is set in TF_CONFIG, it must have one "{chief}" node, which leads the '
            f"training; it has {sorted(cluster)}"
        )
    if number > 1:
        raise ValueError(
            f'The "cluster" in TF_CONFIG must have only one "{chief}" node; it has {number}'
        )


def _checked_index(kind, index):
    if not kind or index is None:
        key = "index" if kind else "type"
        raise ValueError(
            f'If "cluster" is set in TF_CONFIG, task {key} must be set: "task". {_EXPECTED}'
        )
    if _int(index) < 0:
        raise ValueError(f"TF_CONFIG: Task index must be non-negative number, not {index}")
    return _int(index)


def _int(index):
    try:
        return int(index)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"TF_CONFIG: the task index must be a number, not {index!r}") from None


def _check_addresses(addresses):
    """Checks the addresses of several hosts: the hosts meet at the first one."""
    for address in addresses:
        name, _, port = address.rpartition(":")
        if not (name and port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
            raise ValueError(
                f"TF_CONFIG: the address {address!r} is not a host and a port from 1 to 65535. "
                f"{_EXPECTED}"
            )


def _check_member(cluster, kind, index):
    """Checks that a task is one of the cluster's."""
    if kind not in cluster:
        wrong = f"{kind} is not a valid task_type"
    elif index not in cluster[kind]:
        wrong = f"{index} is not a valid task_id for task_type {kind}"
    else:
        return
    raise ValueError(
        f"TF_CONFIG: {wrong} in the cluster_spec {cluster}. Note that these values may be coming "
        "from the TF_CONFIG environment variable"
    )
