"""Tests how hosts meet, with threads as hosts."""

import concurrent.futures
import contextlib
import json
import logging
import socket
import subprocess
import sys
import time

import pytest

from bert_estimator.cluster import host_secret, roll, roll_call

LONG_SECS = 30  # Nothing here waits so long.


@pytest.fixture
def address():
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return f"localhost:{listening.getsockname()[1]}"


@pytest.fixture
def hosts():
    """Calls functions as hosts, each on a thread of its own."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        yield pool.submit


def result(future):
    return future.result(LONG_SECS)


def test_three_hosts_meet(address, hosts):
    addresses = [address, "b:1", "c:1"]
    others = [hosts(roll_call.answer, addresses, number, LONG_SECS) for number in (2, 1)]
    chief = hosts(roll_call.hold, addresses, LONG_SECS)
    connections = result(chief)
    assert sorted(connections) == [1, 2]
    for number, other in zip((2, 1), others, strict=True):
        connections[number].send(told=number)
        assert result(other).receive() == [{"told": number}]
    # jax listens on the port while these connections are open.
    with socket.create_server(("", roll_call.split(address)[1])):
        pass
    for connection in [*connections.values(), *map(result, others)]:
        connection.close()


def test_what_comes_together_with_the_chief_s_word_is_kept():
    """The chief may say that a host is lost right after it has said that all have come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with concurrent.futures.ThreadPoolExecutor() as threads:
            answering = threads.submit(roll_call.answer, [address, "b:1"], 1, LONG_SECS)
            chief, _ = listener.accept()
            with chief:
                chief.sendall(b'{"missing": "b"}\n{"complete": true}\n{"lost": 2, "why": "x"}\n')
                connection = answering.result()
                assert connection.has_messages
                assert connection.receive() == [{"lost": 2, "why": "x"}]
                assert not connection.has_messages
                chief.sendall(b'{"leaving": 0, "host": 0}\n')
                assert connection.receive() == [{"leaving": 0, "host": 0}]
                connection.close()


def test_a_port_that_is_taken():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        message = f"chief's address is here:{port}, but port {port} of this machine cannot be used"
        with pytest.raises(roll_call.ClusterError, match=message):
            roll_call.hold([f"here:{port}", "b:1"], LONG_SECS)


def test_a_host_that_does_not_come(address, hosts, monkeypatch, logged):
    monkeypatch.setattr(roll_call, "LOG_SECS", 0.1)
    monkeypatch.setattr(roll_call, "_RETRY_SECS", 0.01)
    addresses = [address, "b:1", "c:1"]
    present = hosts(roll_call.answer, addresses, 1, LONG_SECS)
    message = r"^host 2 \(c:1\) did not come within 2.5 seconds. Start the same command on all"
    with pytest.raises(roll_call.MissingHostsError, match=message):
        roll_call.hold(addresses, 2.5)
    with pytest.raises(roll_call.MissingHostsError, match=r"The chief has ended: host 2 \(c:1\)"):
        result(present)
    lines = [line for _, line in logged]
    assert any(line.startswith("Waiting for host 2 (c:1), for at most ") for line in lines)


def test_a_chief_that_does_not_come(address, monkeypatch):
    monkeypatch.setattr(roll_call, "_RETRY_SECS", 0.01)
    message = rf"the chief \({address}; .*refused\) did not come within 0.1 seconds"
    with pytest.raises(roll_call.MissingHostsError, match=message):
        roll_call.answer([address, "b:1"], 1, 0.1)


def test_hosts_with_other_clusters_are_refused(address, hosts):
    chief = hosts(roll_call.hold, [address, "b:1"], LONG_SECS)
    message = r"the chief's TF_CONFIG has the hosts .*'b:1'.* of the refused host has .*'c:1'"
    with pytest.raises(roll_call.ClusterError, match=message):
        roll_call.answer([address, "c:1"], 1, LONG_SECS)
    result(hosts(roll_call.answer, [address, "b:1"], 1, LONG_SECS)).close()
    result(chief)[1].close()


