import io

from bert_estimator.system.ticker import EVERY_SECS, Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(out, total, steps, secs_each, number=1e6):
    now = [0.0]
    progress = Progress("Reading text", total, "B", out, clock=lambda: now[0])
    for _ in range(steps):
        now[0] += secs_each
        progress.add(number)
    progress.end()
    return out.getvalue()


def test_short_work_is_silent():
    assert run(io.StringIO(), 5e6, 5, EVERY_SECS / 6) == ""


def test_a_line_has_share_rate_and_time_left():
    lines = run(io.StringIO(), 4e9, 20, 1.0).splitlines()
    assert lines == [
        "Reading text: 0 % of 4 GB, 1 MB/s, 1:06:30 left",
        "Reading text: 0 % of 4 GB, 1 MB/s, 1:06:20 left",
    ]
    (line,) = run(io.StringIO(), 40e6, 10, 1.0).splitlines()
    assert line == "Reading text: 25 % of 40 MB, 1 MB/s, 0:30 left"


def test_without_a_total_there_is_no_time_left():
    assert run(io.StringIO(), None, 10, 1.0) == "Reading text: 10 MB, 1 MB/s\n"


def test_nothing_done_and_more_done_than_expected():
    assert run(io.StringIO(), 10, 1, 11.0, number=0) == "Reading text: 0 % of 10 B, 0 B/s\n"
    assert "100 % of 10 B, 1 B/s, 0:00 left" in run(io.StringIO(), 10, 1, 11.0, number=12)


def test_a_terminal_has_one_line_that_is_erased_at_the_end():
    shown = run(Terminal(), 4e6, 3, 1.0)
    assert "\n" not in shown
    assert shown.split("\r\x1b[K")[1:] == [
        "Reading text: 25 % of 4 MB, 1 MB/s, 0:03 left",
        "Reading text: 50 % of 4 MB, 1 MB/s, 0:02 left",
        "Reading text: 75 % of 4 MB, 1 MB/s, 0:01 left",
        "",
    ]


def test_over_counts_items():
    out = io.StringIO()
    assert list(Progress("Writing", 3, " examples", out).over("abc")) == ["a", "b", "c"]
    assert out.getvalue() == ""
