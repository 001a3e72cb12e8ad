"""Several hosts: which host this process is, and how the hosts agree.

Every host runs the same program. The environment variable `TF_CONFIG` says which host a process
is, as in TF1:

    TF_CONFIG='{"cluster": {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"]},
                "task": {"type": "worker", "index": 0}}'

The chief writes checkpoints, events and files. The hosts meet at its address. From then on jax
watches them, and ends all of them if one is lost. Hosts whose programs differ would wait for each
other without end, or train different models, so they compare their settings and values.
"""

import atexit
import concurrent.futures
import contextlib
import dataclasses
import logging
import math
import os
import re
import signal
import socket
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bert_estimator.cluster import cluster_task
from bert_estimator.system import lock
from bert_estimator.system.errors import listed

if TYPE_CHECKING:
    import numpy as np

_THREADS = 4  # that compute the checksums of variables

# How long hosts wait for each other: until all have started, and until all have ended.
WAIT_SECS = 600

# jax ends the hosts when it has not heard of one of them for so long.
_HEARTBEAT_SECS = 30

# The chief's end ends the others. They may be about to say the same error.
_LAST_WORDS_SECS = 3

# What jax's errors say if a sum or another exchange between hosts has failed.
_OF_EXCHANGES = re.compile("Gloo|NCCL")

# How this process ends: "code", of a SystemExit that has ended a verb on this host alone; or
# "together", if all hosts end for the same reason.
_end = {}

_joined = []  # the `Hosts`, once this process has joined them