@pytest.mark.parametrize("number", [-1, 0, 3])
@pytest.mark.parametrize("secret", [None, b"a secret of hosts"])
def test_a_host_that_is_not_in_the_cluster_is_refused(address, hosts, number, secret):
    addresses = [address, "b:1", "c:1"]
    chief = hosts(roll_call.hold, addresses, LONG_SECS, None, secret)
    message = f"^it comes as host {number}, but the hosts besides the chief are 1 to 2: correct its"
    with pytest.raises(roll_call.ClusterError, match=message):
        roll_call.answer(addresses, number, LONG_SECS, None, secret)
    others = [hosts(roll_call.answer, addresses, n, LONG_SECS, None, secret) for n in (1, 2)]
    for connection in [*result(chief).values(), *map(result, others)]:
        connection.close()


@pytest.mark.parametrize("secret", [None, b"a secret of hosts"])
def test_a_chief_that_has_proven_the_secret_may_refuse(address, hosts, monkeypatch, secret):
    monkeypatch.setattr(roll_call, "_RETRY_SECS", 0.01)
    monkeypatch.setattr(roll_call, "_TAKEN_SECS", 0.2)
    addresses = [address, "b:1", "c:1"]
    chief = hosts(roll_call.hold, addresses, LONG_SECS, "local", secret)
    for cluster, number, master, message in [
        ([address, "x:1"], 1, "local", "TF_CONFIG has the hosts"),
        (addresses, 1, "gpu", "all hosts need the same master"),
    ]:
        with pytest.raises(roll_call.ClusterError, match=message):
            roll_call.answer(cluster, number, LONG_SECS, master, secret)
    claimants = [
        hosts(roll_call.answer, addresses, 2, LONG_SECS, "local", secret) for _ in range(2)
    ]
    (refused,), (first,) = concurrent.futures.wait(
        claimants, LONG_SECS, concurrent.futures.FIRST_COMPLETED
    )
    with pytest.raises(roll_call.ClusterError, match="another process has come as host 2"):
        result(refused)
    last = hosts(roll_call.answer, addresses, 1, LONG_SECS, "local", secret)
    for connection in [*result(chief).values(), result(first), result(last)]:
        connection.close()


def test_hosts_with_other_masters_are_refused(address, hosts):
    addresses = [address, "b:1"]
    chief = hosts(roll_call.hold, addresses, LONG_SECS, "rehearse:2")
    message = "master is 'rehearse:2', and host 1 .* has 'rehearse:4': all hosts need the same"
    with pytest.raises(roll_call.ClusterError, match=message):
        roll_call.answer(addresses, 1, LONG_SECS, "rehearse:4")
    result(hosts(roll_call.answer, addresses, 1, LONG_SECS, "rehearse:2")).close()
    result(chief)[1].close()


def test_of_two_processes_with_the_same_task_the_first_stays(address, hosts, monkeypatch, logged):
    monkeypatch.setattr(roll_call, "_RETRY_SECS", 0.01)
    monkeypatch.setattr(roll_call, "_TAKEN_SECS", 0.2)
    addresses = [address, "b:1", "c:1"]
    chief = hosts(roll_call.hold, addresses, LONG_SECS)
    claimants = [hosts(roll_call.answer, addresses, 1, LONG_SECS) for _ in range(2)]
    done, (first,) = concurrent.futures.wait(
        claimants, LONG_SECS, concurrent.futures.FIRST_COMPLETED
    )
    (refused,) = done
    with pytest.raises(roll_call.ClusterError, match=r"another process has come as host 1 \(b:1\)"):
        result(refused)
    result(hosts(roll_call.answer, addresses, 2, LONG_SECS)).close()
    connections = result(chief)
    connections[1].send(told=1)
    assert result(first).receive() == [{"told": 1}]
    for connection in [result(first), *connections.values()]:
        connection.close()
    warnings = [line for level, line in logged if level == "WARNING"]
    assert len(warnings) == 1  # for all of its attempts


