"""Tests what a host does when another host is lost, with pairs of sockets as connections."""

import contextlib
import queue
import socket
import threading
import time

import pytest

from bert_estimator.cluster import host_watch
from bert_estimator.cluster.host_connection import Connection

ADDRESSES = ("a:1", "b:1", "c:1")
LONG_SECS = 100  # Nothing here waits so long.


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(host_watch, "_ERROR_SECS", 0)
    monkeypatch.setattr(host_watch, "_BROKEN_SECS", 0)
    monkeypatch.setattr(host_watch, "_END_SECS", 0)
    monkeypatch.setattr(host_watch, "_ASK_SECS", 0.3)


@pytest.fixture
def watched():
    """Makes a `HostWatch`; returns it, the other sides of its connections, and its exit codes."""
    opened, made = [], []

    def make(index, others):
        pairs = {number: tcp_pair() for number in others}
        codes = queue.Queue()
        near = {number: Connection(pair[0]) for number, pair in pairs.items()}
        far = {number: Connection(pair[1]) for number, pair in pairs.items()}
        opened.extend([*near.values(), *far.values()])
        made.append(host_watch.HostWatch(ADDRESSES, index, near, codes.put))
        return made[-1], far, codes

    yield make
    for watch in made:
        watch.leave(0)  # From here on a broken connection is not a lost host.
    for connection in opened:
        connection.close()


def tcp_pair():
    with socket.create_server(("localhost", 0)) as server:
        return socket.create_connection(server.getsockname()), server.accept()[0]


def test_a_broken_connection_ends_the_process(watched, capsys):
    watch, far, codes = watched(0, [1, 2])
    watch.advise(lambda: "The last checkpoint is y.")
    watch.advise(lambda: "The last checkpoint is x.")
    far[2].close()
    assert codes.get(timeout=LONG_SECS) == 1
    err = capsys.readouterr().err
    assert "error: host 2 of TF_CONFIG (c:1) is lost: its process or its machine has ended. " in err
    assert "The last checkpoint is x. Start the same commands again on all hosts" in err
    # The chief tells the host that is left.
    why = "its process or its machine has ended"
    assert far[1].receive() == [{"lost": 2, "why": why, "code": 1}]


def test_the_chief_s_word_ends_the_process(watched, capsys):
    _, far, codes = watched(1, [0])
    far[0].send(lost=2, why="it was there before", code=77)
    assert codes.get(timeout=LONG_SECS) == 77
    assert "host 2 of TF_CONFIG (c:1) is lost: it was there before." in capsys.readouterr().err


@pytest.mark.parametrize("code", [1, 2, 77])
def test_a_host_that_fails_ends_the_others_with_its_exit_code(watched, capsys, code):
    _, far, codes = watched(0, [1, 2])
    far[1].send(leaving=code, host=1)
    far[1].close()
    assert codes.get(timeout=LONG_SECS) == code
    err = capsys.readouterr().err
    why = f"it has ended with exit code {code}, and its own output says why"
    assert f"(b:1) is lost: {why}" in err
    assert far[2].receive() == [{"lost": 1, "why": why, "code": code}]


@pytest.mark.parametrize("code", [0, 130, 143])
def test_a_host_that_ends_as_agreed_does_not_disturb(watched, code):
    watch, far, codes = watched(0, [1])
    far[1].send(leaving=code, host=1)
    far[1].close()
    watch._thread.join(LONG_SECS)  # It has nobody left to watch.
    assert codes.empty()


LEFT = [(0, 1), (130, 130), (143, 143)]  # codes of a host that has left, and of who needs it


