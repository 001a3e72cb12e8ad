"""How commands import TensorFlow: without its start-up messages, and without Keras and jax.

TensorFlow and libtpu print lines about oneDNN, CUDA and the processor before a program can set
their log level, among them an error about a GPU that is not there. They tell a user of a command
nothing. Environment variables do not suffice: at TF_CPP_MIN_LOG_LEVEL=2 TensorFlow 2.21 still
prints seven lines, at 3 six.

TensorFlow's own import also imports Keras (one of the two), and jax for TensorFlow Lite's
converter. TensorFlow works without them. Its import takes 3.9 s and 716 MB; without garbage
collection 3.2 s; without Keras and jax, too, 2.0 s and 532 MB.
"""

import contextlib
import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
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
    standard_streams.prepare()
    memory.share_one_arena()
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
        with memory.paused(), quiet():
            execute(module)
            find_gpus(module)
        gc.freeze()  # Later collections don't search what was imported.
    except ImportError as error:
        if _is_interrupted(error):
            raise KeyboardInterrupt from error
        raise
    finally:
        for name in hidden:
            del sys.modules[name]


def find_gpus(tensorflow: ModuleType) -> None:
    """Has TensorFlow look for GPUs if there is no driver; or else its first session would say, as
    an error, that it did not find any."""
    # With a driver, the program may still choose GPUs (CUDA_VISIBLE_DEVICES), which is read once.
    if not os.path.exists("/dev/nvidiactl"):
        tensorflow.config.list_physical_devices("GPU")


def _is_interrupted(error):
    """Returns whether Ctrl-C is behind an error: TensorFlow's C++ modules make an error of it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__
    return False


_LEVEL = "TF_CPP_MIN_LOG_LEVEL"

# For `grep -E`.
_CHATTER = "|".join(
    [
        "^WARNING: All log messages before absl::InitializeLog",
        # Information and warnings, in the two forms that TensorFlow has used.
        "^[IW][0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}",
        r"^[0-9-]{10} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]+: [IW] ",
        "^To enable the following instructions: ",
        # Messages at the level of errors that do not matter: there is no GPU, or two parts of
        # TensorFlow register the same factory.
        "failed call to cuInit|Unable to register cu[A-Za-z]+ factory",
        "computation placer already registered",
    ]
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leaves TensorFlow's first lines out of stderr while the block imports it."""
    with contextlib.ExitStack() as at_end:
        if os.environ.get(_LEVEL) not in ("0", "1"):  # by which a user asks for the lines
            os.environ.setdefault(_LEVEL, "2")
            with contextlib.suppress(OSError):  # stderr is closed, or there is no `grep`
                _start_filter(at_end)
        yield


def _start_filter(at_end):
    import subprocess  # here, since commands that do without TensorFlow start sooner

    sys.stderr.flush()
    terminal = os.dup(2)
    at_end.callback(os.close, terminal)
    # A process of its own, since what was written before a crash must not be lost; in a session of
    # its own, since Ctrl-C must not end it first.
    process = subprocess.Popen(
        ["grep", "--line-buffered", "-avE", _CHATTER],
        stdin=subprocess.PIPE,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
    )
    at_end.callback(_end, process)
    os.dup2(process.stdin.fileno(), 2)
    process.stdin.close()
    at_end.callback(os.dup2, terminal, 2)  # the end of what the filter reads
    at_end.callback(sys.stderr.flush)


def _end(process):
    import subprocess

    process.stdin.close()
    # A process that the import has started may hold the pipe open.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)
