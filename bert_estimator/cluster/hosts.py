"""Several hosts: which host this process is, and how the hosts agree.

Every host runs the same program. The environment variable `TF_CONFIG` says which host a process
is, as in TF1:

    TF_CONFIG='{"cluster": {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"]},
                "task": {"type": "worker", "index": 0}}'

The chief writes checkpoints, events and files. The hosts exchange values through jax.
"""

import atexit
import contextlib
import dataclasses
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from bert_estimator.cluster import cluster_task, host_secret, relay, roll_call
from bert_estimator.cluster.host_watch import HostWatch, exit_now

if TYPE_CHECKING:
    import numpy as np

# How long hosts wait for each other until all have started.
WAIT_SECS = 600

# `host_watch` sees that a host is lost. If jax saw it first, it would end the process by an abort.
_NEVER_SECS = 10**6

_watches = []  # the `HostWatch` of this process, once it has joined the other hosts


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


@contextlib.contextmanager
def joining(
    jax: ModuleType, wait_secs: float = WAIT_SECS, master: str | None = None
) -> Iterator[None]:
    """Joins the other hosts, once in a process, before a `with` statement starts jax's devices.

    The hosts have one deadline for all of it: to meet, and to start jax and its devices. If this
    host cannot finish in time because of the others, the process ends, as it does from then on when
    another host is lost; see `host_watch`.

    Args:
      jax: the module.
      wait_secs: how long the start may take, with the time until the other hosts have come.
      master: what names the cores, which must be the same on all hosts.

    Raises:
      roll_call.ClusterError: the hosts cannot meet, or their secret cannot be used.
      roll_call.MissingHostsError: a host has not come in time.
    """
    hosts = find()
    if hosts.number == 1 or _watches:
        yield
        return
    end = time.monotonic() + wait_secs
    try:
        secret = host_secret.find()
    except host_secret.SecretError as error:
        raise roll_call.ClusterError(str(error)) from None
    chief = roll_call.split(hosts.addresses[0])
    if hosts.is_chief:
        connections, port = roll_call.hold(hosts.addresses, wait_secs, master, secret), chief[1]
    else:
        to_chief = roll_call.answer(hosts.addresses, hosts.index, wait_secs, master, secret)
        connections = {0: to_chief}
        port = relay.start(chief)
    _watches.append(HostWatch(hosts.addresses, hosts.index, connections))
    _note_exit_codes()
    with _watches[0].starting(end, wait_secs):
        _initialize(jax, port, hosts)
        yield


def _initialize(jax, port, hosts):
    """Starts jax's own service, and its client on this host."""
    # jax's client would ask an HTTP proxy of the environment for the way to this machine itself.
    name = "no_grpc_proxy"
    no_proxy = os.environ.get(name) or os.environ.get("no_proxy") or ""
    os.environ[name] = ",".join(filter(None, [no_proxy, "127.0.0.1"]))
    # jax would catch SIGTERM, unseen by Python, and go on. `verbs.interrupts` handles it.
    if hasattr(jax.config, "jax_enable_preemption_service"):
        jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator_address=f"127.0.0.1:{port}",
        coordinator_bind_address=f"[::]:{port}",
        num_processes=hosts.number,
        process_id=hosts.index,
        initialization_timeout=_NEVER_SECS,  # The watch has a deadline.
        heartbeat_timeout_seconds=_NEVER_SECS,
        shutdown_timeout_seconds=_NEVER_SECS,
    )
    atexit.register(_say_goodbye)  # before jax's farewell, which waits for the other hosts


def advise(advice: Callable[[], str]) -> None:
    """Adds a sentence to the message of a lost host; see `HostWatch.advise`."""
    if _watches:
        _watches[0].advise(advice)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Surrounds work that needs all hosts; if a host leaves meanwhile, this process ends with it.

    It ends at once if a host has left before. Alone, this does nothing.
    """
    with _watches[0].needing_others() if _watches else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def explaining_errors() -> Iterator[None]:
    """If the block raises an error, waits a while: the process ends if a lost host is the cause.

    The goodbye to the other hosts says the code of a SystemExit that leaves the block.
    """
    if _watches:
        _watches[0].exit_code = 0  # of an earlier block, whose SystemExit was caught
    try:
        yield
    except SystemExit as end:
        if _watches:
            _watches[0].exit_code = _as_number(end.code)
        raise
    except Exception as error:
        if _watches:
            _watches[0].wait_for_cause(error)
        raise


def leave(code: int | str | None) -> None:
    """Says goodbye to the other hosts, and ends the process with an exit code, as SystemExit does.

    Alone, this does nothing.
    """
    if _watches:
        if isinstance(code, str):
            print(code, file=sys.stderr)
        _watches[0].leave(_as_number(code))
        exit_now(_as_number(code))


def _note_exit_codes():
    """Has `sys.exit` note its code for the goodbye: Python does not say it when it ends."""
    exit_python = sys.exit

    @functools.wraps(exit_python)
    def noting_exit(status=None, /):
        if threading.current_thread() is threading.main_thread():
            _watches[0].exit_code = _as_number(status)
        exit_python(status)

    sys.exit = noting_exit


def _as_number(code):
    """Returns what a process ends with by SystemExit(code), whose `code` may be None or a text."""
    return code & 0xFF if isinstance(code, int) else int(code is not None)


def _say_goodbye():
    """Says goodbye when Python ends.

    If this host has failed, it ends at once, as the others do. Otherwise jax's farewell comes next,
    which waits for the other hosts.
    """
    error, code = getattr(sys, "last_value", None), _watches[0].exit_code
    if error is not None:  # an exception that nobody caught
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    fails = code not in (0, 128 + signal.SIGTERM)
    makes_sense = _watches[0].leave(code, waits=not fails)
    if fails or not makes_sense:
        exit_now(code)


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


def gather(values) -> "np.ndarray":
    """Waits for the other hosts, and returns the values of all hosts, [hosts, ...].

    Args:
      values: a number, or an array of the same shape on all hosts.
    """
    import numpy as np  # here, because scripts that only check their flags load this module

    if find().number == 1:
        return np.asarray(values)[np.newaxis]
    from jax.experimental import multihost_utils

    with together():
        return np.asarray(multihost_utils.process_allgather(np.asarray(values)))
