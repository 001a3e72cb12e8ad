"""Keeps the start-up messages of TensorFlow's C++ code out of the terminal.

TensorFlow and libtpu print lines about oneDNN, CUDA and the processor before a program can set
their log level, among them an error about a GPU that is not there. They tell a user of a command
nothing.
"""

import os
import re
import select
import signal
import sys

from bert_estimator.system import standard_streams

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"

_CHATTER = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog|"
    # Information and warnings, in the two forms that TensorFlow has used.
    rb"[IW]\d{4} \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] |"
    rb"To enable the following instructions: |"
    # Messages at the level of errors that do not matter: there is no GPU, or two parts of
    # TensorFlow register the same factory.
    rb".*(?:failed call to cuInit|Unable to register cu\w+ factory|oneDNN supports DT_\w+ only|"
    rb"computation placer already registered)"
)

_IGNORED = (signal.SIGINT, signal.SIGTERM) + ((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ())

# A line that is not complete is passed on after this many seconds.
_PATIENCE_SECS = 0.1


def quiet() -> None:
    """Leaves these lines out of stderr from now on, until the process ends.

    The descriptor of stderr becomes a pipe, from which a process of its own passes on all other
    lines. (A thread would lose what is written just before a crash.) `sys.stderr` still writes to
    the terminal itself. Call this before TensorFlow is loaded, and before there are threads.

    Nothing is left out if TF_CPP_MIN_LOG_LEVEL asks for the messages (0 or 1), or on Windows.
    """
    if os.environ.get(_LEVEL) in ("0", "1") or not hasattr(os, "fork"):
        return
    os.environ.setdefault(_LEVEL, "2")
    try:
        sys.stderr.flush()
        terminal = os.dup(2)
        reader, writer = os.pipe()
        # A signal that comes right after the fork must not reach the filter.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
        try:
            child = os.fork()
            if child == 0:
                _be_the_filter(reader, writer, terminal, before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except (AttributeError, OSError):  # stderr is closed, or the system is out of something
        return
    os.close(reader)
    os.dup2(writer, 2)
    os.close(writer)
    sys.stderr = standard_streams.error_output(terminal, sys.stderr.encoding)


def _be_the_filter(reader, writer, terminal, mask):
    """Passes lines on until all processes that write to the pipe have ended, and ends."""
    try:
        os.close(writer)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _pass_on(reader, terminal)
    finally:
        os._exit(0)


def _pass_on(reader, terminal):
    """Copies the lines that are not chatter from one descriptor to the other."""
    os.dup2(terminal, 2)
    os.dup2(reader, 0)
    os.closerange(3, 1 << 16)  # The limit may be a thousand times that, and take a minute.
    os.close(1)
    rest = b""
    while True:
        if rest and not select.select([0], [], [], _PATIENCE_SECS)[0]:
            os.write(2, rest)
            rest = b""
        data = os.read(0, 1 << 16)
        *lines, rest = (rest + data).split(b"\n")
        kept = [line + b"\n" for line in lines if not _CHATTER.match(line)]
        if not data and not _CHATTER.match(rest):
            kept.append(rest)
        os.write(2, b"".join(kept))
        if not data:
            return
