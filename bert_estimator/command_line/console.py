"""What all commands share: help, version and exit codes, and what they print."""

import argparse
import contextlib
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

from bert_estimator import __version__
from bert_estimator.cluster import hosts
from bert_estimator.storage import remote
from bert_estimator.system import disk_files, paths, standard_streams, tensorflow_import, ticker
from bert_estimator.system.errors import ArgumentError, FlagError

# Lines of TensorFlow that tell a user of a script nothing.
_CHATTER = re.compile(
    r"Graph was finalized|Running local_init_op|Done running local_init_op|"
    r"Calling checkpoint listeners|Create CheckpointSaverHook|Restoring parameters from|"
    r"Signatures (?:INCLUDED|EXCLUDED)|Assets (?:added|written)|No assets to|"
    # The alternatives of inputs and outputs that do not go together, which exports leave out:
    r"^'[^']*' : (?:The signature's input tensors|requests to classify and to regress)|"
    r"SavedModel written to|is deprecated and will be removed|"
    r"Evaluation at step %d over|Nothing to train: "  # the jobs say it themselves
)

# Exceptions whose message says what is wrong, where, and what to do: no traceback is needed. They
# are recognized by name: of an exception of an input_fn, TensorFlow passes on only the text.
_SELF_EXPLAINING = (
    "RecordError",
    "PackingError",
    "NanLossDuringTrainingError",
    "NonFiniteWeightsError",
    "NoWholeCheckpointError",
    "CheckpointGoneError",
    "LostHostError",
    "StorageError",
    "WorkerError",
)

# Errors of many types say this if there is not enough memory, or if a thread cannot have its stack.
_OF_MEMORY = re.compile(
    r"Cannot allocate memory|OOM when allocating|Out of memory|failed to map segment|"
    r"can't start new thread"
)

# Such an error may be about a GPU or a TPU if its text has this.
_OF_A_DEVICE = re.compile(r"RESOURCE_EXHAUSTED|device:(?:GPU|TPU)")

# `system.lock` raises this before anything is done; its text names the process that writes here.
_LOCKED_OUT = "InUseError"


def run(main: Callable[[list[str]], int], prepare: Callable[[], None] = lambda: None) -> NoReturn:
    """Runs a command with this process's arguments, after `prepare`, and ends with its exit
    code."""
    tensorflow_import.prepare()
    prepare()
    leave(main(sys.argv))


def has_answered(argv: list[str], help_text: Callable[[], str]) -> bool:
    """Prints the version or the help, if the arguments ask for one; returns whether they do."""
    if "--version" in argv[1:]:
        print(f"bert-estimator {__version__}")
    elif any(argument in ("--help", "-help", "-h", "--helpfull") for argument in argv[1:]):
        print(help_text())
    else:
        return False
    return True


def parser(module: str, description: str) -> argparse.ArgumentParser:
    """Returns a parser, with --version, for the arguments of a command `python -m module`."""
    arguments = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("--version", action="version", version=f"bert-estimator {__version__}")
    return arguments


def load_tensorflow() -> None:
    """Loads TensorFlow, which takes seconds, and sets its logger up."""
    import tensorflow.compat.v1 as tf

    set_up(tf.get_logger())


def set_up(logger: logging.Logger) -> None:
    """Makes a logger print its information as plain lines, and its warnings with their level."""
    logger.setLevel(logging.INFO)
    logger.propagate = False  # absl's handler would print every line again
    if not logger.handlers:  # TensorFlow does not add a handler if the root logger has one
        logger.addHandler(logging.StreamHandler())
    for handler in logger.handlers:
        handler.setFormatter(_Formatter())
    logger.addFilter(_is_news)


