"""Copies of a process that has loaded TensorFlow behave as new Python processes."""

import os
import signal
import subprocess
import sys

import forked
import pytest
import tensorflow.compat.v1 as tf

SAYS = """
import os, sys, tempfile
print(sys.argv, os.getcwd(), __name__, os.path.abspath(sys.path[0] or "."))
print(os.environ["SAID"], sys.stdin.read())
print("aside", file=sys.stderr)
print(tempfile.gettempdir())
sys.exit(7)
"""


def both(*arguments, **options):
    """Returns what a copy and a new process gave: exit code, stdout, stderr."""
    ended = [
        run([sys.executable, *arguments], capture_output=True, text=True, **options)
        for run in (forked.run, subprocess.run)
    ]
    return [(done.returncode, done.stdout, done.stderr) for done in ended]


@pytest.mark.parametrize("kind", ["-c", "-m", "script"])
def test_a_copy_does_as_a_new_process(tmp_path, kind):
    (tmp_path / "says.py").write_text(SAYS)
    command = {"-c": ["-c", SAYS], "-m": ["-m", "says"], "script": [f"{tmp_path}/says.py"]}[kind]
    environment = {**os.environ, "SAID": "yes", "TMPDIR": str(tmp_path)}
    options = {"cwd": tmp_path, "env": environment, "input": "in"}
    copy, new = both(*command, "a", "--b", **options)
    assert copy == new
    assert copy[0] == 7 and copy[1].endswith(f"\nyes in\n{tmp_path}\n") and copy[2] == "aside\n"


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise ValueError('bad')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import os; os._exit(143)", 143),
        ("import sys; sys.exit('bad')", 1),
        ("import sys; sys.exit(-1)", 255),
        ("import atexit; atexit.register(print, 'bye')", 0),
        ("import threading; threading.Timer(0.1, print, ['last']).start()", 0),
    ],
)
def test_it_ends_as_a_new_process(program, code):
    copy, new = both("-c", program)
    assert copy[:2] == new[:2]
    assert copy[0] == code
    assert copy[2].splitlines()[-1:] == new[2].splitlines()[-1:]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_signals_reach_it(number):
    # Python does not notice a signal just before it sleeps until it wakes.
    program = "import time\nprint('up', flush=True)\nwhile True:\n    time.sleep(0.1)"
    with forked.start([sys.executable, "-c", program], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout.readline() == "up\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0)
        process.send_signal(number)
        assert process.wait(60) == -number
        process.kill()  # it has ended, which is not an error


def test_the_project_is_not_loaded_and_there_is_one_thread():
    program = (
        "import os, sys\n"
        "print([name for name in sys.modules if name.startswith(('bert_', 'input_'))])\n"
        "print('tensorflow' in sys.modules, len(os.listdir('/proc/self/task')))"
    )
    done = forked.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\nTrue 1\n"


def test_a_copy_leaves_out_what_this_process_leaves_out():
    program = (
        "import tensorflow.compat.v1 as tf\n"
        "with tf.Graph().as_default():\n"
        "    print(bool(tf.no_op().traceback))\n"
        "import jax\n"
        "print(jax.config.values['jax_disable_most_optimizations'])"
    )
    done = forked.run([sys.executable, "-c", program], capture_output=True, text=True)
    jax = pytest.importorskip("jax")
    with tf.Graph().as_default():
        here = (
            bool(tf.no_op().traceback),
            jax.config.values["jax_disable_most_optimizations"],
        )
    assert done.stdout.split() == [*map(str, here)], done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere these are subprocess's")
def test_variables_that_were_read_already_are_refused():
    with pytest.raises(ValueError, match=r"JAX_PLATFORMS.*have read.*Use subprocess"):
        forked.run([sys.executable, "-c", ""], env={**os.environ, "JAX_PLATFORMS": "tpu"})


def test_a_copy_may_end_before_its_process_id_is_read():
    reader, writer = os.pipe()
    os.write(writer, b"123\n0\n")
    os.close(writer)
    assert [forked._line(reader) for _ in range(3)] == [b"123\n", b"0\n", b""]
    os.close(reader)
