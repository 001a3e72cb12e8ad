"""Tests how hosts meet, with threads as hosts."""

import concurrent.futures
import contextlib
import logging
import socket

import pytest

from bert_estimator.tpu.program import roll_call

LONG_SECS = 100  # Nothing here waits so long.


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
                chief.sendall(b'{"missing": []}\n{"complete": true}\n{"lost": 2, "why": "x"}\n')
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


def test_hosts_with_other_masters_are_refused(address, hosts):
    addresses = [address, "b:1"]
    chief = hosts(roll_call.hold, addresses, LONG_SECS, "rehearse:2")
    message = "master is 'rehearse:2', and host 1 .* has 'rehearse:4': all hosts need the same"
    with pytest.raises(roll_call.ClusterError, match=message):
        roll_call.answer(addresses, 1, LONG_SECS, "rehearse:4")
    result(hosts(roll_call.answer, addresses, 1, LONG_SECS, "rehearse:2")).close()
    result(chief)[1].close()


def test_of_two_processes_with_the_same_task_one_is_refused(address, hosts):
    addresses = [address, "b:1", "c:1"]
    chief = hosts(roll_call.hold, addresses, LONG_SECS)
    first = hosts(roll_call.answer, addresses, 1, LONG_SECS)
    second = hosts(roll_call.answer, addresses, 1, LONG_SECS)
    # The process that came earlier is refused, and that may be either.
    done, _ = concurrent.futures.wait(
        [first, second], LONG_SECS, concurrent.futures.FIRST_COMPLETED
    )
    (refused,) = done
    with pytest.raises(roll_call.ClusterError, match=r"another process has come as host 1 \(b:1\)"):
        result(refused)
    second = second if refused is first else first
    result(hosts(roll_call.answer, addresses, 2, LONG_SECS)).close()
    result(second).close()
    connections = result(chief)
    assert sorted(connections) == [1, 2]
    for connection in connections.values():
        connection.close()


HELLO = b'{"host": 1, "addresses": ["ADDRESS", "b:1"], "master": null}\n'


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
        HELLO.replace(b"null", b"{}"),
        HELLO.replace(b"null", b"[" * 10**4),
    ],
    ids=lambda noise: str(noise[:70]),
)
def test_strangers_do_not_disturb_a_roll_call(address, hosts, noise):
    chief = hosts(roll_call.hold, [address, "b:1"], LONG_SECS)
    with stranger(address) as connected:
        # The chief may end the connection before it has read all.
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            connected.sendall(noise.replace(b"ADDRESS", address.encode()))
            connected.shutdown(socket.SHUT_WR)
        until_the_end(connected)
    assert not chief.done()
    result(hosts(roll_call.answer, [address, "b:1"], 1, LONG_SECS)).close()
    result(chief)[1].close()


def until_the_end(connected):
    """Waits until the chief has ended a connection; returns what it said before."""
    connected.settimeout(LONG_SECS)
    said = b""
    with contextlib.suppress(ConnectionError):
        while data := connected.recv(2**16):
            said += data
    return said


def stranger(address):
    while True:
        try:
            return socket.create_connection(roll_call.split(address))
        except ConnectionRefusedError:
            continue


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
