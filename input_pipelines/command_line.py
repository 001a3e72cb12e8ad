"""From a command's arguments to its exit code, for the commands that make data."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from absl import app, flags

from bert_estimator import (
    __version__,
    atomic_file,
    disk_errors,
    errors,
    native_log,
    paths,
    storage,
)
from bert_estimator.tpu import lock
from input_pipelines import worker_pool

_PATH_ERRORS = (FileNotFoundError, IsADirectoryError, PermissionError)


def run(define_flags: Callable[[], None], main: Callable[[list[str]], int]) -> NoReturn:
    """Runs a command with the arguments of this process, which ends with its exit code.

    Args:
      define_flags: defines the flags of the command.
      main: function of the program's name and its arguments that returns the exit code.
    """
    define_flags()
    app.define_help_flags()
    native_log.quiet()
    sys.exit(main(sys.argv))


def exit_code(name: str, create: Callable[[flags.FlagValues], str], argv: list[str]) -> int:
    """Runs a command; prints its summary, or on stderr the error that ended it.

    Args:
      name: name of the command, for error messages.
      create: function of the flags that does the work and returns a summary in words.
      argv: the program's name, then its arguments.

    Returns:
      0 if the command succeeded; 2 if flags or files cannot work, which a ValueError or an error of
      a path says, or if another process writes the same files; 130 after Ctrl-C; 1 for any other
      error of the operating system, and if a worker failed.
    """
    if "--version" in argv[1:]:
        print(f"bert-estimator {__version__}")
        return 0
    try:
        paths.check_arguments(argv[1:])
        rest = flags.FLAGS(argv)[1:]
        if rest:
            raise ValueError(f"unknown arguments: {' '.join(rest)}; flags are --name=value")
        _check_numbers(flags.FLAGS)
        print(storage.shown(create(flags.FLAGS)))
    except (flags.Error, ValueError, OSError, lock.InUseError) as error:
        failed = isinstance(error, OSError) and not isinstance(error, _PATH_ERRORS)
        message = (failed and _of_disk(error)) or error
        print(f"{name}: {storage.shown(message)}", file=sys.stderr)
        return 1 if failed else 2
    except KeyboardInterrupt:
        print(f"{name}: stopped.", file=sys.stderr)
        return 130
    except worker_pool.WorkerError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        if (message := _of_disk(error)) is None:
            raise
        print(f"{name}: {message}", file=sys.stderr)
        return 1
    return 0


def _check_numbers(values):
    for name in values:
        try:
            errors.check_number(name, values[name].value)
        except errors.ArgumentError as error:
            raise ValueError(f"--{error}") from None


def _of_disk(error):
    return disk_errors.explanation(error, "then run the same command again.")


@contextlib.contextmanager
def naming(flag: str) -> Iterator[None]:
    """Puts the name of a flag before the message of a ValueError that its value leads to."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"--{flag}: {error}") from None


def check_output(flag: str, path: str, input_files: Sequence[str]) -> None:
    """Checks that a command does not read the file that it writes.

    Args:
      flag: the flag that names the output.
      path: the output, a file of this machine.
      input_files: the files that the command reads.

    Raises:
      ValueError: the output, or what it is called until it is complete, is among the input.
    """
    places = {os.path.realpath(path), os.path.realpath(path + atomic_file.ENDING)}
    for input_file in input_files:
        if os.path.realpath(input_file) in places:
            raise ValueError(
                f"--{flag}={path}: would replace {input_file}, which this command reads. Write to "
                "another directory"
            )
