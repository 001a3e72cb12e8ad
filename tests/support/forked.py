"""Python processes that start with TensorFlow loaded, which takes a new process four seconds.

`start` and `run` stand for `subprocess.Popen` and `subprocess.run`. The process is a copy of a
server of this process, which has loaded TensorFlow, sentencepiece and jax, and nothing of the
project (`fork_server`). So `subprocess` is for a test of what is loaded and when, and for at least
one test of each script.
"""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading

# Variables that are read while Python starts or modules are loaded: a copy would not see another
# value. TF_CONFIG is read later. TF_CPP_MIN_LOG_LEVEL has no effect: a copy may print more.
_READ_AT_START = ("PYTHON", "JAX_", "XLA_", "TF_", "OMP_", "OPENBLAS_", "LC_", "LANG", "GCS_")
_READ_LATER = ("PYTHONPATH", "TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL")


def _read_at_start(environment):
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and name not in _READ_LATER
    }


class _Server:
    def __init__(self):
        self.environment = dict(os.environ)
        ours, theirs = socket.socketpair()
        program = os.path.join(os.path.dirname(__file__), "fork_server.py")
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._compiled_modules = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, program, str(theirs.fileno()), self._compiled_modules.name],
            pass_fds=[theirs.fileno()],
            env={name: v for name, v in self.environment.items() if name != "PYTHONPATH"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )
        theirs.close()
        self._socket = ours
        atexit.register(self._end)

    def _end(self):
        self._socket.close()
        self._process.wait()
        self._errors.close()
        self._compiled_modules.cleanup()

    def ask(self, request, streams):
        """Returns (process id of a new copy, a descriptor from which its status can be read)."""
        changed = _read_at_start(self.environment).items() ^ _read_at_start(request[2]).items()
        if changed:
            raise ValueError(
                f"{sorted(changed)}: Python or modules that are loaded have read these "
                "environment variables. Use subprocess for this command"
            )
        status, theirs = os.pipe()
        with tempfile.TemporaryFile("w+") as file:
            json.dump(request, file)
            file.seek(0)
            socket.send_fds(self._socket, [b"."], [file.fileno(), *streams, theirs])
        os.close(theirs)
        pid = _line(status)
        if not pid:
            self._errors.seek(0)
            raise RuntimeError(f"the server has ended: {self._errors.read()}")
        return int(pid), status


_starting = threading.Lock()


def _server():
    with _starting:  # two threads may ask at once
        return _the_server()


@functools.cache
def _the_server():
    return _Server()


def _line(descriptor):
    """Reads a line, and nothing of the next one, which may be there already."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:  # The server has ended.
            break
        line += byte
    return line


class Process:
    """A command that runs; the attributes and methods are `subprocess.Popen`'s."""

    def __init__(self, command, cwd, env, streams, text):
        self.args, self.returncode, self._outputs = command, None, [None, None]
        mine, theirs, opened = self._open(streams, text)
        environment = {str(k): str(v) for k, v in (os.environ if env is None else env).items()}
        arguments = [os.fsdecode(argument) for argument in command[1:]]
        request = arguments, os.path.abspath(os.fsdecode(cwd or ".")), environment
        try:
            self.pid, self._status = _server().ask(request, theirs)
        finally:
            for descriptor in opened:
                os.close(descriptor)
        self.stdin, self.stdout, self.stderr = mine

    @staticmethod
    def _open(streams, text):
        """Returns (our files, the command's descriptors, the descriptors to close here)."""
        mine, theirs, opened = [], [], []
        for number, stream in enumerate(streams):
            file = None
            if stream is None:
                descriptor = number
            elif stream == subprocess.PIPE:
                reader, writer = os.pipe()
                descriptor, other = (reader, writer) if number == 0 else (writer, reader)
                opened.append(descriptor)
                mode = ("w" if number == 0 else "r") + ("" if text else "b")
                file = os.fdopen(other, mode, -1)
            elif stream == subprocess.DEVNULL:
                descriptor = os.open(os.devnull, os.O_RDWR)
                opened.append(descriptor)
            elif stream == subprocess.STDOUT:
                descriptor = theirs[1]
            else:
                descriptor = stream if isinstance(stream, int) else stream.fileno()
            mine.append(file)
            theirs.append(descriptor)
        return mine, theirs, opened

    def poll(self):
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = int(_line(self._status))
            os.close(self._status)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.poll()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def communicate(self, input=None, timeout=None):
        """Writes the input, reads both outputs to their ends; returns them after the wait."""

        def read(place, file):
            self._outputs[place] = file.read()

        threads = [
            threading.Thread(target=read, args=(place, file), daemon=True)
            for place, file in enumerate((self.stdout, self.stderr))
            if file is not None and not file.closed
        ]
        for thread in threads:
            thread.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                if input:
                    self.stdin.write(input)
                self.stdin.close()
        for thread in threads:
            thread.join(timeout)
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(timeout)
        for file in (self.stdout, self.stderr):
            if file is not None:
                file.close()
        return tuple(self._outputs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for file in (self.stdout, self.stderr, self.stdin):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()
        self.wait()


def start(command, *, cwd=None, env=None, stdin=None, stdout=None, stderr=None, text=False):
    """Starts a command, `sys.executable` and what follows it, as `subprocess.Popen` does."""
    return Process(command, cwd, env, (stdin, stdout, stderr), text)


def run(command, *, capture_output=False, check=False, timeout=None, input=None, **options):
    """Runs a command to its end, as `subprocess.run` does; see `start`."""
    if capture_output:
        options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if input is not None:
        options["stdin"] = subprocess.PIPE
    process = start(command, **options)
    try:
        out, err = process.communicate(input, timeout)
    finally:
        process.kill()
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


if sys.platform != "linux":  # elsewhere a copy of a process that has loaded this much may crash
    start, run = subprocess.Popen, subprocess.run
