"""Several hosts: which host this process is, and how the hosts agree.

Every host runs the same program. The environment variable `TF_CONFIG` says which host a process
is, as in TF1:

    TF_CONFIG='{"cluster": {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"]},
                "task": {"type": "worker", "index": 0}}'

The chief writes checkpoints, events and files. The hosts exchange values through jax.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from types import ModuleType

import numpy as np

from bert_estimator.tpu.program import cluster_task

# A host that is silent for so long counts as dead, and ends the other hosts.
_HEARTBEAT_SECS = 30

_joined = []


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Lists the hosts of a cluster.

    Attributes:
      addresses: the address of each host, "host:port"; empty if this process is the only host.
      index: the number of this host.
    """

    addresses: tuple[str, ...] = ()
    index: int = 0

    @property
    def number(self) -> int:
        return max(1, len(self.addresses))

    @property
    def is_chief(self) -> bool:
        return self.index == 0


def find() -> Hosts:
    """Returns the `Hosts` that train together with this process.

    Raises:
      ValueError: TF_CONFIG contradicts itself, or its cluster cannot run here; see
        `cluster_task`.
    """
    addresses, index = cluster_task.of_tf_config().hosts()
    return Hosts(addresses, index) if len(addresses) > 1 else Hosts()


def join(jax: ModuleType) -> Hosts:
    """Waits for the other hosts, once in a process and before jax starts; returns the `Hosts`."""
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
def chief_first() -> Iterator[None]:
    """Lets the chief run the body of the `with` statement before the other hosts run it."""
    here = find()
    if not here.is_chief:
        gather(0)
    yield
    if here.is_chief:
        gather(0)


def agree_on(name: str, number: int) -> None:
    """Waits for the other hosts, and checks that they have the same number.

    Args:
      name: what the number is, for the error.
      number: this host's number.

    Raises:
      RuntimeError: the numbers differ; the text says what differs.
    """
    numbers = gather(number).tolist()
    if len(set(numbers)) > 1:
        raise RuntimeError(
            f"The hosts of TF_CONFIG differ in {name}: {numbers}. model_dir must be one directory "
            "that all hosts can see"
        )


def gather(values) -> np.ndarray:
    """Waits for the other hosts, and returns the values of all hosts, [hosts, ...].

    Args:
      values: a number, or an array of the same shape on all hosts.
    """
    if find().number == 1:
        return np.asarray(values)[np.newaxis]
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(np.asarray(values)))