def test_a_process_that_was_started_again_gets_its_place_once_the_first_has_vanished(
    address, hosts, monkeypatch
):
    monkeypatch.setattr(roll_call, "_RETRY_SECS", 0.01)
    addresses = [address, "b:1", "c:1"]
    chief = hosts(roll_call.hold, addresses, LONG_SECS)
    with stranger(address) as vanishing:
        vanishing.sendall(hello(addresses))
        again = hosts(roll_call.answer, addresses, 1, LONG_SECS)
        vanishing.settimeout(LONG_SECS)
        assert b"missing" in vanishing.recv(2**16)  # It has the place.
        assert not again.done()
    result(hosts(roll_call.answer, addresses, 2, LONG_SECS)).close()
    result(again).close()
    for connection in result(chief).values():
        connection.close()


def hello(addresses, number=1):
    message = {"host": number, "addresses": addresses, "master": None, "nonce": None}
    return json.dumps(message).encode() + b"\n"


HELLO = b'{"host": 1, "addresses": ["ADDRESS", "b:1"], "master": null, "nonce": null}\n'


@pytest.mark.parametrize(
    "noise",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"[1]\n",
        b"\xff" * 10**5,
        b"{}\n",
        b"{}\n{}\n",
        b"{}\n" * 10**4,
        b"\n\n",
        HELLO + b"{}\n",
        HELLO + HELLO,
        HELLO + b"x\n",
        HELLO.replace(b"1", b"true", 1),
        HELLO.replace(b"1", b"1.0", 1),
        HELLO.replace(b"1", b"[1]", 1),
        HELLO.replace(b'["ADDRESS", "b:1"]', b"null"),
        HELLO.replace(b"null", b"{}", 1),
        HELLO.replace(b"null", b"[" * 10**4, 1),
        HELLO.replace(b'"nonce": null', b'"nonce": 1'),
        HELLO.replace(b'"nonce": null', b'"nonce": "1"'),
        HELLO.replace(b', "nonce": null', b""),
    ],
    ids=lambda noise: str(noise[:70]),
)
def test_strangers_do_not_disturb_a_roll_call(address, hosts, noise):
    chief = hosts(roll_call.hold, [address, "b:1"], LONG_SECS)
    with stranger(address) as connected:
        # The chief may end the connection before it has read all.
        with contextlib.suppress(OSError):
            connected.sendall(noise.replace(b"ADDRESS", address.encode()))
            connected.shutdown(socket.SHUT_WR)
        until_the_end(connected)
    assert not chief.done()
    result(hosts(roll_call.answer, [address, "b:1"], 1, LONG_SECS)).close()
    result(chief)[1].close()


def test_silent_strangers_do_not_keep_anybody_out(address, hosts, monkeypatch):
    """They are more than the chief keeps, and each of them ends by itself."""
    chief = hosts(roll_call.hold, [address, "b:1", "c:1"], LONG_SECS)
    with contextlib.ExitStack() as strangers:
        silent = [strangers.enter_context(stranger(address)) for _ in range(100)]
        first = hosts(roll_call.answer, [address, "b:1", "c:1"], 1, LONG_SECS)
        for connected in silent[: 100 - roll._MOST_STRANGERS - 4]:
            assert until_the_end(connected) == b""
        result(hosts(roll_call.answer, [address, "b:1", "c:1"], 2, LONG_SECS)).close()
        for connected in silent[-10:]:
            assert until_the_end(connected) == b""
    result(first).close()
    for connection in result(chief).values():
        connection.close()


@pytest.mark.parametrize("said", [b"", b'{"host": 1'])
def test_a_stranger_that_does_not_finish_is_dropped(address, hosts, monkeypatch, said):
    monkeypatch.setattr(roll, "_STRANGER_SECS", 0.1)
    monkeypatch.setattr(roll_call, "_LOOK_SECS", 0.05)
    chief = hosts(roll_call.hold, [address, "b:1"], LONG_SECS)
    with stranger(address) as connected:
        connected.sendall(said)
        assert until_the_end(connected) == b""
    assert not chief.done()
    result(hosts(roll_call.answer, [address, "b:1"], 1, LONG_SECS)).close()
    result(chief)[1].close()


