"""The roll call: the hosts of a training meet at the chief's address before jax starts.

Each of the other hosts connects to the chief, says which host it is, and waits. When all hosts are
there, the chief says so, and everybody keeps the connection: `host_watch` sees by it whether a host
is lost. A message is a line of JSON. The chief's port is free again afterwards, for jax.
"""

import contextlib
import json
import logging
import os
import selectors
import socket
import time
from collections.abc import Sequence

from bert_estimator import json_files

# While hosts are missing, a log line says so this often.
LOG_SECS = 15
_RETRY_SECS = 0.5
_ANSWER_SECS = 20
_LONGEST_LINE = 2**16

# The kernel notices within this time that the machine of a host has vanished. It answers for a
# process that is only busy.
_SILENT_SECS = 20


class ClusterError(RuntimeError):
    """The hosts that TF_CONFIG names cannot meet, however long they wait; the text says why."""


class MissingHostsError(ConnectionError):
    """A host has not come in time; the text names it."""


class Connection:
    """Sends and receives messages, which are dicts, over a socket."""

    def __init__(self, connected: socket.socket):
        self.socket = connected
        self._unread, self._messages = b"", []
        connected.setblocking(True)
        connected.settimeout(_ANSWER_SECS)
        _notice_silence(connected)

    def send(self, **message) -> None:
        """Sends a message; if the other side has gone, `receive` says so."""
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict] | None:
        """Returns the messages that have arrived; None if the connection has ended.

        Raises:
          ValueError: what came is not a message: the other side is another program.
        """
        if self._messages:
            messages, self._messages = self._messages, []
            return messages
        try:
            data = self.socket.recv(_LONGEST_LINE)
        except TimeoutError:
            return []
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        messages = [json_files.parse(line, "a message of a roll call") for line in lines]
        if len(self._unread) > _LONGEST_LINE:
            raise ValueError("not a message of a roll call")
        return messages

    def put_back(self, messages: list[dict]) -> None:
        """Keeps messages that arrived together with another one, for the next `receive`."""
        self._messages = messages

    @property
    def has_messages(self) -> bool:
        """Whether messages were put back: the socket does not say that there is something."""
        return bool(self._messages)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def hold(
    addresses: Sequence[str], wait_secs: float, master: str | None = None
) -> dict[int, Connection]:
    """Waits, as the chief, until all other hosts have come.

    Args:
      addresses: the address of each host, "host:port"; the first is the chief's.
      wait_secs: how long to wait.
      master: what names the cores, which must be the same on all hosts.

    Returns:
      A dict of host's number -> `Connection`.

    Raises:
      ClusterError: the port of the chief's address cannot be used.
      MissingHostsError: a host has not come in time.
    """
    listener = _listen(addresses[0])
    with listener, selectors.DefaultSelector() as selector:
        roll = _Roll(addresses, selector, master)
        selector.register(listener, selectors.EVENT_READ)
        end = time.monotonic() + wait_secs
        next_line = time.monotonic() + 1  # Hosts that start together do not need a line.
        try:
            while missing := roll.missing():
                now = time.monotonic()
                if now >= next_line:
                    _log_waiting(missing, end - now)
                    roll.tell(missing=missing)
                    next_line = now + LOG_SECS
                if now >= end:
                    raise MissingHostsError(_not_come(missing, wait_secs))
                for key, _ in selector.select(max(0.01, min(end, next_line) - now)):
                    roll.attend(key.fileobj)
        except BaseException as error:
            roll.tell(ended=str(error) or type(error).__name__)
            roll.close()
            raise
        roll.tell(complete=True)
        roll.close_strangers()
        return roll.hosts


