"""Makes flags of the fields of a configuration, explains and parses them, and checks their values.

A configuration is a frozen dataclass. Its fields are flags (`field`) or groups of flags (`member`);
a group is a frozen dataclass of flags, too. Flags are flat: their names do not say the group.

This module does not import TensorFlow, which takes seconds, so wrong flags are reported at once.
"""

import contextlib
import dataclasses
import difflib
import glob
import os
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from absl import flags

from bert_estimator.system import disk_files, errors, paths
from bert_estimator.system.errors import FlagError

_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
_DEFINERS = {
    str: flags.DEFINE_string,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_boolean,
}


# The headings of --help, in their order.
HEADINGS = COMMON, TASKS, DATA, TRAINING, CHECKPOINTS, CORES, LOG = (
    "Common flags",
    "What to do",
    "Data",
    "Training",
    "Checkpoints, evaluation and predictions",
    "Cores, hosts and memory",
    "Log",
)

EVALUATING = "evaluating"  # see `field`

Check = Callable[[str, Any], None]  # of a flag's name and value; raises FlagError
Config = TypeVar("Config")  # a configuration, or a group of one


def field(
    default: Any,
    text: str,
    *checks: Check,
    heading: str | None = None,
    is_setting: bool | None = None,
    may_differ: bool | str | None = None,
) -> Any:
    """Returns a dataclass field that is a flag of the same name; for what is None, see `group`."""
    metadata = {
        "help": text,
        # One of HEADINGS, below which --help has the flag.
        "heading": heading,
        # `check_values` calls these.
        "checks": checks,
        # Whether the flag says how to run, so that config.json has it. A flag that asks for
        # something else than a run, such as --compile_only, is not a setting.
        "is_setting": is_setting,
        # Whether a run may be resumed with another value: the flag changes how long the run is (and
        # with it later learning rates), where it runs, or what it reports. EVALUATING: only an
        # evaluation may have another value: the flag matters in training alone, or what it names is
        # compared with what lies in the run's directory.
        "may_differ": may_differ,
    }
    return dataclasses.field(default=default, metadata=metadata)


def group(
    heading: str | None = None,
    is_setting: bool = True,
    may_differ: bool | str = False,
) -> Callable[[type[Config]], type[Config]]:
    """Returns a decorator that makes a frozen dataclass of a class of flags; the arguments are
    `field`'s, for the flags of the class that do not say otherwise."""
    defaults = {"heading": heading, "is_setting": is_setting, "may_differ": may_differ}

    def decorate(group_class):
        group_class = dataclasses.dataclass(frozen=True, kw_only=True)(group_class)
        for flag in dataclasses.fields(group_class):
            if "help" in flag.metadata:
                own = {name: value for name, value in flag.metadata.items() if value is not None}
                flag.metadata = types.MappingProxyType({**defaults, **own})
        return group_class

    return decorate


def member(group_class: type) -> Any:
    """Returns a dataclass field that is a group of flags."""
    return dataclasses.field(default_factory=group_class, metadata={"group": group_class})


def of(config_class: type) -> list[dataclasses.Field]:
    """Returns the fields of a configuration and of its groups that are flags."""
    own = []
    for field_or_group in dataclasses.fields(config_class):
        if "group" in field_or_group.metadata:
            own += of(field_or_group.metadata["group"])
        elif "help" in field_or_group.metadata:
            own.append(field_or_group)
    return own


def by_heading(config_class: type) -> dict[str, list[dataclasses.Field]]:
    """Returns the flags of a configuration below the headings of --help: first its own flags, and
    then the flags of its groups."""
    own = {field.name for field in dataclasses.fields(config_class)}
    headings = {heading: [] for heading in HEADINGS}
    for flag in sorted(of(config_class), key=lambda flag: flag.name not in own):
        headings[flag.metadata["heading"]].append(flag)
    return headings


_INDENT = 28  # of the help of a flag, which stands at the flag's right
_OF_DEFAULTS = (
    "A flag that is not given has the default shown here, unless a recipe or the built-in plan for "
    "runs without data sets another value; config.json in --output_dir says which value came from "
    "where."
)
_VALUES = {int: "N", float: "X", str: "TEXT"}


def help_of_script(config_class: type, description: str) -> str:
    """Returns what --help of a script prints."""
    wrapped = textwrap.wrap(_OF_DEFAULTS, 100)
    return help_text("\n".join([description.strip(), "", *wrapped]), by_heading(config_class))


def help_text(description: str, headings: Mapping[str, Iterable[dataclasses.Field]]) -> str:
    """Returns what --help prints: flags below headings, each with its default."""
    lines = [description]
    entries = {heading: list(map(_entry, fields)) for heading, fields in headings.items()}
    entries["Further flags"] = [
        ("--flagfile=FILE", "Take the flags of this file, one on each line."),
        ("--version", "Print the version."),
    ]
    for heading, of_heading in entries.items():
        lines += ["", f"{heading}:"] if of_heading else []
        for form, explained in of_heading:
            rest = textwrap.wrap(explained, 100 - _INDENT, break_on_hyphens=False)
            start = f"  {form}"
            if len(start) < _INDENT - 1:
                start = start.ljust(_INDENT) + rest.pop(0)
            lines += [start, *(" " * _INDENT + line for line in rest)]
    return "\n".join(lines)


