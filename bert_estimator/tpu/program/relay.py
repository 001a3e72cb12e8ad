"""A relay: a port of this machine that leads to the port of another machine.

jax's client ends its process, with a C++ stack, as soon as the connection to the chief breaks. So a
host's client connects to a relay, which keeps the client's connection open then. `host_watch` ends
the process, with a sentence.
"""

import contextlib
import socket
import threading
import time

_BYTES = 2**16

# The target may start to listen a moment after the client connects.
_CONNECT_SECS, _RETRY_SECS = 60, 0.05


def start(target: tuple[str, int]) -> int:
    """Starts a relay to (host, port); returns the port of this machine that leads there."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener, target), name="relay", daemon=True).start()
    return listener.getsockname()[1]


def _accept(listener, target):
    while True:
        near, _ = listener.accept()
        threading.Thread(target=_serve, args=(near, target), name="relay", daemon=True).start()


def _serve(near, target):
    """Connects a client; the connection to the client outlives the connection to the target."""
    far = _connect(target)
    if far is not None:
        back = threading.Thread(target=_copy, args=(far, near), name="relay", daemon=True)
        back.start()
        _copy(near, far)
        far.close()
    near.close()


def _connect(target):
    """Returns a connection to the target, or None if there is not one in time."""
    end = time.monotonic() + _CONNECT_SECS
    while time.monotonic() < end:
        try:
            return socket.create_connection(target)
        except OSError:
            time.sleep(_RETRY_SECS)
    return None


def _copy(source, sink):
    """Copies bytes until a side has gone."""
    with contextlib.suppress(OSError):
        while data := source.recv(_BYTES):
            sink.sendall(data)
