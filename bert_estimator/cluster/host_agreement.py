"""Checks that several hosts train the same model: the same settings, and the same values.

Hosts whose programs differ would wait for each other without end, or train different models.
"""

import concurrent.futures
import contextlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bert_estimator.cluster import hosts
from bert_estimator.system import lock
from bert_estimator.system.errors import listed

_THREADS = 4


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


def check_variables(values: Mapping[str, np.ndarray]) -> None:
    """Waits for the other hosts, and raises RuntimeError if variables have other values there."""
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
    if hosts.find().number == 1:
        return []
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        checksums = threads.map(zlib.crc32, values.values())
        # jax exchanges numbers of 32 bits with a sign.
        of_hosts = hosts.gather(np.array([checksum >> 1 for checksum in checksums], np.int32))
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
        if hosts.gather(int(refusal is not None)).any():
            raise refusal or lock.InUseError(
                f"{directory} is in use, as the chief of the hosts says."
            )
        yield
