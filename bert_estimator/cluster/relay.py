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

# jax's client needs one connection at a time. Other programs of this machine can reach the port
# too: what they open beyond this is closed.
_MOST_CONNECTIONS = 16

# The target may start to listen a moment after the client connects.
_CONNECT_SECS, _RETRY_SECS = 60, 0.05


def start(target: tuple[str, int]) -> int:
    """Starts a relay to (host, port); returns the port of this machine that leads there."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener, target), name="relay", daemon=True).start()
    return listener.getsockname()[1]


def _accept(listener, target):
    serving = []
    while True:
        try:
            near, _ = listener.accept()
        except OSError:  # such as a lack of descriptors, for a while
            time.sleep(_RETRY_SECS)
            continue
        serving = [thread for thread in serving if thread.is_alive()]
        if len(serving) < _MOST_CONNECTIONS:
            args = (near, target)
            serving.append(threading.Thread(target=_serve, args=args, name="relay", daemon=True))
            serving[-1].start()
        else:
            near.close()


def _serve(near, target):
    """Connects a client; the connection to the client outlives the connection to the target."""
    with near:
        far = _connect(target)
        if far is None:
            return
        with far:
            back = threading.Thread(target=_copy, args=(far, near), name="relay", daemon=True)
            back.start()
            _copy(near, far)
            _copy(near, None)
            for connected in (near, far):  # This ends the other thread, too.
                with contextlib.suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)
            back.join()


def _connect(target):
    """Returns a connection to the target, or None if there is not one in time."""
    end = time.monotonic() + _CONNECT_SECS
    while (secs := end - time.monotonic()) > 0:
        try:
            connected = socket.create_connection(target, secs)
        except OSError:
            time.sleep(_RETRY_SECS)
        else:
            connected.settimeout(None)
            return connected
    return None


def _copy(source, sink):
    """Copies bytes until a side has gone; without a sink, reads them."""
    with contextlib.suppress(OSError):
        while data := source.recv(_BYTES):
            if sink is not None:
                sink.sendall(data)
