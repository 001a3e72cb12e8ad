"""The roll call: the hosts of a training meet at the chief's address before jax starts.

Each of the other hosts connects to the chief, says which host it is, and waits. When all hosts are
there, the chief says so, and everybody keeps the connection: `host_watch` sees by it whether a host
is lost. The chief's port is free again afterwards, for jax.
"""

import logging
import os
import selectors
import socket
import time
from collections.abc import Sequence

from bert_estimator.cluster import host_secret
from bert_estimator.cluster.host_connection import SILENT_SECS, Connection, printable
from bert_estimator.cluster.roll import Roll
from bert_estimator.system.errors import listed

# While hosts are missing, a log line says so this often.
LOG_SECS = 15
_RETRY_SECS = 0.5
_CONNECT_SECS = 20
_LOOK_SECS = 1
# The chief says why it has ended a moment after the hosts that wait as long as it does.
_LAST_WORD_SECS = 5

# A place whose host has vanished is free again when the kernel has noticed it.
_TAKEN_SECS = SILENT_SECS + 5


class ClusterError(RuntimeError):
    """The hosts that TF_CONFIG names cannot meet, however long they wait; the text says why."""


class MissingHostsError(ConnectionError):
    """A host has not come in time; the text names it."""


def hold(
    addresses: Sequence[str],
    wait_secs: float,
    master: str | None = None,
    secret: bytes | None = None,
) -> dict[int, Connection]:
    """Waits, as the chief, until all other hosts have come.

    Args:
      addresses: the address of each host, "host:port"; the first is the chief's.
      wait_secs: how long to wait.
      master: what names the cores, which must be the same on all hosts.
      secret: what the hosts must prove to know, if it is given; see `host_secret`.

    Returns:
      A dict of host's number -> `Connection`.

    Raises:
      ClusterError: the port of the chief's address cannot be used.
      MissingHostsError: a host has not come in time.
    """
    listener = _listen(addresses[0])
    with listener, selectors.DefaultSelector() as selector:
        roll = Roll(addresses, selector, master, secret)
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ)
        end = time.monotonic() + wait_secs
        next_line = time.monotonic() + 1  # Hosts that start together do not need a line.
        try:
            while missing := roll.missing():
                now = time.monotonic()
                if now >= next_line:
                    _log_waiting(listed(missing), end - now)
                    roll.tell(missing=listed(missing))
                    next_line = now + LOG_SECS
                if now >= end:
                    raise MissingHostsError(_not_come(listed(missing), wait_secs))
                secs = max(0.01, min(end, next_line, now + _LOOK_SECS) - now)
                for key, _ in selector.select(secs):
                    if key.data is None:
                        roll.accept(listener)
                    else:
                        roll.read(key.data)
                roll.drop_late()
        except BaseException as error:
            roll.tell(ended=str(error) or type(error).__name__)
            roll.close()
            raise
        roll.tell(complete=True)
        return roll.finish()