class _Roll:
    """Keeps the connections of a roll call.

    Attributes:
      hosts: dict of host's number -> `Connection`, of the hosts that have come.
    """

    def __init__(self, addresses, selector, master):
        self._addresses, self._selector, self._master = list(addresses), selector, master
        self._strangers = {}  # socket -> Connection that has not said who it is
        self.hosts = {}

    def missing(self):
        """Returns the addresses of the hosts that have not come, with their numbers."""
        return [
            f"host {number} ({address})"
            for number, address in enumerate(self._addresses)
            if number and number not in self.hosts
        ]

    def attend(self, ready):
        """Accepts a connection, or reads from it."""
        known = {**self._strangers, **{c.socket: c for c in self.hosts.values()}}
        if ready not in known:
            with contextlib.suppress(OSError):
                connection = Connection(ready.accept()[0])
                self._strangers[connection.socket] = connection
                self._selector.register(connection.socket, selectors.EVENT_READ)
            return
        connection = known[ready]
        try:
            messages = connection.receive()
        except ValueError:
            messages = None  # a stranger
        # A host says one thing, and then listens.
        if messages is None or len(messages) > 1 or (messages and ready not in self._strangers):
            self._forget(connection)
        elif messages:
            self._enter(connection, messages[0])

    def _enter(self, connection, message):
        number, addresses = message.get("host"), message.get("addresses")
        places = range(1, len(self._addresses))
        if type(number) is not int or number not in places or addresses != self._addresses:
            self._refuse(
                connection,
                f"the chief's TF_CONFIG has the hosts {self._addresses}, and the TF_CONFIG of the "
                f"refused host has {addresses}: all hosts need the same cluster",
            )
            return
        if message.get("master") != self._master:
            self._refuse(
                connection,
                f"the chief's master is {self._master!r}, and host {number} ({addresses[number]}) "
                f"has {message.get('master')!r}: all hosts need the same master (or TPU_NAME)",
            )
            return
        if number in self.hosts:  # It was started again, and the kernel has not noticed the end.
            self.hosts[number].send(
                refused=f"TF_CONFIG: another process has come as host {number} "
                f"({addresses[number]}): each host needs its own task"
            )
            self._forget(self.hosts[number])
        self._strangers.pop(connection.socket, None)
        self.hosts[number] = connection

    def _refuse(self, connection, reason):
        """Ends a connection, and says why on both hosts; the chief goes on waiting."""
        logging.getLogger("tensorflow").warning("A host was refused: %s.", reason)
        connection.send(refused=reason)
        self._forget(connection)

    def _forget(self, connection):
        self._strangers.pop(connection.socket, None)
        self.hosts = {n: c for n, c in self.hosts.items() if c is not connection}
        self._selector.unregister(connection.socket)
        connection.close()

    def tell(self, **message):
        for connection in self.hosts.values():
            connection.send(**message)

    def close_strangers(self):
        for connection in self._strangers.values():
            connection.close()

    def close(self):
        self.close_strangers()
        for connection in self.hosts.values():
            connection.close()


def answer(
    addresses: Sequence[str], number: int, wait_secs: float, master: str | None = None
) -> Connection:
    """Waits, as another host than the chief, until all hosts have come.

    Args:
      addresses: as for `hold`.
      number: the number of this host.
      wait_secs: how long to wait.
      master: as for `hold`.

    Returns:
      The `Connection` to the chief.

    Raises:
      ClusterError: the chief refuses this host, because their TF_CONFIGs or masters do not fit.
      MissingHostsError: the chief, or another host, has not come in time.
    """
    chief, end = addresses[0], time.monotonic() + wait_secs
    next_line, trouble = time.monotonic() + 1, "it does not answer"
    while (now := time.monotonic()) < end:
        if now >= next_line:
            _log_waiting([f"the chief ({chief}; {trouble})"], end - now)
            next_line = now + LOG_SECS
        try:
            connected = socket.create_connection(split(chief), min(_ANSWER_SECS, end - now + 1))
        except OSError as error:
            trouble = error.strerror or str(error)
            time.sleep(_RETRY_SECS)
            continue
        connection = Connection(connected)
        connection.send(host=number, addresses=list(addresses), master=master)
        if _is_complete(connection, end):
            return connection
        trouble = "its port is used by another program, or by a training that has not ended"
        time.sleep(_RETRY_SECS)
    raise MissingHostsError(_not_come([f"the chief ({chief}; {trouble})"], wait_secs))


def _is_complete(connection, end):
    """Waits for the chief's word that all hosts have come; returns False if it went away."""
    # The chief waits as long as it was told to, which may be a little longer.
    while time.monotonic() < end + _ANSWER_SECS:
        try:
            messages = connection.receive()
        except ValueError:
            break
        if messages is None:
            break
        for number, message in enumerate(messages, 1):
            if "complete" in message:
                connection.put_back(messages[number:])
                return True
            if "missing" in message:
                _log_waiting(message["missing"], end - time.monotonic())
            if "refused" in message:
                connection.close()
                raise ClusterError(message["refused"])
            if "ended" in message:
                connection.close()
                raise MissingHostsError(f"The chief has ended: {message['ended']}")
    connection.close()
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


def _notice_silence(connected):
    """Has the kernel end a connection when the other machine is silent for `_SILENT_SECS`."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": _SILENT_SECS // 4,
        "TCP_KEEPALIVE": _SILENT_SECS // 4,  # the name on macOS
        "TCP_KEEPINTVL": _SILENT_SECS // 4,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 1000 * _SILENT_SECS,
    }
    for name, value in options.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _log_waiting(missing, secs):
    logging.getLogger("tensorflow").info(
        "Waiting for %s, for at most %.0f more seconds.", _listed(missing), max(0, secs)
    )


def _not_come(missing, wait_secs):
    return (
        f"{_listed(missing)} did not come within {wait_secs:g} seconds. Start the same command on "
        "all hosts that TF_CONFIG names, and look there for errors."
    )


def _listed(names):
    shown = names[:10]
    return ", ".join(shown) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