@pytest.mark.parametrize(("code", "own_code"), LEFT)
def test_a_host_that_has_left_is_lost_once_it_is_needed(watched, capsys, code, own_code):
    watch, far, codes = watched(0, [1])
    far[1].send(leaving=code, host=1)
    far[1].close()
    watch._thread.join(LONG_SECS)
    with watch.needing_others():
        assert codes.get(timeout=LONG_SECS) == own_code
    ended = f"has ended with exit code {code}" if code else "has come to its end"
    assert (
        f"host 1 of TF_CONFIG (b:1) is lost: it {ended} before the work of all hosts was done. St"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(("code", "own_code"), LEFT)
def test_a_host_that_leaves_while_it_is_needed_is_lost(watched, code, own_code):
    watch, far, codes = watched(0, [1])
    with watch.needing_others(), watch.needing_others():
        far[1].send(leaving=code, host=1)
        assert codes.get(timeout=LONG_SECS) == own_code


def test_a_host_may_leave_a_moment_before_this_one_has_done_what_all_did(watched, monkeypatch):
    watch, far, codes = watched(0, [1])
    leaves, done = threading.Event(), threading.Event()

    def sleep(secs):
        leaves.set()
        done.wait(LONG_SECS)

    monkeypatch.setattr(host_watch.time, "sleep", sleep)
    with watch.needing_others():
        far[1].send(leaving=0, host=1)
        assert leaves.wait(LONG_SECS)
    done.set()
    far[1].close()
    watch._thread.join(LONG_SECS)
    assert codes.empty()


@pytest.mark.parametrize(
    ("error", "code"), [("Gloo AllGather failed: Connection closed by peer", 143), ("bad", None)]
)
def test_a_host_that_has_left_is_the_cause_of_a_broken_connection(watched, error, code):
    watch, _, codes = watched(0, [1])
    with pytest.raises(ValueError, match=error), watch.needing_others():
        watch._left[1] = 143  # as `_let_go` does before it waits
        raise ValueError(error)
    assert codes.empty() if code is None else codes.get(timeout=LONG_SECS) == code


@pytest.mark.parametrize(("code", "own_code"), [(0, 1), (143, 143)])
def test_a_host_that_waits_for_the_others_end_does_not_wait_for_a_lost_one(watched, code, own_code):
    watch, far, codes = watched(1, [0])
    watch.leave(code, waits=True)
    far[0].close()
    assert codes.get(timeout=LONG_SECS) == own_code


def test_nobody_waits_for_a_host_that_ctrl_c_has_ended(watched):
    """It does not come to jax's farewell, whether it leaves before this host or after."""
    watch, far, codes = watched(0, [1])
    assert watch.leave(0, waits=True)
    far[1].send(leaving=130, host=1)
    assert codes.get(timeout=LONG_SECS) == 0
    watch, far, codes = watched(0, [1])
    far[1].send(leaving=130, host=1)
    end = time.monotonic() + LONG_SECS
    while watch.leave(0, waits=True) and time.monotonic() < end:
        time.sleep(0.01)
    assert not watch.leave(0, waits=True)


def test_a_process_that_leaves_says_so_and_does_not_mind_others(watched):
    watch, far, codes = watched(1, [0])
    watch.leave(143)
    assert far[0].receive() == [{"leaving": 143, "host": 1}]
    far[0].close()
    watch._thread.join(LONG_SECS)
    assert codes.empty()


WRONG = [
    b"no message\n",
    b"{}\n",
    b"{}\n{}\n",
    b'{"complete": true}\n',
    b'{"leaving": 0}\n',
    b'{"leaving": "0", "host": 1}\n',
    b'{"leaving": null, "host": 1}\n',
    b'{"leaving": 1e9, "host": 1}\n',
    b'{"leaving": 9999999999, "host": 1}\n',
    b'{"leaving": 0, "host": 2}\n',
    b'{"leaving": 0, "host": []}\n',
    b'{"lost": 2, "why": "x", "code": 1}\n',
    b'{"asks": 2}\n',
    b'{"present": 2}\n',
    b'{"present": {}}\n',
    b"{" * 10**5,
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong[:40]))
def test_what_is_not_a_host_s_message_counts_as_its_end(watched, capsys, wrong):
    watch, far, codes = watched(0, [1, 2])
    with contextlib.suppress(ConnectionError):
        far[1].socket.sendall(wrong)
    assert codes.get(timeout=LONG_SECS) == 1
    why = "what its connection brings is not a host's message"
    assert f"host 1 of TF_CONFIG (b:1) is lost: {why}. Start" in capsys.readouterr().err
    assert far[2].receive() == [{"lost": 1, "why": why, "code": 1}]
    assert not watch._left


@pytest.mark.parametrize(
    "wrong",
    [
        {"lost": 1},
        {"lost": 3, "why": "x", "code": 1},
        {"lost": -1, "why": "x", "code": 1},
        {"lost": 2, "why": ["x"], "code": 1},
        {"lost": 2, "why": "x", "code": 2**40},
        {"leaving": 0, "host": 2},
    ],
    ids=str,
)
def test_what_is_not_the_chief_s_message_counts_as_its_end(watched, capsys, wrong):
    _, far, codes = watched(1, [0])
    far[0].send(**wrong)
    assert codes.get(timeout=LONG_SECS) == 1
    assert "host 0 of TF_CONFIG (a:1) is lost: what its connection" in capsys.readouterr().err


def test_what_the_chief_says_does_not_steer_the_terminal(watched, capsys):
    _, far, codes = watched(1, [0])
    far[0].send(lost=2, why="it\x1b[2J\nwas", code=1)
    assert codes.get(timeout=LONG_SECS) == 1
    assert "is lost: it?[2J?was. Start" in capsys.readouterr().err


def test_advice_that_fails_is_left_out(watched, capsys):
    watch, far, codes = watched(0, [1])
    watch.advise(lambda: 1 / 0)
    far[1].close()
    assert codes.get(timeout=LONG_SECS) == 1
    assert "machine has ended. Start the same" in capsys.readouterr().err


def test_an_error_of_a_connection_waits_longer_for_its_cause(watched, monkeypatch):
    watch, _, _ = watched(0, [1])
    waits = []
    monkeypatch.setattr(host_watch.time, "sleep", waits.append)
    monkeypatch.setattr(host_watch, "_BROKEN_SECS", 30)
    broken = ValueError("UNKNOWN: Gloo AllGather failed: Connection reset by peer")
    for error in (broken, broken, KeyError("x")):  # An error that passes twice is waited for once.
        watch.wait_for_cause(error)
    assert waits == [30, 0]


def late(watch):
    """Starts jax for longer than it may take."""
    return watch.starting(time.monotonic() + 0.4, 0.4)


def test_a_host_that_does_not_answer_at_the_deadline_is_lost(watched, capsys):
    watch, far, codes = watched(0, [1, 2])
    with late(watch):
        assert far[1].receive() == far[2].receive() == [{"asks": 0}]
        far[1].send(present=1)
        assert codes.get(timeout=LONG_SECS) == 1
    why = "it has come, but does not answer within 0.4 seconds"
    assert f"host 2 of TF_CONFIG (c:1) is lost: {why}." in capsys.readouterr().err
    assert far[1].receive() == [{"lost": 2, "why": why, "code": 1}]


def test_hosts_that_answer_and_do_not_start_end_with_a_sentence(watched, capsys):
    watch, far, codes = watched(1, [0])
    with late(watch):
        assert far[0].receive() == [{"asks": 1}]
        far[0].send(present=0)
        assert codes.get(timeout=LONG_SECS) == 1
    assert "have met, but could not start jax together within 0.4" in capsys.readouterr().err


def test_a_start_in_time_is_not_asked_about(watched):
    watch, far, codes = watched(0, [1])
    with late(watch):
        pass
    far[1].send(asks=1)
    assert far[1].receive() == [{"present": 0}]
    assert codes.empty()