def answer(
    addresses: Sequence[str],
    number: int,
    wait_secs: float,
    master: str | None = None,
    secret: bytes | None = None,
) -> Connection:
    """Waits, as another host than the chief, until all hosts have come.

    Args:
      addresses: as for `hold`.
      number: the number of this host.
      wait_secs: how long to wait.
      master, secret: as for `hold`.

    Returns:
      The `Connection` to the chief.

    Raises:
      ClusterError: the chief refuses this host: their TF_CONFIGs or masters differ.
      MissingHostsError: the chief, or another host, has not come in time. With a secret, only who
        has proven to know it is the chief.
    """
    chief, end = addresses[0], time.monotonic() + wait_secs
    next_line, trouble, taken_until = time.monotonic() + 1, "it does not answer", None
    while (now := time.monotonic()) < end:
        if now >= next_line:
            _log_waiting(f"the chief ({chief}; {trouble})", end - now)
            next_line = now + LOG_SECS
        try:
            connected = socket.create_connection(split(chief), min(_CONNECT_SECS, end - now + 1))
            connection = Connection(connected, secs=_LOOK_SECS)
        except OSError as error:
            trouble = error.strerror or str(error)
            time.sleep(_RETRY_SECS)
            continue
        hello = {"host": number, "addresses": list(addresses), "master": master}
        hello["nonce"] = None if secret is None else host_secret.nonce()
        connection.send(**hello)
        try:
            if _is_complete(connection, end, hello, secret):
                connection.wait_for()
                return connection
            trouble = "its port is used by another program, or by a training that has not ended"
        except _UnprovenError as error:
            trouble = f"who answers there does not prove to know the secret, and says: {error}"
        except _TakenError as error:
            trouble, taken_until = str(error), taken_until or now + _TAKEN_SECS
            if now >= taken_until:
                raise ClusterError(trouble) from None
        connection.close()
        time.sleep(_RETRY_SECS)
    raise MissingHostsError(_not_come(f"the chief ({chief}; {trouble})", wait_secs))


class _UnprovenError(Exception):
    """Somebody who has not proven to know the secret refuses this host; the text says why."""


class _TakenError(Exception):
    """Another process has this host's place; the text is the chief's sentence."""


def _is_complete(connection, end, hello, secret):
    """Waits for the chief's word that all hosts have come; returns False if it went away.

    What is not a chief's message comes from another program, and counts as its end. With a secret,
    only a chief that has proven to know it is believed.
    """
    awaited, is_proven = None, secret is None
    while time.monotonic() < end + _LAST_WORD_SECS:
        try:
            messages = connection.receive()
        except ValueError:
            return False
        if messages is None:
            return False
        for number, message in enumerate(messages, 1):
            match message:
                case {"nonce": str(challenge)} if not is_proven and awaited is None:
                    awaited = host_secret.proof(secret, "chief", hello, challenge)
                    connection.send(proof=host_secret.proof(secret, "host", hello, challenge))
                case {"proof": str(proof)} if awaited and host_secret.is_same(proof, awaited):
                    awaited, is_proven = None, True
                case {"complete": True} if is_proven:
                    connection.put_back(messages[number:])
                    return True
                case {"missing": str(missing)} if is_proven:
                    _log_waiting(printable(missing), end - time.monotonic())
                case {"refused": str(reason)} | {"taken": str(reason)} if not is_proven:
                    raise _UnprovenError(printable(reason))
                case {"refused": str(reason)}:
                    connection.close()
                    raise ClusterError(printable(reason))
                case {"taken": str(reason)}:
                    connection.close()
                    raise _TakenError(printable(reason))
                case {"ended": str(reason)} if is_proven:
                    connection.close()
                    raise MissingHostsError(f"The chief has ended: {printable(reason)}")
                case _:
                    return False
    return False


def split(address: str) -> tuple[str, int]:
    """Returns (name of the host, port) of an address "host:port" or "[IPv6]:port"."""
    name, _, port = address.rpartition(":")
    return name.strip("[]"), int(port)


def _listen(address):
    """Returns a socket that listens on the port of an address, on all of this machine's networks.

    jax binds the port later, while connections to it are open, so it must be reusable.
    """
    port = split(address)[1]
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        listener = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return listener
    except OSError as error:
        raise ClusterError(
            f"TF_CONFIG: the chief's address is {address}, but port {port} of this machine cannot "
            f"be used: {os.strerror(error.errno)}. End the program that uses it, or give the chief "
            "another port, in the TF_CONFIG of all hosts"
        ) from None


def _log_waiting(missing, secs):
    logging.getLogger("tensorflow").info(
        "Waiting for %s, for at most %.0f more seconds.", missing, max(0, secs)
    )


def _not_come(missing, wait_secs):
    return (
        f"{missing} did not come within {wait_secs:g} seconds. Start the same command on "
        "all hosts that TF_CONFIG names, and look there for errors."
    )