def exit_code(
    name: str,
    argv: list[str],
    body: Callable[[], int | None],
    *,
    expected: tuple[type[Exception], ...] = (),
    resumes: bool = False,
    when_stopped: str = "",
    doing: str | None = "Starting",
    prints_results: bool = False,
) -> int:
    """Runs the body of a command; prints on stderr what ended it, if it did not end by itself.

    The exit code is 0, or what the body returns, if it ran to its end; 2 for a `FlagError`, an
    `ArgumentError` or an expected error, if another process writes in the same directory, if
    `ulimit -v` is too low for TensorFlow, or if results are to be printed and standard output is
    closed; 130 after Ctrl-C, 143 after SIGTERM; 1 for any other failure, after its message if the
    message explains the failure, else after its traceback.

    Args:
      expected: further errors that say that the command line, or what it names, cannot work.
      doing: what the body does before its first line, which is said if that takes long; or None.
    """
    try:
        output = standard_streams.needed_output() if prints_results else contextlib.nullcontext()
        silence = ticker.never_silent(doing) if doing else contextlib.nullcontext()
        with _quiet_event_files(), silence, output:
            _check_arguments(argv)
            return body() or 0
    except KeyboardInterrupt:
        go_on = "The same command goes on from the last checkpoint." if resumes else when_stopped
        print(f"{name}: stopped. {go_on}".strip(), file=sys.stderr)
        return 130
    except standard_streams.OutputLostError as loss:
        if str(loss):
            print(f"{name}: {loss}.", file=sys.stderr)
        return loss.code
    # After SIGTERM its code is 143.
    except SystemExit as end:
        return end.code
    except Exception as error:
        code, message = _told(error, expected, resumes, writes=not prints_results)
        if message is None:
            traceback.print_exc()
        else:
            print(f"{name}: {'error: ' if code == 1 else ''}{message}", file=sys.stderr)
        return code


def _check_arguments(argv):
    try:
        paths.check_arguments(argv[1:])
    except ValueError as error:
        raise FlagError(str(error)) from None


def _told(error, expected, resumes, writes):
    """Returns (the exit code, the message without the command's name); None is a traceback."""
    # Paths of local copies become the names that the user knows.
    message = remote.shown(disk_files.in_words(error))
    if isinstance(error, ArgumentError):  # flags have the names of arguments
        return 2, f"--{message}"
    if isinstance(error, FlagError) or type(error).__name__ == _LOCKED_OUT:
        return 2, message
    if isinstance(error, tensorflow_import.AddressLimitError):
        return 2, message
    # An expected error, such as an OSError, may be about memory, too.
    if isinstance(error, MemoryError) or _OF_MEMORY.search(str(error)):
        reason = (message.strip().splitlines() or [type(error).__name__])[0]
        whose = "This machine's memory, or the memory that its limits allow (ulimit -a),"
        if _OF_A_DEVICE.search(message):
            whose = "The memory of a device (of this machine, if it is a CPU)"
        return 1, (
            f"{reason}. {whose} is used up. Give the process more memory, or take a smaller batch"
        )
    if isinstance(error, expected) and not _is_of_disk(error, writes):
        return 2, message
    if (explained := _explanation(error)) is not None:
        return 1, remote.shown(explained)
    go_on = ": it resumes from what was saved." if resumes else "."
    of_disk = disk_files.explanation(error, f"then run the same command again{go_on}")
    # It names the disk's own path, also if a URL is shown for it.
    return 1, of_disk or (message if isinstance(error, expected) else None)


def _is_of_disk(error, writes):
    # If a command writes files, a broken disk may also be an output's.
    is_of_name = disk_files.is_of_path if writes else disk_files.is_of_input
    return isinstance(error, OSError) and not is_of_name(error)


def leave(code: int) -> NoReturn:
    """Ends the process with an exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    hosts.leave(code)
    # A thread that hangs inside TensorFlow, as an input_fn may, would make Python abort on its way
    # out, with an exit code of its own.
    if any(thread.name in ("infeed", "outfeed", "closing") for thread in threading.enumerate()):
        os._exit(code)
    sys.exit(code)


@contextlib.contextmanager
def _quiet_event_files():
    """Leaves out the traceback of the thread that writes event files, as to a full disk; the next
    write raises its error again."""
    before = threading.excepthook

    def hook(args):
        if type(args.thread).__name__ != "_EventLoggerThread":
            before(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


def _explanation(error):
    """Returns the message of a self-explaining exception, else None."""
    if type(error).__name__ in _SELF_EXPLAINING:
        # TensorFlow's own NaN error has a str() that leaves its arguments out.
        return str(error.args[0] if error.args else error)
    carried = re.search(rf"\b(?:{'|'.join(_SELF_EXPLAINING)}): (.+)", str(error))
    return carried and carried[1]


def _is_news(record):
    """Tells whether a record is to be printed, and the ticker that it is."""
    if _CHATTER.search(str(record.msg)):
        return False
    ticker.heard()
    return True


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = remote.shown(record.getMessage())
        return text if record.levelno == logging.INFO else f"{record.levelname}: {text}"
