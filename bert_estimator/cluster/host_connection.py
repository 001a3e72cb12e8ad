"""A connection between two hosts of a training: it carries messages, each a line of JSON."""

import contextlib
import json
import socket

from bert_estimator.system import json_files

_ANSWER_SECS = 20
_LONGEST_LINE = 2**16

# The kernel notices within this time that the machine of a host has vanished. It answers for a
# process that is only busy.
SILENT_SECS = 20


class Connection:
    """Sends and receives messages, which are dicts, over a socket.

    Args:
      connected: the socket, which is closed if it has ended already.
      secs: how long `send` and `receive` wait for the other side.

    Raises:
      OSError: the other side has gone already.
    """

    def __init__(self, connected: socket.socket, secs: float = _ANSWER_SECS):
        self.socket = connected
        self._unread, self._messages = b"", []
        try:
            connected.settimeout(secs)
            _notice_silence(connected)
        except OSError:
            connected.close()
            raise

    def wait_for(self, secs: float = _ANSWER_SECS) -> None:
        """Sets how long `send` and `receive` wait for the other side."""
        self.socket.settimeout(secs)

    def send(self, **message) -> bool:
        """Sends a message; returns whether the other side has taken all of it."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
            return True
        except OSError:
            return False

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
        except (TimeoutError, BlockingIOError):
            return []
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        if len(self._unread) > _LONGEST_LINE or self._unread[:1] not in (b"", b"{"):
            raise ValueError("not a message of a host")
        what = "a message of a host"
        return [json_files.parse(line, what, dict, _LONGEST_LINE) for line in lines]

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


def printable(text: str) -> str:
    """Returns what another host has said as one line that does not steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _notice_silence(connected):
    """Has the kernel end a connection when the other machine is silent for `SILENT_SECS`."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": SILENT_SECS // 4,
        "TCP_KEEPALIVE": SILENT_SECS // 4,  # the name on macOS
        "TCP_KEEPINTVL": SILENT_SECS // 4,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 1000 * SILENT_SECS,
    }
    for name, value in options.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
