"""Tests the relay between a client of this machine and the chief's port, on real sockets."""

import contextlib
import socket
import threading

import pytest
import toy

from bert_estimator.cluster import relay

LONG_SECS = 30  # Nothing here waits so long.


@pytest.fixture
def relayed():
    """Returns a function that opens a connection to a relay, and the listener of its target."""
    with contextlib.ExitStack() as opened:
        target = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        target.settimeout(LONG_SECS)
        port = relay.start(target.getsockname())

        def connect():
            connected = socket.create_connection(("127.0.0.1", port), LONG_SECS)
            return opened.enter_context(connected)

        yield connect, target


def threads():
    return {thread for thread in threading.enumerate() if thread.name == "relay"}


def test_a_relay_copies_both_ways_and_outlives_the_target(relayed):
    connect, target = relayed
    near = connect()
    with target.accept()[0] as far:
        near.sendall(b"ping")
        assert far.recv(10) == b"ping"
        far.sendall(b"pong")
        assert near.recv(10) == b"pong"
    near.settimeout(0.2)
    for _ in range(3):
        near.sendall(b"is somebody there?")
        with pytest.raises(TimeoutError):
            near.recv(10)  # The connection does not end.


def test_a_connection_that_ends_leaves_its_place(relayed):
    connect, target = relayed
    for _ in range(3 * relay._MOST_CONNECTIONS):
        with connect() as near:
            near.sendall(b"ping")
            with target.accept()[0] as far:
                assert far.recv(10) == b"ping"
                near.close()
                assert far.recv(10) == b""


def test_connections_beyond_the_bound_are_closed_and_leave_nothing(relayed):
    connect, target = relayed
    before = threads()
    first = connect()
    with contextlib.ExitStack() as opened:
        opened.enter_context(target.accept()[0])
        others = [connect() for _ in range(relay._MOST_CONNECTIONS + 20)]
        for other in others[-20:]:
            assert other.recv(10) == b""
        for other in others:
            other.close()
        toy.wait_until(lambda: len(threads() - before) == 2, secs=LONG_SECS)
        with connect() as again:
            again.sendall(b"ping")
            while (far := opened.enter_context(target.accept()[0])).recv(10) == b"":
                pass
            far.sendall(b"pong")
            assert again.recv(10) == b"pong"
    first.close()
    toy.wait_until(lambda: threads() <= before, secs=LONG_SECS)
