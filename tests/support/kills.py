"""Kills within a process: an exception that nothing catches, or a copy of what a kill leaves."""

import os
import shutil
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from bert_estimator.storage import remote


class Killed(BaseException):
    """Stands for a kill."""


def kill_before(
    monkeypatch: pytest.MonkeyPatch, kind: type, name: str, is_the_call: Callable[..., bool]
) -> None:
    """Has a method raise `Killed` in place of the first call for which `is_the_call` holds."""
    method = getattr(kind, name)

    def killed(*args, **kwargs):
        if is_the_call(*args, **kwargs):
            raise Killed
        return method(*args, **kwargs)

    monkeypatch.setattr(kind, name, killed)


def copy_at(
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
    name: str,
    is_the_call: Callable[..., bool],
    source: str | os.PathLike,
    target: str | os.PathLike,
    after: bool = False,
) -> None:
    """Has a directory copied before such a call, or after it: what a kill there would have left."""
    method = getattr(kind, name)

    def copied(*args, **kwargs):
        is_now = not os.path.exists(target) and is_the_call(*args, **kwargs)
        if is_now and not after:
            shutil.copytree(source, target)
        result = method(*args, **kwargs)
        if is_now and after:
            shutil.copytree(source, target)
        return result

    monkeypatch.setattr(kind, name, copied)


def kill_at_transfer(
    monkeypatch: pytest.MonkeyPatch,
    number: int | None = None,
    names: Iterable[str] = ("upload", "remove"),
) -> list[tuple[Any, ...]]:
    """Has the change of remote storage of this number raise `Killed`; returns the changes."""
    calls = []

    def killed_before(function):
        def call(*args):
            calls.append(args)
            if number is not None and len(calls) > number:
                raise Killed
            function(*args)

        return call

    for name in names:
        monkeypatch.setattr(remote, name, killed_before(getattr(remote, name)))
    return calls
