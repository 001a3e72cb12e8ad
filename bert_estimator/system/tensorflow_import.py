"""How commands import TensorFlow: without its start-up messages, and without Keras and jax.

TensorFlow and libtpu print lines about oneDNN, CUDA and the processor before a program can set
their log level, among them an error about a GPU that is not there. They tell a user of a command
nothing. Environment variables do not suffice: at TF_CPP_MIN_LOG_LEVEL=2 TensorFlow 2.21 still
prints seven lines, at 3 six.

TensorFlow's own import also imports Keras (one of the two), and jax for TensorFlow Lite's
converter. TensorFlow works without them. Its import takes 3.9 s and 716 MB; without garbage
collection 3.2 s; without Keras and jax, too, 2.0 s and 532 MB.
"""

import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import select
import signal
import sys
from collections.abc import Sequence
from types import ModuleType

from bert_estimator.system import memory, standard_streams

# What TensorFlow's own import need not import.
_EAGER = ("keras.src.optimizers", "tf_keras.src.optimizers", "jax")


# With less, its import fails in one of many ways, or what comes next crashes.
_LEAST_ADDRESSES = 2 * 10**9


class AddressLimitError(MemoryError):
    """The limit of this process's addresses (`ulimit -v`) is too low for TensorFlow."""


def check_addresses() -> None:
    """Raises AddressLimitError if this process may not use the addresses that TensorFlow needs."""
    limit = memory.address_limit()
    if limit is not None and limit < _LEAST_ADDRESSES:
        raise AddressLimitError(
            f"this process may use {limit / 1e9:.2f} GB of address space (ulimit -v), but "
            f"TensorFlow alone needs {_LEAST_ADDRESSES / 1e9:.0f} GB. Raise the limit (ulimit -v "
            "unlimited)"
        )


def prepare() -> None:
    """Makes the import of TensorFlow quiet, quick and checked; call it before that."""
    # First, because `quiet` makes descriptors, which could get the number of a closed stream.
    standard_streams.prepare()
    memory.share_one_arena()
    quiet()
    # `tf.keras` imports Keras when it is first used. jax can be imported afterwards, but
    # `tf.lite.TFLiteConverter.experimental_from_jax` does not work in this process.
    sys.meta_path.insert(0, _WithoutEager())


class _WithoutEager(importlib.abc.MetaPathFinder):
    """Finds TensorFlow, once, and hides Keras and jax from it while it is being imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = functools.partial(_without_eager, execute)
        return spec


def _without_eager(execute, module):
    check_addresses()
    hidden = [name for name in _EAGER if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # None: an import of it fails
    try:
        with memory.paused():
            execute(module)
        gc.freeze()  # Later collections don't search what was imported.
    except ImportError as error:
        if _is_interrupted(error):
            raise KeyboardInterrupt from error
        raise
    finally:
        for name in hidden:
            del sys.modules[name]


def _is_interrupted(error):
    """Returns whether Ctrl-C is behind an error: TensorFlow's C++ modules make an error of it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__
    return False


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
    """Leaves TensorFlow's first lines out of stderr until the process ends; call it before
    TensorFlow is loaded, and before there are threads."""
    # The user may ask for the messages. Windows cannot fork.
    if os.environ.get(_LEVEL) in ("0", "1") or not hasattr(os, "fork"):
        return
    os.environ.setdefault(_LEVEL, "2")
    try:
        sys.stderr.flush()
        terminal = os.dup(2)
        # The descriptor of stderr becomes a pipe, from which a process of its own passes on all
        # other lines. A thread would lose what is written just before a crash.
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
    # Python's own lines go to the terminal itself.
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
