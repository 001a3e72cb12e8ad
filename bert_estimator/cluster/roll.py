"""The chief's roll: the connections of the hosts that have come, and of strangers.

Whoever reaches the chief's port may be a stranger. So a connection is dropped at its first wrong
message, or if it does not say in time which host it is, and the number of strangers is bounded.
"""

import errno
import logging
import os
import resource
import selectors
import socket
import time
from collections.abc import Sequence

from bert_estimator.cluster import host_secret
from bert_estimator.cluster.host_connection import Connection

# A connection must say which host it is within this time.
_STRANGER_SECS = 10
# So many connections may be about to say it, besides one of each host. If there are more, the
# oldest ends: a host speaks at once.
_MOST_STRANGERS = 64
# Without a free descriptor for a connection, the chief looks again this much later.
_PAUSE_SECS = 0.2

# Strangers can make the chief write so many different lines, of so many characters.
_MOST_WARNINGS, _MOST_SHOWN = 20, 500


class Roll:
    """Keeps the connections of a roll call, and never waits for one of them.

    Args:
      addresses: the address of each host; the first is the chief's.
      selector: what the connections are registered with.
      master: what names the cores, which must be the same on all hosts.
      secret: what the hosts must prove to know; None if they need not.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        selector: selectors.BaseSelector,
        master: str | None,
        secret: bytes | None = None,
    ):
        self._addresses, self._selector, self._master = list(addresses), selector, master
        self._secret = secret
        self._asked = {}  # Connection that is to prove the secret -> (its hello, the challenge)
        self._strangers = {}  # Connection -> when it must have said who it is; the oldest first
        self._hosts = {}  # host's number -> Connection
        self._most_strangers = _most_strangers(len(addresses))
        self._warned = set()

    def missing(self) -> list[str]:
        """Returns the addresses of the hosts that have not come, with their numbers."""
        return [
            f"host {number} ({address})"
            for number, address in enumerate(self._addresses)
            if number and number not in self._hosts
        ]

    def accept(self, listener: socket.socket) -> None:
        """Accepts a connection; the oldest strangers end if there would be too many."""
        try:
            # A descriptor stays free: whatever else this process does may need it.
            spare = os.dup(listener.fileno())
            try:
                connection = Connection(listener.accept()[0], secs=0)
            finally:
                os.close(spare)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._make_room(error)
            return  # Otherwise the other side has gone already.
        self._strangers[connection] = time.monotonic() + _STRANGER_SECS
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._drop_oldest(self._most_strangers)

    def _make_room(self, error):
        """Halves the number of strangers, when there is not a descriptor for another one."""
        if self._strangers:
            self._most_strangers = max(1, len(self._strangers) // 2)
            self._drop_oldest(len(self._strangers) // 2)
        else:
            self._warn(f"The chief cannot accept a connection: {error.strerror} (ulimit -n)")
            time.sleep(_PAUSE_SECS)

    def _drop_oldest(self, most):
        while len(self._strangers) > most:
            self._drop(next(iter(self._strangers)))

    def read(self, connection: Connection) -> None:
        """Reads what a connection has brought, if it was not dropped a moment ago."""
        is_stranger = connection in self._strangers
        if not is_stranger and connection not in self._hosts.values():
            return
        try:
            messages = connection.receive()
        except ValueError:
            messages = None
        # A host says one thing at a time, and listens once it has come.
        if messages is None or len(messages) > 1 or (messages and not is_stranger):
            self._drop(connection)
        elif messages and connection in self._asked:
            self._check_proof(connection, messages[0])
        elif messages:
            self._greet(connection, messages[0])

    def drop_late(self) -> None:
        """Ends the connections that have not said in time who they are."""
        now = time.monotonic()
        for connection in [c for c, end in self._strangers.items() if end < now]:
            self._drop(connection)

    def _greet(self, connection, message):
        """Takes a host in, or has it prove the secret before anything is said about the training.

        What is not a host's message ends the connection.
        """
        if not _is_hello(message):
            self._drop(connection)
        elif (self._secret is None) != (message["nonce"] is None):
            has = "has" if self._secret else "does not have"
            self._refuse(
                connection,
                f"the chief {has} a secret, unlike the refused host: give all hosts "
                f"the same {host_secret.VARIABLE} or {host_secret.FILE_VARIABLE}, or none",
            )
        elif self._secret is None:
            self._enter(connection, message)
        else:
            self._asked[connection] = message, host_secret.nonce()
            connection.send(nonce=self._asked[connection][1])

    def _check_proof(self, connection, message):
        """Takes a host in if it has proven that it knows the secret, and proves it in return."""
        hello, challenge = self._asked.pop(connection)
        given = message.get("proof")
        right = host_secret.proof(self._secret, "host", hello, challenge)
        if message.keys() != {"proof"} or type(given) is not str:
            self._drop(connection)
        elif host_secret.is_same(given, right):
            connection.send(proof=host_secret.proof(self._secret, "chief", hello, challenge))
            self._enter(connection, hello)
        else:
            self._refuse(
                connection,
                f"its secret is not the chief's: give all hosts the same {host_secret.VARIABLE} "
                f"or {host_secret.FILE_VARIABLE}",
            )

    def _enter(self, connection, hello):
        """Takes a host in, or ends its connection, and says why to it and in the log."""
        number, addresses, master = hello["host"], hello["addresses"], hello["master"]
        own = self._addresses
        if addresses != own:
            self._refuse(
                connection,
                f"the chief's TF_CONFIG has the hosts {_shown(own)}, and the TF_CONFIG of the "
                f"refused host has {_shown(addresses)}: all hosts need the same cluster",
            )
        elif not 0 < number < len(own):
            self._refuse(
                connection,
                f"it comes as host {number}, but the hosts besides the chief are 1 to "
                f"{len(own) - 1}: correct its task in TF_CONFIG",
            )
        elif master != self._master:
            self._refuse(
                connection,
                f"the chief's master is {self._master!r}, and host {number} ({own[number]}) has "
                f"{_shown(master)}: all hosts need the same master (or TPU_NAME)",
            )
        elif number in self._hosts:
            self._refuse(
                connection,
                f"TF_CONFIG: another process has come as host {number} ({own[number]}): each host "
                "needs its own task",
                kind="taken",
            )
        else:
            del self._strangers[connection]
            self._hosts[number] = connection

    def _refuse(self, connection, reason, kind="refused"):
        self._warn(f"A host was refused: {reason}.")
        connection.send(**{kind: reason})
        self._drop(connection)

    def _warn(self, line):
        """Logs a line, unless it is there already or strangers have made too many."""
        if line not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(line)
            logging.getLogger("tensorflow").warning("%s", line)

    def _drop(self, connection):
        self._strangers.pop(connection, None)
        self._asked.pop(connection, None)
        self._hosts = {n: c for n, c in self._hosts.items() if c is not connection}
        self._selector.unregister(connection.socket)
        connection.close()

    def tell(self, **message) -> None:
        """Tells all hosts something; a host that does not listen is dropped."""
        for connection in list(self._hosts.values()):
            if not connection.send(**message):
                self._drop(connection)

    def finish(self) -> dict[int, Connection]:
        """Ends the connections of strangers; returns dict of host's number -> `Connection`."""
        for connection in self._strangers:
            connection.close()
        for connection in self._hosts.values():
            connection.wait_for()
        return self._hosts

    def close(self) -> None:
        """Ends all connections."""
        for connection in [*self._strangers, *self._hosts.values()]:
            connection.close()


def _most_strangers(number_of_hosts):
    """Returns how many connections may not have said who they are, at one time."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = _MOST_STRANGERS + number_of_hosts
    return most if descriptors < 0 else max(1, min(most, descriptors // 4))


def _is_hello(message):
    """Returns whether a message is what a host says when it comes."""
    addresses = message.get("addresses")
    return (
        message.keys() == {"host", "addresses", "master", "nonce"}
        and type(message["host"]) is int
        and type(addresses) is list
        and all(type(address) is str for address in addresses)
        and all(type(message[name]) in (str, type(None)) for name in ("master", "nonce"))
    )


def _shown(value):
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