class LostHostError(ConnectionError):
    """Another host has ended while this one needs it."""


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Lists the hosts of a cluster."""

    # "host:port" of each host; empty if this process is the only host.
    addresses: tuple[str, ...] = ()
    index: int = 0  # the number of this host

    @property
    def number(self) -> int:
        return max(1, len(self.addresses))

    @property
    def is_chief(self) -> bool:
        return self.index == 0


def find() -> Hosts:
    """Returns the `Hosts` that train together with this process."""
    addresses, index = cluster_task.of_tf_config().hosts()
    return Hosts(addresses, index) if len(addresses) > 1 else Hosts()


def join(jax: ModuleType, wait_secs: float = WAIT_SECS) -> None:
    """Joins the other hosts, once in a process, before jax starts its devices."""
    hosts = find()
    if hosts.number == 1 or _joined:
        return
    chief = hosts.addresses[0]
    if hosts.is_chief:
        _check_port(chief)
    logging.getLogger("tensorflow").info(
        "Waiting for the %d hosts of TF_CONFIG to meet at %s, for at most %g seconds, as host %d.",
        *(hosts.number, chief, wait_secs, hosts.index),
    )
    # jax would ask an HTTP proxy of the environment for the way to the chief.
    variable = "no_grpc_proxy"
    no_proxy = os.environ.get(variable) or os.environ.get("no_proxy") or ""
    name = chief.rpartition(":")[0].strip("[]")
    os.environ[variable] = ",".join(filter(None, [no_proxy, name]))
    jax.config.update("jax_check_proxy_envs", False)  # jax would warn of them
    # jax would catch SIGTERM, unseen by Python, and go on. `verbs.interrupts` handles it.
    jax.config.update("jax_enable_preemption_service", False)
    # If they do not come in time, jax ends the process, and from then on if one is lost.
    jax.distributed.initialize(
        chief,
        hosts.number,
        hosts.index,
        initialization_timeout=min(math.ceil(wait_secs), 10**9),  # an int in C++
        heartbeat_timeout_seconds=_HEARTBEAT_SECS,
        shutdown_timeout_seconds=WAIT_SECS,
    )
    _joined.append(hosts)
    atexit.register(_skip_farewell)  # jax's farewell was registered before, so it comes after this


def _check_port(address):
    """Raises RuntimeError if the port of the chief's address is taken, at which jax would crash."""
    port = int(address.rpartition(":")[2])
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=dual).close()
    except OSError as error:
        raise RuntimeError(
            f"TF_CONFIG: the chief's address is {address}, but port {port} of this machine cannot "
            f"be used: {os.strerror(error.errno)}. End the program that uses it, or give the chief "
            "another port, in the TF_CONFIG of all hosts"
        ) from None


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Makes the failure of an exchange between the hosts, in the block, a LostHostError."""
    try:
        yield
    except Exception as error:
        if not _joined or not _OF_EXCHANGES.search(str(error)):
            raise
        raise LostHostError(
            "Another host of TF_CONFIG has ended, or cannot be reached; its own output says why. "
            "Start the same commands again on all hosts: they resume. (jax says: "
            f"{str(error).strip().splitlines()[0]})"
        ) from error


@contextlib.contextmanager
def noting_exit() -> Iterator[None]:
    """Notes the code of a SystemExit that leaves the block: Python does not say it at its end."""
    _end.clear()  # of an earlier block, whose exception was caught
    try:
        yield
    except SystemExit as end:
        _end["code"] = _as_number(end.code)
        raise


def end_together() -> None:
    """Notes that all hosts are about to end, for a reason that they share."""
    _end["together"] = True


def leave(code: int | str | None) -> None:
    """Ends this process with an exit code if it has failed; otherwise waits for the other hosts."""
    if code:
        _leave_now(code)
    if _joined:
        import jax

        jax.distributed.shutdown()  # Python's end comes too late if a thread hangs


def _skip_farewell():
    """Ends this process, when Python ends, if it has failed: jax would wait for the other hosts."""
    error = getattr(sys, "last_value", None)  # an exception that nobody caught
    if error is not None:
        _leave_now(128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1)
    elif "code" in _end:
        _leave_now(_end["code"])


def _leave_now(code):
    if not _joined or "together" in _end:
        return
    if isinstance(code, str):
        print(code, file=sys.stderr)
    # jax ends the others when the chief is gone; see the constant.
    if _joined[0].is_chief:
        time.sleep(_LAST_WORDS_SECS)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # such as a closed pipe
            stream.flush()
    # sys.exit would run jax's farewell, which waits for the others.
    os._exit(_as_number(code))


def _as_number(code):
    """Returns what a process ends with by SystemExit(code), whose `code` may be None or a text."""
    return code & 0xFF if isinstance(code, int) else int(code is not None)


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
    """Waits for the other hosts, and raises RuntimeError if their numbers of this name differ."""
    numbers = gather(number).tolist()
    if len(set(numbers)) > 1:
        raise RuntimeError(
            f"The hosts of TF_CONFIG differ in {name}: {numbers}. model_dir must be one directory "
            "that all hosts can see"
        )


def gather(values) -> "np.ndarray":
    """Waits for the other hosts, and returns the values of all hosts, [hosts, ...]; values are a
    number, or an array of the same shape on all hosts."""
    import numpy as np  # here, because scripts that only check their flags load this module

    if find().number == 1:
        return np.asarray(values)[np.newaxis]
    from jax.experimental import multihost_utils

    with together():
        return np.asarray(multihost_utils.process_allgather(np.asarray(values)))


def differing(facts: Mapping[str, Any]) -> list[str]:
    """Waits for the other hosts; returns the names of the facts whose `repr` is not the same on all
    hosts, which give the same names in the same order."""
    return _differing({name: repr(value).encode() for name, value in facts.items()})


def check_settings(**settings: Any) -> None:
    """Waits for the other hosts, and raises RuntimeError if they were given other settings."""
    names = differing(settings)
    if names:
        given = ", ".join(f"{name}={settings[name]!r}" for name in names)
        raise RuntimeError(
            f"The hosts of TF_CONFIG were given different values of {', '.join(names)} (here "
            f"{given}). Start the same program with the same settings on all of them"
        )


def check_variables(values: Mapping[str, "np.ndarray"]) -> None:
    """Waits for the other hosts, and raises RuntimeError if variables have other values there."""
    import numpy as np

    names = _differing({name: np.ascontiguousarray(value) for name, value in values.items()})
    if names:
        raise RuntimeError(
            "The hosts of TF_CONFIG have different values of these variables: "
            f"{listed(names)}. Set RunConfig(tf_random_seed=...), take "
            "initial values from TensorFlow's random operations or from the same file, and give "
            "all hosts the same checkpoint"
        )


def _differing(values):
    """Returns the names of the values, bytes or arrays, whose checksums differ between hosts."""
    import numpy as np

    if find().number == 1:
        return []
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        checksums = threads.map(zlib.crc32, values.values())
        # jax exchanges numbers of 32 bits with a sign.
        of_hosts = gather(np.array([checksum >> 1 for checksum in checksums], np.int32))
    return [name for name, given in zip(values, of_hosts.T, strict=True) if len({*given}) > 1]


@contextlib.contextmanager
def held_by_chief(directory: str, is_chief: bool) -> Iterator[None]:
    """Waits for all hosts; then the chief holds the lock of a directory for all of them."""
    refusal = None
    with contextlib.ExitStack() as stack:
        if is_chief:
            try:
                stack.enter_context(lock.held(directory))
            except lock.InUseError as error:
                refusal = error
        # All hosts raise the error: otherwise the others would wait for the chief.
        if gather(int(refusal is not None)).any():
            raise refusal or lock.InUseError(
                f"{directory} is in use, as the chief of the hosts says."
            )
        yield