def test_a_stranger_that_writes_without_end_is_dropped(address, hosts):
    chief = hosts(roll_call.hold, [address, "b:1"], LONG_SECS)
    with stranger(address) as connected, contextlib.suppress(ConnectionError):
        while True:
            connected.sendall(b'{"host"' + b" " * 2**14)
    result(hosts(roll_call.answer, [address, "b:1"], 1, LONG_SECS)).close()
    result(chief)[1].close()


# A chief whose descriptors strangers could use up.
CHIEF = """
import os, resource, sys
from bert_estimator.cluster import host_secret, roll, roll_call
address, free = sys.argv[1], int(sys.argv[2])
most = len(os.listdir("/proc/self/fd")) + free
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
roll._most_strangers = lambda hosts: int(sys.argv[3])
attempts, accept = [], roll.Roll.accept
roll.Roll.accept = lambda *given: attempts.append(accept(*given))
connections = roll_call.hold([address, "b:1"], 100)
print(sorted(connections), len(attempts))
"""


@pytest.mark.parametrize("most", [4, 1000])
def test_a_chief_with_few_descriptors(address, hosts, most):
    """A hundred silent connections keep nobody out, and the chief does not try without a pause."""
    with contextlib.ExitStack() as strangers:
        chief = subprocess.Popen(
            [sys.executable, "-c", CHIEF, address, "12", str(most)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        strangers.callback(chief.kill)
        silent = [strangers.enter_context(stranger(address)) for _ in range(100)]
        assert until_the_end(silent[0]) == b""
        result(hosts(roll_call.answer, [address, "b:1"], 1, LONG_SECS)).close()
        out, err = chief.communicate(timeout=LONG_SECS)
    assert chief.returncode == 0, err
    numbers, attempts = out.rsplit(None, 1)
    assert (numbers, err) == ("[1]", "")
    assert int(attempts) < 1000


def until_the_end(connected):
    """Waits until the chief has ended a connection; returns what it said before."""
    connected.settimeout(LONG_SECS)
    said = b""
    with contextlib.suppress(ConnectionError):
        while data := connected.recv(2**16):
            said += data
    return said


def stranger(address):
    end = time.monotonic() + LONG_SECS
    while True:
        try:
            connected = socket.create_connection(roll_call.split(address))
        except ConnectionRefusedError:
            assert time.monotonic() < end, "the chief has not begun"
            time.sleep(0.01)
            continue
        if connected.getsockname() != connected.getpeername():
            return connected
        connected.close()  # It had got the chief's own port, and met itself.


def test_another_program_at_the_chief_s_address(hosts, monkeypatch):
    monkeypatch.setattr(roll_call, "_RETRY_SECS", 0.01)
    with socket.create_server(("", 0)) as server:
        chief = f"localhost:{server.getsockname()[1]}"
        host = hosts(roll_call.answer, [chief, "b:1"], 1, 1)
        while not host.done():
            server.settimeout(0.1)
            with contextlib.suppress(TimeoutError, OSError), server.accept()[0] as connected:
                connected.sendall(b"\x00\x00 another protocol\n")
        message = "its port is used by another program"
        with pytest.raises(roll_call.MissingHostsError, match=message):
            result(host)


def test_addresses():
    assert roll_call.split("10.0.0.1:2222") == ("10.0.0.1", 2222)
    assert roll_call.split("[::1]:80") == ("::1", 80)


@pytest.fixture(autouse=True)
def information_is_logged():
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(level)


SECRET, OTHER = b"a secret of hosts", b"another secret of hosts"


def test_hosts_that_know_the_secret_meet(address, hosts):
    addresses = [address, "b:1", "c:1"]
    chief = hosts(roll_call.hold, addresses, LONG_SECS, None, SECRET)
    others = [hosts(roll_call.answer, addresses, n, LONG_SECS, None, SECRET) for n in (1, 2)]
    for number, other in enumerate(others, 1):
        result(chief)[number].send(told=number)
        assert result(other).receive() == [{"told": number}]
    for connection in [*result(chief).values(), *map(result, others)]:
        connection.close()


UNPROVEN = (
    "who answers there does not prove to know the secret, and says: {}.* did not come within 1 sec"
)


@pytest.mark.parametrize(
    ("of_chief", "of_host", "error", "message"),
    [
        (
            SECRET,
            OTHER,
            roll_call.MissingHostsError,
            UNPROVEN.format("its secret is not the chief's: give all hosts the same BERT_ESTIMA"),
        ),
        (
            SECRET,
            None,
            roll_call.ClusterError,
            "the chief has a secret, unlike the refused host: give all hosts the same",
        ),
        (
            None,
            SECRET,
            roll_call.MissingHostsError,
            UNPROVEN.format("the chief does not have a secret, unlike the refused host"),
        ),
    ],
)
def test_hosts_with_other_secrets_are_refused(address, hosts, of_chief, of_host, error, message):
    addresses = [address, "b:1"]
    chief = hosts(roll_call.hold, addresses, LONG_SECS, None, of_chief)
    with pytest.raises(error, match=message):
        roll_call.answer(addresses, 1, 1, None, of_host)
    result(hosts(roll_call.answer, addresses, 1, LONG_SECS, None, of_chief)).close()
    result(chief)[1].close()


def test_who_does_not_know_the_secret_learns_nothing_and_cannot_use_what_it_overhears(
    address, hosts
):
    addresses = [address, "b:secret", "c:secret"]
    chief = hosts(roll_call.hold, addresses, LONG_SECS, None, SECRET)
    said = json.loads(hello(addresses)) | {"nonce": "0" * 64}
    # It echoes what it gets, and replays what it has overheard: a right proof for other numbers.
    heard = host_secret.proof(SECRET, "host", said, "0" * 64)
    for answer in ({"proof": heard}, {"proof": 1}, {"proof": "\u00e9"}, {"nonce": "0"}, said):
        with stranger(address) as connected:
            connected.sendall(json.dumps(said).encode() + b"\n")
            challenge = json.loads(connected.recv(2**16))
            assert challenge.keys() == {"nonce"}
            connected.sendall(json.dumps(answer).encode() + b"\n")
            assert b"complete" not in (words := until_the_end(connected))
            assert b"c:secret" not in words
    with stranger(address) as connected:
        connected.sendall(hello(["x:1"]))
        assert b"b:secret" not in until_the_end(connected)
    others = [hosts(roll_call.answer, addresses, n, LONG_SECS, None, SECRET) for n in (1, 2)]
    for connection in [*result(chief).values(), *map(result, others)]:
        connection.close()


@pytest.mark.parametrize(
    "words",
    [
        [{"complete": True}],
        [{"missing": "nobody"}],
        [{"ended": "x"}],
        [{"proof": ""}],
        [{"nonce": "1"}, {"complete": True}],
        [{"nonce": "1"}, {"proof": "ECHO"}],
        [{"nonce": "1"}, {"nonce": "1"}],
        [{"nonce": 1}],
        [{"refused": "x"}],
        [{"taken": "x"}],
        [{"nonce": "1"}, {"refused": "x"}],
        [{"nonce": "1"}, {"taken": "x"}],
        [{"nonce": "1"}, {"proof": "ECHO"}, {"refused": "x"}],
    ],
    ids=str,
)
def test_a_chief_that_does_not_know_the_secret_is_not_believed(hosts, monkeypatch, words):
    monkeypatch.setattr(roll_call, "_RETRY_SECS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        host = hosts(roll_call.answer, [address, "b:1"], 1, LONG_SECS, None, SECRET)
        for _ in range(2):  # The host goes on looking for its chief.
            with listener.accept()[0] as connected:
                reader = connected.makefile("rb")
                said = json.loads(reader.readline())
                for word in words:
                    if word == {"proof": "ECHO"}:
                        word = json.loads(reader.readline())
                    connected.sendall(json.dumps(word).encode() + b"\n")
                assert b"complete" not in until_the_end(connected)
                reader.close()
        assert len(said["nonce"]) == 64
        assert not host.done()
    chief = hosts(roll_call.hold, [address, "b:1"], LONG_SECS, None, SECRET)
    result(host).close()
    result(chief)[1].close()