def _entry(flag):
    """Returns a flag's form, such as "--seed=N", and its help."""
    kind = kind_of(flag)
    form = f"--[no]{flag.name}" if kind is bool else f"--{flag.name}={_VALUES[kind]}"
    explained = flag.metadata["help"]
    # A switch that is off by default does not need to say so.
    if flag.default not in (None, "") and not (kind is bool and not flag.default):
        default = str(flag.default).lower() if kind is bool else flag.default
        explained += f" (default: {default})"
    return form, explained


def build(config_class: type[Config], values: Mapping[str, Any], **others: Any) -> Config:
    """Returns a configuration from flag name -> value, without the flags that have their defaults,
    and from its fields that are not flags."""
    for member in dataclasses.fields(config_class):
        if "group" in member.metadata:
            others[member.name] = build(member.metadata["group"], values)
        elif member.name in values:
            others[member.name] = values[member.name]
    return config_class(**others)


def values_of(config: Any) -> dict[str, Any]:
    """Returns flag name -> value of a configuration and its groups."""
    values = {}
    for member in dataclasses.fields(config):
        if "group" in member.metadata:
            values |= values_of(getattr(config, member.name))
        elif "help" in member.metadata:
            values[member.name] = getattr(config, member.name)
    return values


def changed(config: Config, **changes: Any) -> Config:
    """Returns a configuration with other values of some flags, or of fields that are not flags."""
    own = {}
    for member in dataclasses.fields(config):
        if "group" in member.metadata:
            group = getattr(config, member.name)
            of_group = {n: changes.pop(n) for n in values_of(group) if n in changes}
            own |= {member.name: changed(group, **of_group)} if of_group else {}
        elif member.name in changes:
            own[member.name] = changes.pop(member.name)
    if changes:
        raise TypeError(f"{type(config).__name__} does not have {', '.join(sorted(changes))}")
    return dataclasses.replace(config, **own)


def check_values(config: Any) -> None:
    """Calls the checks of all fields of a configuration and of its groups."""
    values = values_of(config)
    for member in of(type(config)):
        for check_value in member.metadata["checks"]:
            check_value(member.name, values[member.name])


def define(config_class: type) -> flags.FlagValues:
    """Returns the flags of a configuration as an `absl.flags.FlagValues`, unparsed."""
    values = flags.FlagValues()
    for flag in of(config_class):
        define_one = _DEFINERS[kind_of(flag)]
        define_one(flag.name, flag.default, flag.metadata["help"], flag_values=values)
    return values


def kind_of(field: dataclasses.Field) -> type:
    """Returns the type of a flag's values: str, int, float or bool."""
    (kind,) = [kind for kind in _DEFINERS if kind in (field.type, *typing.get_args(field.type))]
    return kind


def parse(values: flags.FlagValues, argv: list[str]) -> set[str]:
    """Parses a command line, --flagfile's flags at its place; returns the names of given flags."""
    try:
        paths.check_arguments(argv[1:])
        argv = [argv[0], *_with_flag_files(values, argv[1:])]
        paths.check_arguments(argv[1:])
    except FlagError:
        raise
    except ValueError as error:
        raise FlagError(str(error)) from None
    try:
        rest = values(argv)
    except flags.UnrecognizedFlagError as error:
        # With a cutoff of 0 there is a suggestion for any text.
        near = difflib.get_close_matches(error.flagname, list(values), n=1, cutoff=0.0)
        raise FlagError(f"--{error.flagname}: no such flag; did you mean --{near[0]}?") from None
    except flags.IllegalFlagValueError as error:
        # absl's error has the flag's name and value in its text alone.
        name, value = re.match(r"flag --(\w+)=(.*?): ", str(error), re.DOTALL).groups()
        check(False, name, value, f"must be {_KINDS[values[name].flag_type()]}")
    except flags.Error as error:
        raise FlagError(str(error)) from None
    if len(rest) > 1:
        raise FlagError(f"{rest[1]!r} is not a flag: flags are written --name=value")
    for name in values:
        try:
            errors.check_number(name, values[name].value)
        except errors.ArgumentError as error:
            raise FlagError(f"--{error}") from None
    return {name for name in values if values[name].present}


def _with_flag_files(values, arguments):
    """Returns the arguments with the lines of the files that --flagfile names in its place."""
    try:
        return values.read_flags_from_files(arguments, force_gnu=False)
    except flags.CantOpenFlagFileError as error:
        raise FlagError(f"--flagfile: cannot be read: {error.__context__}") from None
    except UnicodeDecodeError as error:
        raise FlagError(f"--flagfile: must be a text file in UTF-8: {error}") from None
    except flags.Error as error:
        raise FlagError(str(error)) from None


