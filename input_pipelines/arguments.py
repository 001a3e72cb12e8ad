"""Arguments of the commands that make data: absl's flags, their help, and checks of files."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from absl import flags

from bert_estimator.command_line import console, help_page
from bert_estimator.storage import remote
from bert_estimator.system import disk_files, errors, paths

_VALUES = {"bool": "", "int": "N", "float": "X", "string": "TEXT"}


def run(define_flags: Callable[[], None], main: Callable[[list[str]], int]) -> NoReturn:
    """Runs a command with the arguments of this process; ends with the exit code of `main`."""
    define_flags()
    console.run(main)


def help_text(description: str, names: Iterable[str]) -> str:
    """Returns what --help prints: the description, the flags that must be given, the others."""
    of_command = [flags.FLAGS[name] for name in names]
    groups = {
        heading: [_entry(flag) for flag in of_command if _is_required(flag) == required]
        for heading, required in (("Flags that are needed", True), ("Flags", False))
    }
    return help_page.text(description.replace("```\n", "").strip(), groups)


def own_flags(values: flags.FlagValues) -> list[str]:
    """Returns the names of the flags that are not absl's own."""
    defined_in = values.find_module_defining_flag
    return [name for name in values if not defined_in(name, "").startswith("absl.")]


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


def exit_code(
    name: str, description: str, create: Callable[[flags.FlagValues], str], argv: list[str]
) -> int:
    """Runs a command, whose `create` returns a summary in words; prints its help, its summary, or
    on stderr the error that ended it. `argv` begins with the program's name."""

    def body():
        _parse(argv)
        print(remote.shown(create(flags.FLAGS)))

    if console.has_answered(argv, lambda: help_text(description, own_flags(flags.FLAGS))):
        return 0
    # These errors say that flags or files cannot work; any other error is a bug, with a traceback.
    return console.exit_code(name, argv, body, expected=(ValueError, OSError, flags.Error))


def _parse(argv):
    """Parses the arguments; raises ValueError or absl's own error if they are wrong."""
    try:
        rest = flags.FLAGS(argv)[1:]
    except flags.IllegalFlagValueError:
        # absl names one missing flag, and in words of its own; here all are named.
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


def check_names_a_file(flag: str, path: str) -> None:
    """Checks that a file of this name can be written, for the flag that names it."""
    if not os.path.isdir(os.path.dirname(path) or "."):
        raise FileNotFoundError(
            f"--{flag}: the directory of {path!r} does not exist. Create it first."
        )
    if os.path.isdir(path) or not path:
        raise ValueError(f"--{flag}={path}: is not a file's name")


def check_output(flag: str, path: str, input_files: Sequence[str]) -> None:
    """Checks that a command does not read the file that it writes."""
    # Two names of one remote file are equal as URLs, and not as names of its copies.
    path = remote.shown(path)
    # Under the second name the output lies until it is complete.
    places = {paths.place(path), paths.place(path + disk_files.ENDING)}
    for input_file in map(remote.shown, input_files):
        if paths.place(input_file) in places:
            raise ValueError(
                f"--{flag}={path}: would replace {input_file}, which this command reads. Write to "
                "another directory"
            )
