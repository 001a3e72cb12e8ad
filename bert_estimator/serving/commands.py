"""What the commands that answer lines of text share: their arguments, and their exit codes."""

import argparse
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

from bert_estimator import __version__
from bert_estimator.serving.texts import BATCH_SIZE
from bert_estimator.storage import remote
from bert_estimator.system import paths, standard_streams, ticker


def parser(module: str, description: str, model_help: str) -> argparse.ArgumentParser:
    """Returns a parser with MODEL, FILE, --batch_size and --version.

    Args:
      module: the name after `python -m`.
      description: the text before the arguments in the help.
      model_help: the help of MODEL.
    """
    made = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"bert-estimator {__version__}")
    made.add_argument("model", metavar="MODEL", help=model_help)
    made.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="read lines from this file (default: standard input)",
    )
    made.add_argument(
        "--batch_size",
        type=int,
        default=BATCH_SIZE,
        help="compute at most this many texts at a time (default %(default)s)",
    )
    return made


def opening() -> contextlib.AbstractContextManager[None]:
    """Says that the model is being opened, if that takes long."""
    return ticker.never_silent("Opening the model")


@contextlib.contextmanager
def lines_of(file: str | None) -> Iterator[BinaryIO]:
    """Opens the reader of lines: a file, or standard input."""
    if file:
        with open(file, "rb") as reader:
            yield reader
    else:
        yield sys.stdin.buffer


def exit_code(name: str, argv: list[str], answer: Callable[[], int]) -> int:
    """Returns the exit code of a command, and reports an error in a sentence.

    Args:
      name: the command's name, for the sentence.
      argv: the command line, which is checked first.
      answer: function without arguments that answers all lines, and returns how many of them
        cannot be answered.

    Returns:
      0; 2 for a model or a file that cannot work, or if standard output is closed; 1 if some lines
      cannot be answered, or if the answers cannot be written: the disk is full, or their reader
      has ended; or 130 after Ctrl-C.
    """
    # TensorFlow warns that sessions should not load SavedModels, which users cannot change.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    try:
        paths.check_arguments(argv[1:])
        with standard_streams.needed_output():
            errors = answer()
        if errors:
            lines = "1 line was" if errors == 1 else f"{errors} lines were"
            print(f"{lines} answered with an error.", file=sys.stderr)
    except standard_streams.OutputLostError as loss:
        if str(loss):
            print(f"{name}: {loss}.", file=sys.stderr)
        return loss.code
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError) as error:
        print(f"{name}: {remote.shown(error)}", file=sys.stderr)
        return 2
    return 1 if errors else 0


def report_cuts(num_cut: int, max_seq_length: int, what: str = "texts") -> None:
    """Says how many of the texts, or of their words, were cut."""
    if num_cut:
        print(f"{num_cut} of the {what} were cut to {max_seq_length} tokens.", file=sys.stderr)
