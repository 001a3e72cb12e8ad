"""Feeds the chief's port with what strangers may send, on real sockets, while honest hosts meet."""

import concurrent.futures
import contextlib
import json
import socket
import struct

import pytest
from fuzzing import changed, fuzzed
from hypothesis import strategies as st

from bert_estimator.cluster import roll_call

LONG_SECS = 20  # Nothing here waits so long.
SECRET = b"a secret of hosts"
PLACES = 3

# ADDRESS stands for the chief's address. Without a secret, who says this has the place.
HELLO = {"host": 1, "addresses": ["ADDRESS", "b:1", "c:1"], "master": None, "nonce": None}
PROVING = {**HELLO, "nonce": "0" * 64}
REPLIES = [
    {"proof": "0" * 64}, {"proof": None}, {"nonce": "1"}, {"complete": True}, {"refused": "x"},
    {"taken": "x"}, {"leaving": 0, "host": 1}, {"lost": 2, "why": "x", "code": 0}, {},
]  # fmt: skip


def line(message):
    return json.dumps(message).encode() + b"\n"


def takes_a_place(message):
    return any({**HELLO, "host": number} == message for number in range(1, PLACES))


WRONG_HELLOS = st.one_of(changed(HELLO), changed(PROVING)).filter(lambda m: not takes_a_place(m))
MESSAGES = st.one_of(
    st.sampled_from([line(PROVING), *map(line, REPLIES)]),
    WRONG_HELLOS.map(line),
    st.binary(max_size=40),
    st.integers(1, 3000).map(lambda number: b"{}\n" * number),
    st.integers(1, 2**17).map(lambda number: b"{" + b" " * number),
)
# A stranger sends pieces of bytes, some of them cut, and then ends in one of these ways.
ENDS = ("close", "reset", "half", "silent")
STRANGERS = st.tuples(
    st.lists(st.tuples(MESSAGES, st.integers(0, 100)), max_size=4), st.sampled_from(ENDS)
)


@st.composite
def meetings(draw):
    """Draws when each honest host and stranger comes, and whether the hosts have a secret."""
    strangers = draw(st.lists(STRANGERS, min_size=1, max_size=8))
    comers = draw(st.permutations([*strangers, *range(1, PLACES)]))
    return comers, draw(st.sampled_from([None, SECRET]))


@fuzzed(meetings())
@pytest.mark.usefixtures("short_pauses")
def test_honest_hosts_meet_whatever_strangers_send(data):
    comers, secret = data
    with (
        concurrent.futures.ThreadPoolExecutor(PLACES) as threads,
        contextlib.ExitStack() as opened,
        free_port() as port,
    ):
        addresses = [f"localhost:{port}", "b:1", "c:1"]
        chief = threads.submit(roll_call.hold, addresses, LONG_SECS, None, secret)
        hosts = {}
        for comer in comers:
            if isinstance(comer, int):
                args = (addresses, comer, LONG_SECS, None, secret)
                hosts[comer] = threads.submit(roll_call.answer, *args)
            elif len(hosts) + 1 < PLACES:  # Otherwise the chief may have left the port already.
                disturb(port, *comer, opened)
        connections = chief.result()
        assert sorted(connections) == sorted(hosts)
        for number, host in hosts.items():
            connections[number].send(told=number)
            assert host.result().receive() == [{"told": number}]
            host.result().close()
            connections[number].close()


def disturb(port, pieces, end, opened):
    """Does what a stranger does; a silent one stays until the hosts have met."""
    connected = opened.enter_context(connect(port))
    with contextlib.suppress(OSError):  # The chief may have ended the connection.
        for data, cut in pieces:
            data = data.replace(b"ADDRESS", b"localhost:%d" % port)
            place = len(data) * cut // 100
            for part in (data[:place], data[place:]):
                connected.sendall(part)
        if end == "half":
            connected.shutdown(socket.SHUT_WR)
    if end == "reset":
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if end in ("close", "reset"):
        connected.close()


def connect(port):
    """Returns a connection to the chief, which may come a moment later."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            connected = socket.create_connection(("localhost", port), LONG_SECS)
            connected.settimeout(1)
            if connected.getsockname() != connected.getpeername():
                return connected
            connected.close()  # It had got the chief's own port, and met itself.


@contextlib.contextmanager
def free_port():
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        port = listening.getsockname()[1]
    yield port


@pytest.fixture(scope="module")
def short_pauses():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roll_call, "_RETRY_SECS", 0.01)
        yield