def check(ok: Any, name: str, value: Any, rule: Any) -> None:
    """Raises FlagError unless `ok`."""
    if not ok:
        flag = f"--{name}" if value is None else f"--{name}={value}"
        raise FlagError(f"{flag}: {rule}")


def rule(is_allowed: Callable[[Any], Any], text: str) -> Check:
    """Returns a check that allows None, and the values that a function says are allowed."""
    return lambda name, value: check(value is None or is_allowed(value), name, value, text)


positive = rule(lambda value: value > 0, "must be positive")
not_negative = rule(lambda value: value >= 0, "must not be negative")


def at_most(greatest: float) -> Check:
    return rule(lambda value: value <= greatest, f"must be at most {greatest}")


def one_of(choices: Sequence[str]) -> Check:
    """Returns a check that allows None and the choices; it suggests the nearest choice."""
    return lambda name, value: value is None or check_choice(name, value, choices)


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Makes a ValueError, or the error of a path that cannot be read, a FlagError of the flag."""
    try:
        yield
    except FlagError:
        raise
    except ValueError as error:
        raise FlagError(f"--{name}: {error}") from None
    except OSError as error:
        # Other errors, such as a full disk's, are not about what the flag names.
        if not disk_files.is_of_input(error):
            raise
        raise FlagError(f"--{name}: {disk_files.in_words(error)}") from None


def find_hosts() -> Any:
    """Returns the `cluster.hosts.Hosts` that run the script together."""
    from bert_estimator.cluster import cluster_task, hosts

    try:
        task = cluster_task.of_tf_config().type
        all_hosts = hosts.find()
    except (TypeError, ValueError) as error:
        raise FlagError(str(error)) from None
    if task == "evaluator":
        raise FlagError(
            "TF_CONFIG: the task type of this process is evaluator, but the scripts evaluate by "
            "themselves. Leave the evaluator out of the cluster, and do not start it"
        )
    return all_hosts


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raises FlagError unless the value is one of the choices; suggests the nearest."""
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        check(False, name, value, f"must be one of {', '.join(choices)}{hint}")


def check_file(name: str, path: str | None) -> None:
    """Raises FlagError unless the path is None, remote, or a file."""
    if path is not None and not paths.is_remote(path):
        check(os.path.exists(path), name, path, "there is no such file")
        check(
            os.path.isfile(path),
            name,
            path,
            "there is no such file, but a directory, a device or a pipe",
        )
        check_readable(name, path)


def check_readable(name: str, *paths_to_read: str) -> None:
    """Raises FlagError if a file or directory cannot be read."""
    for path in paths_to_read:
        why = disk_files.why_unreadable(path)
        check(why is None, name, path, why)


def check_checkpoint(name: str, path: str | None) -> None:
    """Raises FlagError unless the path is empty, remote, or a checkpoint's, and readable."""
    if not path or paths.is_remote(path):
        return
    # The names of a checkpoint's files begin with its path; a directory or an archive is itself.
    files = [path] if os.path.exists(path) else glob.glob(f"{glob.escape(path)}.*")
    check(
        os.path.exists(path) or os.path.exists(f"{path}.index"),
        name,
        path,
        "there is no such checkpoint. Give the path without .index or .data, such as "
        "uncased_L-12_H-768_A-12/bert_model.ckpt, a directory, or a zip archive",
    )
    check_readable(name, *files)


def check_patterns(name: str, patterns: str | None) -> None:
    """Raises FlagError unless each of the comma-separated patterns, which may end in a weight,
    `:0.7`, is remote or a directory, or matches a file."""
    for weighted in patterns.split(",") if patterns is not None else ():
        with named(name):
            pattern, _ = paths.split_weight(weighted)
        is_there = paths.is_remote(pattern) or os.path.isdir(pattern) or paths.matches(pattern)
        check(
            is_there, name, patterns, f"no file matches {pattern!r}; give record files or patterns"
        )
        if not paths.is_remote(pattern):
            check_readable(name, *paths.matches(pattern))


def make_directory(name: str, path: str) -> None:
    """Makes the directory that a flag names; raises FlagError if it cannot be written."""
    rule = "must be a directory of this machine; a bucket can be mounted as one (gcsfuse)"
    check(not paths.is_remote(path), name, path, rule)
    try:
        paths.check_no_pattern(path)
    except ValueError as error:
        check(False, name, path, error)
    try:
        os.makedirs(path, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FlagError(
            f"--{name}={path}: is a file, or below one; choose another directory"
        ) from None
    except OSError as error:
        raise FlagError(f"--{name}={path}: cannot be made: {error.strerror}") from None
    # makedirs is content with a directory that is there, writable or not.
    if not os.access(path, os.W_OK | os.X_OK):
        raise FlagError(
            f"--{name}={path}: is not writable by this user; choose another directory. To evaluate "
            "what it holds, name it with --init_checkpoint"
        )
