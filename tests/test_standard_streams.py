"""Commands whose standard streams are closed, narrow, or read by something that ends early."""

import os
import subprocess
import sys

import pytest

import bert_estimator

ROOT = os.path.dirname(os.path.dirname(bert_estimator.__file__))


def run(code, redirections="", **env):
    """Runs Python code by a shell with redirections of its streams."""
    command = f'exec "$0" -c "$1" {redirections}'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command, sys.executable, code],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("redirections", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(redirections):
    code = """
import os, subprocess, sys
from bert_estimator import standard_streams
standard_streams.prepare()
print("out", flush=True)
print("err", sys.stderr.isatty(), file=sys.stderr, flush=True)
assert sys.stdin.read() == ""
assert open(os.devnull).fileno() > 2
subprocess.run([sys.executable, "-c", "import os; [os.fstat(i) for i in range(3)]"], check=True)
"""
    ended = run(code, redirections if "<" in redirections else f"{redirections} < /dev/null")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ("" if " >&-" in f" {redirections}" else "out\n")
    assert ended.stderr == ("" if "2>" in redirections else "err False\n")


def test_what_an_encoding_lacks_is_an_escape():
    code = """
from bert_estimator import standard_streams
standard_streams.prepare()
print("größe \\udcff")
"""
    for encoding, text in (("ascii", "gr\\xf6\\xdfe"), ("utf-8", "größe")):
        ended = run(code, PYTHONIOENCODING=encoding)
        assert ended.stdout == f"{text} \\udcff\n", ended.stderr


def test_a_reader_that_ends_does_not_end_the_work(tmp_path):
    code = f"""
import time
from bert_estimator import standard_streams
standard_streams.prepare()
standard_streams.outlive_reader()
standard_streams.outlive_reader()
for number in range(20_000):
    print("a line that is long enough to fill a buffer")
print("last", flush=True)
open({str(tmp_path / "done")!r}, "w").close()
"""
    ended = run(code, "| head -n 1")
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    assert ended.stdout.count("\n") == 1
    assert (tmp_path / "done").exists()
