"""What the commands that make data have in common: flags, their help, and checks of files."""

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from bert_estimator.command_line import console, flags
from bert_estimator.storage import remote
from bert_estimator.system import disk_files, paths
from bert_estimator.system.termination import Termination
from bert_estimator.tokenization import Casing
from input_pipelines.text.documents import TextOptions, find_files

NEEDED = "Flags that are needed"  # a heading of --help; the other flags are below "Flags"

Config = TypeVar("Config")


@flags.group()
class TextInput:
    """Says which text a command reads, and how."""

    input_file: str | None = flags.field(
        None,
        "Read these text files, globs or directories, comma-separated.",
        heading=NEEDED,
    )
    options: TextOptions = flags.member(TextOptions)

    def files(self, vocab_file: str = "") -> list[str]:
        """Returns the files, without the vocabulary; see `documents.find_files`."""
        with flags.named("input_file"):
            return find_files(self.input_file.split(","), vocab_file)


@flags.group()
class CasingFlags:
    """Says what `tokenization.Casing` is made of."""

    do_lower_case: bool | None = flags.field(
        None,
        "Lower-case the text. By default, lower-case what a vocabulary is made of, and then do as "
        "the vocabulary tells.",
    )
    strip_accents: bool | None = flags.field(
        None,
        "Strip accents from the text. By default, strip the accents of what a vocabulary is made "
        "of, if it is lower-cased or SentencePiece, and then do as the vocabulary tells.",
    )


def exit_code(
    name: str,
    description: str,
    config_class: type[Config],
    create: Callable[[Config], str],
    argv: list[str],
) -> int:
    """Runs a command, whose `create` returns a summary in words; prints its help, its summary, or
    on stderr the error that ended it. `argv` begins with the program's name."""
    if console.has_answered(argv, lambda: _help_text(config_class, description)):
        return 0

    def body():
        with Termination():  # a process that is killed leaves Python's warning of leaked semaphores
            print(remote.shown(create(parse(config_class, argv))))

    # These errors say that flags or files cannot work; any other error is a bug, with a traceback.
    return console.exit_code(name, argv, body, expected=(ValueError, OSError))


def parse(config_class: type[Config], argv: list[str]) -> Config:
    """Returns the configuration that a command line asks for, or raises FlagError."""
    values = flags.define(config_class)
    flags.parse(values, argv)
    needed = [flag.name for flag in _needed(config_class)]
    other = getattr(config_class, "OTHER_NEEDS", None)
    if other and values[other].value is not None:
        needed = []
    if missing := [f"--{name}" for name in needed if values[name].value is None]:
        is_needed = "is needed" if len(missing) == 1 else "are needed"
        raise flags.FlagError(f"{', '.join(missing)} {is_needed}; --help lists all flags")
    try:
        config = flags.build(config_class, {name: values[name].value for name in values})
    except ValueError as error:
        # The message begins with the name of a field, which is the name of its flag too.
        raise flags.FlagError(f"--{error}") from None
    flags.check_values(config)
    return config


def _help_text(config_class, description):
    needed = _needed(config_class)
    others = [flag for flag in flags.of(config_class) if flag not in needed]
    description = description.replace("```\n", "").strip()
    return flags.help_text(description, {NEEDED: needed, "Flags": others})


def _needed(config_class):
    return [flag for flag in flags.of(config_class) if flag.metadata["heading"] == NEEDED]


def check_names_a_file(flag: str, path: str) -> None:
    """Checks that a file of this name can be written, for the flag that names it."""
    if not os.path.isdir(os.path.dirname(path) or "."):
        raise FileNotFoundError(
            f"--{flag}: the directory of {path!r} does not exist. Create it first."
        )
    if os.path.isdir(path) or not path:
        raise ValueError(f"--{flag}={path}: is not a file's name")


def vocabulary_of(path: str) -> tuple[str, Casing | None, str | None]:
    """Returns what --vocab_file names: a vocabulary; or, if it names a network, the vocabulary of
    the network, how its text is cased, as far as it is known, and the file that says so."""
    here, there = (os.path.exists, os.path.isdir), (remote.check, remote.is_directory)
    exists, is_directory = there if paths.is_remote(path) else here
    with flags.named("vocab_file"):
        if not (path.endswith(".zip") or exists(f"{path}.index") or is_directory(path)):
            return path, None, None
    console.load_tensorflow()
    from bert_estimator.interchange import open_source

    with flags.named("vocab_file"):
        source = open_source(path)
    rule = "there is no vocabulary beside this network"
    flags.check(source.vocab_file, "vocab_file", path, rule)
    return source.vocab_file, source.casing, source.casing_file


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
