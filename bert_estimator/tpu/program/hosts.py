"""Several hosts: which of them this process is, and how they agree.

Every host runs the same program, and the environment variable `TF_CONFIG` says which of them it
is, as in TF1:

    TF_CONFIG='{"cluster": {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"]},
                "task": {"type": "worker", "index": 0}}'

The chief writes checkpoints, events and files. jax carries what the hosts agree on.
"""

import contextlib
import dataclasses

import numpy as np

from bert_estimator.tpu.program import cluster_task

_HEARTBEAT_SECS = 30

_joined = []


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The hosts of a cluster.

    Attributes:
      addresses: of each of them, "host:port"; empty where this process is the only one.
      index: this one's number.
    """

    addresses: tuple = ()
    index: int = 0

    @property
    def number(self):
        return max(1, len(self.addresses))

    @property
    def is_chief(self):
        return self.index == 0


def find():
    """Returns the `Hosts` of a training that this process takes part in.

    Raises:
      ValueError: TF_CONFIG makes no sense; see `cluster_task.of_tf_config`.
    """
    task = cluster_task.of_tf_config()
    if len(task.addresses) < 2:
        return Hosts()
    return Hosts(task.addresses, task.host)


def join(jax):
    """Waits for the other hosts, once in a process, before jax starts; returns the `Hosts`."""
    hosts = find()
    if hosts.number > 1 and not _joined:
        jax.distributed.initialize(
            coordinator_address=hosts.addresses[0],
            num_processes=hosts.number,
            process_id=hosts.index,
            heartbeat_timeout_seconds=_HEARTBEAT_SECS,
        )
        _joined.append(hosts)
    return hosts


@contextlib.contextmanager
def chief_first():
    """What is within is done by the chief, and by the other hosts once it is done there."""
    here = find()
    if not here.is_chief:
        gather(0)
    yield
    if here.is_chief:
        gather(0)


def agree_on(name, number):
    """Waits for the other hosts, and checks that they have the same number.

    Raises:
      RuntimeError: they have not; the text says what differs.
    """
    found = gather(number).tolist()
    if len(set(found)) > 1:
        raise RuntimeError(
            f"The hosts of TF_CONFIG differ in {name}: {found}. model_dir must be one directory "
            "that all of them see"
        )


def gather(values):
    """Returns an array with the values of every host, [hosts, ...], once all have given theirs.

    Args:
      values: a number, or an array of them, of one shape on all hosts.
    """
    if find().number == 1:
        return np.asarray(values)[np.newaxis]
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(np.asarray(values)))
