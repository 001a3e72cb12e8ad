"""From a command's arguments to its exit code, for the commands that make data."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

from absl import flags

from bert_estimator import __version__
from bert_estimator.command_line import help_page
from bert_estimator.storage import remote
from bert_estimator.system import (
    disk_files,
    errors,
    lock,
    paths,
    standard_streams,
    tensorflow_import,
    ticker,
)
from input_pipelines.creation import pools

_VALUES = {"bool": "", "int": "N", "float": "X", "string": "TEXT"}


def run(
    define_flags: Callable[[], None], main: Callable[[list[str]], int], description: str
) -> NoReturn:
    """Runs a command with the arguments of this process, which ends with its exit code.

    Args:
      define_flags: defines the flags of the command.
      main: function of the program's name and its arguments that returns the exit code.
      description: the text before the flags in the help.
    """
    standard_streams.prepare()
    before = set(flags.FLAGS)
    define_flags()
    if any(argument in ("--help", "-help", "-h", "--helpfull") for argument in sys.argv[1:]):
        print(help_text(description, [name for name in flags.FLAGS if name not in before]))
        sys.exit(0)
    tensorflow_import.prepare()
    sys.exit(main(sys.argv))


def help_text(description: str, names: Iterable[str]) -> str:
    """Returns what --help prints: the description, then the flags that are needed, and the others.

    Args:
      description: what the command does.
      names: names of flags of absl.
    """
    of_command = [flags.FLAGS[name] for name in names]
    groups = {
        heading: [_entry(flag) for flag in of_command if _is_required(flag) == required]
        for heading, required in (("Flags that are needed", True), ("Flags", False))
    }
    return help_page.text(description.replace("```\n", "").strip(), groups)


def _is_required(flag):
    """Returns whether a flag must be given: absl then has a validator that refuses None."""
    return any(not validator.checker(None) for validator in flag.validators)


def _entry(flag):
    explained = re.sub(r"^<\S+>: ", "", flag.help)  # absl puts the choices before the help
    if flag.default not in (None, "", False):
        explained += f" (default: {str(flag.default_as_str).strip(chr(39))})"
    if flag.flag_type() == "bool":
        return f"--[no]{flag.name}", explained
    choices = getattr(flag.parser, "enum_values", None)
    value = "|".join(choices) if choices else _VALUES.get(flag.flag_type(), "TEXT")
    return f"--{flag.name}={value}", explained


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
        _parse(argv)
        with ticker.never_silent("Starting"):
            summary = create(flags.FLAGS)
        print(remote.shown(summary))
    except (flags.Error, ValueError, OSError, lock.InUseError) as error:
        failed = isinstance(error, OSError) and not disk_files.is_of_path(error)
        message = remote.shown(error)
        if failed and (of_disk := _of_disk(error)):
            message = of_disk  # It names the disk's own path, also if a URL is shown for it.
        if isinstance(error, errors.ArgumentError):  # flags have the names of arguments
            message = f"--{message}"
        print(f"{name}: {message}", file=sys.stderr)
        return 1 if failed else 2
    except KeyboardInterrupt:
        print(f"{name}: stopped.", file=sys.stderr)
        return 130
    except pools.WorkerError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        if (message := _of_disk(error)) is None:
            raise
        print(f"{name}: {message}", file=sys.stderr)
        return 1
    return 0


def _parse(argv):
    """Parses the arguments.

    Raises:
      ValueError: an argument is not a flag, a value cannot be one, or a flag is missing.
      flags.Error: likewise; the message is absl's.
    """
    try:
        rest = flags.FLAGS(argv)[1:]
    except flags.IllegalFlagValueError:
        required = filter(_is_required, map(flags.FLAGS.__getitem__, flags.FLAGS))
        missing = [f"--{flag.name}" for flag in required if flag.value is None]
        if not missing:
            raise
        needed = "is needed" if len(missing) == 1 else "are needed"
        raise ValueError(f"{', '.join(missing)} {needed}; --help lists all flags") from None
    if rest:
        raise ValueError(f"unknown arguments: {' '.join(rest)}; flags are --name=value")
    _check_numbers(flags.FLAGS)


def _check_numbers(values):
    for name in values:
        try:
            errors.check_number(name, values[name].value)
        except errors.ArgumentError as error:
            raise ValueError(f"--{error}") from None


def _of_disk(error):
    return disk_files.explanation(error, "then run the same command again.")


@contextlib.contextmanager
def naming(flag: str) -> Iterator[None]:
    """Puts the name of a flag before the message of an error that its value leads to."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"--{flag}: {error}") from None
    except OSError as error:
        if not disk_files.is_of_input(error):
            raise
        said = f"{error.filename}: {error.strerror}" if error.strerror else error
        # An error that is made of a text does not have a number.
        kind = type(error) if disk_files.is_of_path(type(error)(said)) else ValueError
        raise kind(f"--{flag}: {said}") from None


def check_names_a_file(flag: str, path: str) -> None:
    """Checks that a file of this name can be written.

    Args:
      flag: the flag that names the file.
      path: its path.

    Raises:
      FileNotFoundError: the directory does not exist.
      ValueError: the path names a directory, or nothing.
    """
    if not os.path.isdir(os.path.dirname(path) or "."):
        raise FileNotFoundError(
            f"--{flag}: the directory of {path!r} does not exist. Create it first."
        )
    if os.path.isdir(path) or not path:
        raise ValueError(f"--{flag}={path}: is not a file's name")


def check_output(flag: str, path: str, input_files: Sequence[str]) -> None:
    """Checks that a command does not read the file that it writes.

    Args:
      flag: the flag that names the output.
      path: the output.
      input_files: the files that the command reads.

    Raises:
      ValueError: the output, or what it is called until it is complete, is among the input.
    """
    # Two names of one remote file are equal as URLs, and not as names of its copies.
    path = remote.shown(path)
    places = {os.path.realpath(path), os.path.realpath(path + disk_files.ENDING)}
    for input_file in map(remote.shown, input_files):
        if os.path.realpath(input_file) in places:
            raise ValueError(
                f"--{flag}={path}: would replace {input_file}, which this command reads. Write to "
                "another directory"
            )
