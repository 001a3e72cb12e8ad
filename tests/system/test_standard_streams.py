"""Commands whose standard streams are closed, narrow, or read by something that ends early."""

import json
import os
import pathlib
import subprocess
import sys

import commands
import forked
import pytest
from commands import CONSOLE

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
from bert_estimator.system import standard_streams
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
from bert_estimator.system import standard_streams
standard_streams.prepare()
print("größe \\udcff")
"""
    for encoding, text in (("ascii", "gr\\xf6\\xdfe"), ("utf-8", "größe")):
        ended = run(code, PYTHONIOENCODING=encoding)
        assert ended.stdout == f"{text} \\udcff\n", ended.stderr


def test_both_streams_in_one_file_are_in_the_order_of_the_writes():
    code = """
import sys
from bert_estimator.system import standard_streams
standard_streams.prepare()
for number in range(20):
    print("out", number)
    print("err", number, file=sys.stderr)
"""
    ended = run(code, "2>&1 | cat")
    lines = [f"{name} {number}" for number in range(20) for name in ("out", "err")]
    assert ended.stdout.splitlines() == lines, ended.stderr


def test_a_reader_that_ends_does_not_end_the_work(tmp_path):
    code = f"""
import time
from bert_estimator.system import standard_streams
standard_streams.prepare()
standard_streams.prepare()
for number in range(20_000):
    print("a line that is long enough to fill a buffer")
print("last", flush=True)
open({str(tmp_path / "done")!r}, "w").close()
"""
    ended = run(code, "| head -n 1")
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    assert ended.stdout.count("\n") == 1
    assert (tmp_path / "done").exists()


PRINTS_RESULTS = ("predict", "embed", "fill", "run_program")
STATES = [("ok", "ok"), ("ok", "closed"), ("ok", "full"), ("ok", "gone"), ("closed", "ok"),
          ("full", "ok"), ("gone", "ok"), ("closed", "closed"), ("full", "full"), ("gone", "gone"),
          ("head", "head")]  # fmt: skip


def in_states(command, states, arguments, path):
    """Returns [exit code, stdout, stderr] of a console command for each state of its streams."""
    module, _, function = CONSOLE[command].partition(":")
    program = (pathlib.Path(__file__).parent.parent / "support" / "stream_states.py").read_text()
    result = path / f"{command}.json"
    ended = forked.run(
        [sys.executable, "-c", program, module, function, json.dumps(states), result, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(result.read_text())


@pytest.mark.parametrize("command", CONSOLE)
def test_a_wrong_command_line_is_2_whatever_the_streams_are(command, tmp_path):
    arguments = [f"{tmp_path}/absent.py"] if command == "legacy" else ["--nonsense=3"]
    for state, (code, out, err) in zip(
        STATES, in_states(command, STATES, arguments, tmp_path), strict=True
    ):
        assert (code, out) == (2, ""), (state, err)
        assert "Traceback" not in err
        assert bool(err) == (state[1] == "ok")


def slow_but_for(*quick):
    return [c if c in quick else pytest.param(c, marks=pytest.mark.slow) for c in CONSOLE]


@pytest.mark.parametrize("command", slow_but_for("pretraining", "records", "embed", "legacy"))
def test_help_is_0_whatever_the_streams_are(command, tmp_path):
    for state, (code, out, err) in zip(
        STATES, in_states(command, STATES, ["--help"], tmp_path), strict=True
    ):
        assert code == 0, (state, err)
        assert bool(out) == (state[0] == "ok")
        said = "No space left on device" in err
        assert said == (tuple(state) == ("full", "ok")) and bool(err) == said, (state, err)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    commands.write_inputs(folder)
    return folder


RUNS = [("ok", "ok"), ("ok", "gone"), ("gone", "gone"), ("full", "full"), ("closed", "closed"),
        ("head", "head"), ("full", "ok")]  # fmt: skip


COMPLETE = [
    param
    for param in slow_but_for("text", "embed", "legacy")
    if (param if isinstance(param, str) else param.values[0])
    not in ("predict", "run_program", "serve")
]  # two need what another command makes, and a server goes on


@pytest.mark.parametrize("command", COMPLETE)
def test_a_complete_run_is_0_if_its_results_are_files(command, inputs, tmp_path):
    states = [state for state in RUNS if command not in ("embed", "fill") or state[0] != "head"]
    # The number of the state becomes a part of the output's name.
    arguments = commands.arguments(command, inputs, tmp_path / "output{number}")
    results = in_states(command, states, arguments, tmp_path)
    for state, (code, _, err) in zip(states, results, strict=True):
        of_output = {"ok": 0, "closed": 2}.get(state[0], 1)
        assert code == (of_output if command in PRINTS_RESULTS else 0), (state, err)
        assert "Traceback" not in err
        if state == ("full", "ok"):
            assert "standard output cannot be written: No space left on device" in err


@pytest.mark.slow
def test_a_predictor_without_output(inputs, tmp_path):
    exported = tmp_path / "run"
    flags = commands.arguments("classifier", inputs, exported)
    assert forked.run(
        [sys.executable, f"{ROOT}/run_classifier.py", *map(str, flags), "--do_train",
         "--do_export"],
        capture_output=True,
    ).returncode == 0  # fmt: skip
    (tmp_path / "lines.txt").write_text("w1 w2\tw3\n")
    states = [state for state in RUNS if state[0] != "head"]
    arguments = [str(exported), str(tmp_path / "lines.txt")]
    codes = [code for code, *_ in in_states("predict", states, arguments, tmp_path)]
    assert codes == [0, 0, 1, 1, 2, 1]
