"""Paths that strangers choose: names inside files, patterns, and what no file system can hold."""

import glob
import math
import os
import re
from collections.abc import Sequence

# TensorFlow takes the paths of checkpoints for patterns when it restores or deletes them.
_PATTERN = re.compile(r"[\[\]*?\\]")


def is_remote(path: str | os.PathLike | None) -> bool:
    """Returns whether a path is a URL beyond this machine, such as gs://bucket/name."""
    return path is not None and re.match(r"[a-z][a-z0-9+.-]*://", os.fspath(path)) is not None


def place(path: str | os.PathLike) -> str:
    """Returns what two names of one file share: links, `..` and file:// are resolved, but a URL
    beyond this machine stays a name that only equals itself."""
    return os.path.realpath(os.fspath(path).removeprefix("file://"))


def check_arguments(argv: Sequence[str]) -> None:
    """Raises a ValueError if a word of a command line is not UTF-8, or holds a NUL."""
    for word in argv:
        if "\0" in word:
            raise ValueError(f"the argument {word!r} holds a NUL character; leave it out")
        # Python has bytes that are not UTF-8 as lone surrogates, which cannot be encoded.
        try:
            word.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"the argument {word!a} is not UTF-8; rename the file, or correct the argument"
            ) from None


def check_no_pattern(path: str, place: str = "") -> None:
    """Raises a ValueError, which begins with `place`, if TensorFlow takes a path for a pattern."""
    found = _PATTERN.search(os.fspath(path))
    if found:
        raise ValueError(
            f"{place}has the character {found[0]}, with which TensorFlow takes the path of a "
            "checkpoint for a pattern and does not find it again; choose a path without any of "
            "[ ] * ? \\"
        )


def matches(pattern: str) -> list[str]:
    """Returns the files that a pattern matches, sorted."""
    # So a file whose name has the characters of patterns can be named, too.
    if os.path.isfile(pattern):
        return [pattern]
    return sorted(path for path in glob.glob(pattern) if os.path.isfile(path))


def split_weight(pattern: str) -> tuple[str, float | None]:
    """Splits a pattern of a mixture, `a*.tfrecord:0.7`, into its pattern and its weight, or None;
    raises a ValueError if the weight is not a positive number."""
    found = re.fullmatch(r"(.*):([-+\d.][-+.\deE]*)", pattern, re.DOTALL)
    if found is None or os.path.isfile(pattern):
        return pattern, None
    try:
        weight = float(found[2])
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ValueError(f"{pattern!r} ends in the weight {found[2]}; it must be a positive number")
    return found[1], weight


def inside(directory: str, name: str) -> str:
    """Returns the path of a file that another file of the directory names, relative to it; raises a
    ValueError if the path, or a symbolic link, leads out of the directory."""
    parts = re.split(r"[/\\]", name)
    if not name or ".." in parts or "" in parts or ":" in parts[0] or "\0" in name:
        raise ValueError(f"the name {name!r} is not the name of a file in the same directory")
    path = os.path.join(directory, name)
    real, home = os.path.realpath(path), os.path.realpath(directory)
    allowed = [home]
    # In a cache of Hugging Face's hub, the files of `snapshots/<commit>` may be links into `blobs`.
    if os.path.basename(os.path.dirname(home)) == "snapshots":
        allowed.append(os.path.join(os.path.dirname(os.path.dirname(home)), "blobs"))
    if real == home or not any(os.path.commonpath([real, f]) == f for f in allowed):
        raise ValueError(f"the name {name!r} is a link that leads out of the directory, to {real}")
    return path
