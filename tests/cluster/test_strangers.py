"""Strangers at the chief's port, and in the chief's place, on real sockets, while hosts meet."""

import concurrent.futures
import contextlib
import json
import socket
import struct

import pytest
from fuzzing import changed, fuzz_settings, fuzzed
from hypothesis import stateful
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
WAYS = ("close", "reset", "half")  # in which a stranger goes; others stay


class Meeting(stateful.RuleBasedStateMachine):
    """A chief, honest hosts and strangers, who come, speak and go in any order.

    The chief may have left the port when all hosts are there. So the last host comes at the end.
    """

    connections = stateful.Bundle("connections")

    @stateful.initialize(secret=st.sampled_from([None, SECRET]))
    def begin(self, secret):
        self.opened = contextlib.ExitStack()
        self.threads = self.opened.enter_context(concurrent.futures.ThreadPoolExecutor(PLACES))
        self.port, self.secret, self.hosts = free_port(), secret, {}
        self.addresses = [f"localhost:{self.port}", "b:1", "c:1"]
        self.chief = self.call(roll_call.hold, self.addresses)

    def call(self, function, *args):
        return self.threads.submit(function, *args, LONG_SECS, None, self.secret)

    @stateful.rule(target=connections)
    def a_stranger_comes(self):
        return self.opened.enter_context(connect(self.port))

    @stateful.rule(connected=connections, data=MESSAGES, cut=st.integers(0, 100))
    def a_stranger_speaks(self, connected, data, cut):
        data = data.replace(b"ADDRESS", b"localhost:%d" % self.port)
        place = len(data) * cut // 100
        with contextlib.suppress(OSError):  # The chief may have ended the connection.
            for part in (data[:place], data[place:]):
                connected.sendall(part)

    @stateful.rule(connected=stateful.consumes(connections), way=st.sampled_from(WAYS))
    def a_stranger_goes(self, connected, way):
        if way == "half":
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_WR)
            return
        if way == "reset":
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connected.close()

    @stateful.precondition(lambda self: len(self.hosts) < PLACES - 2)
    @stateful.rule()
    def a_host_comes(self):
        number = len(self.hosts) + 1
        self.hosts[number] = self.call(roll_call.answer, self.addresses, number)

    def teardown(self):
        if not hasattr(self, "opened"):
            return
        with self.opened:
            while len(self.hosts) < PLACES - 1:
                Meeting.a_host_comes(self)
            connections = self.chief.result()
            assert sorted(connections) == sorted(self.hosts)
            for number, host in self.hosts.items():
                connections[number].send(told=number)
                assert host.result().receive() == [{"told": number}]
                host.result().close()
                connections[number].close()


@pytest.mark.usefixtures("short_pauses")
def test_honest_hosts_meet_whatever_strangers_do():
    stateful.run_state_machine_as_test(Meeting, settings=fuzz_settings(15))


# What somebody at the chief's address may say who does not know the secret.
FALSE_WORDS = st.one_of(
    st.sampled_from([line(word) for word in [*REPLIES, {"missing": "x"}, {"ended": "x"}]]),
    changed({"nonce": "0" * 64, "proof": "0" * 64, "refused": "x"}).map(line),
    st.binary(max_size=40),
)


@fuzzed(st.lists(st.lists(FALSE_WORDS, max_size=4), max_size=4))
@pytest.mark.usefixtures("short_pauses")
def test_a_host_with_a_secret_finds_its_chief_whatever_others_say(data):
    port = free_port()
    addresses = [f"localhost:{port}", "b:1"]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        with socket.create_server(("localhost", port)) as listener:
            host = threads.submit(roll_call.answer, addresses, 1, LONG_SECS, None, SECRET)
            for words in data:
                with listener.accept()[0] as connected, contextlib.suppress(OSError):
                    connected.recv(2**16)
                    for word in words:
                        connected.sendall(word)
        chief = threads.submit(roll_call.hold, addresses, LONG_SECS, None, SECRET)
        chief.result()[1].send(told=1)
        assert host.result().receive() == [{"told": 1}]
        host.result().close()
        chief.result()[1].close()


def connect(port):
    """Returns a connection to the chief, which may come a moment later."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            connected = socket.create_connection(("localhost", port), LONG_SECS)
            connected.settimeout(1)
            if connected.getsockname() != connected.getpeername():
                return connected
            connected.close()  # It had got the chief's own port, and met itself.


def free_port():
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return listening.getsockname()[1]


@pytest.fixture(scope="module")
def short_pauses():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roll_call, "_RETRY_SECS", 0.01)
        yield
