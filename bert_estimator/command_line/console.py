"""What the scripts print: TensorFlow's logger with short lines, and what ended a script."""

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
from bert_estimator.command_line import flag_help, flags
from bert_estimator.storage import remote
from bert_estimator.system import disk_files, ticker
from bert_estimator.system.errors import ArgumentError

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
    "NanLossDuringTrainingError",
    "NonFiniteWeightsError",
    "NoWholeCheckpointError",
    "MissingHostsError",
    "StorageError",
)

# `tpu.lock` raises this before anything is done; its text names the process that writes here.
_LOCKED_OUT = "InUseError"


def main(
    script: str, argv: list[str], description: str, config_class: type, job: Callable[[], None]
) -> int:
    """Runs a script, or prints its help or its version.

    Args:
      script: the script's name, for messages.
      argv: the command line.
      description: the text before the flags in the help.
      config_class: the dataclass whose fields are the flags; `flags.field` makes them.
      job: function without arguments that does what the command line asks for.

    Returns:
      The exit code that `exit_code` returns.
    """
    if "--version" in argv[1:]:
        print(f"bert-estimator {__version__}")
        return 0
    if any(argument in ("--help", "-help", "-h", "--helpfull") for argument in argv[1:]):
        print(flag_help.text(config_class, description))
        return 0
    return exit_code(script, job)


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
    script: str,
    body: Callable[[], None],
    when_stopped: str = "The same command goes on from the last checkpoint.",
    doing: str = "Starting",
) -> int:
    """Runs a script's body; prints on stderr what ended it, if it did not end by itself.

    Args:
      script: the script's name, for the message.
      body: function without arguments.
      when_stopped: a sentence that says how to go on after Ctrl-C.
      doing: what the body does before its first line, which is said if that takes long.

    Returns:
      0 if the body ran to its end; 2 for a `FlagError` or an `ArgumentError`, or if another process
      writes in the same directory; 130 after Ctrl-C, 143 after SIGTERM; 1 for any other failure,
      after its message if the message explains the failure, else after its traceback.
    """
    try:
        with hosts.explaining_errors(), _quiet_event_files(), ticker.never_silent(doing):
            body()
    except flags.FlagError as error:
        _print(f"{script}: {error}")
        return 2
    except ArgumentError as error:
        _print(f"{script}: --{error}")
        return 2
    except KeyboardInterrupt:
        print(f"{script}: stopped. {when_stopped}", file=sys.stderr)
        return 130
    except Exception as error:
        if type(error).__name__ == _LOCKED_OUT:
            _print(f"{script}: {error}")
            return 2
        message = _explanation(error) or disk_files.explanation(
            error, "then run the same command again: it resumes from what was saved."
        )
        if message is None:
            traceback.print_exc()
        else:
            _print(f"{script}: error: {message}")
        return 1
    except SystemExit as end:
        return end.code
    return 0


def _print(text):
    """Prints on stderr; paths of local copies become the names that the user knows."""
    print(remote.shown(text), file=sys.stderr)


def leave(code: int) -> NoReturn:
    """Ends the process with an exit code.

    A thread that hangs inside TensorFlow, as an input_fn may, would make Python abort on its way
    out, with an exit code of its own.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    hosts.leave(code)
    if any(thread.name in ("infeed", "outfeed", "closing") for thread in threading.enumerate()):
        os._exit(code)
    sys.exit(code)


@contextlib.contextmanager
def _quiet_event_files():
    """Leaves out the traceback of the thread that writes event files, as to a full disk.

    The next write raises its error again.
    """
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
