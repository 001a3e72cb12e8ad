"""Kills within a test's process: an exception that nothing catches, in place of a call.

What is on disk stays as it is, as after a `kill -9`.
"""

from collections.abc import Callable

import pytest


class Killed(BaseException):
    """Stands for a kill."""


def kill_before(
    monkeypatch: pytest.MonkeyPatch, kind: type, name: str, is_the_call: Callable[..., bool]
) -> None:
    """Has a method raise `Killed` in place of the call that is meant.

    Args:
      monkeypatch: what undoes it.
      kind, name: the class and the name of its method.
      is_the_call: function of the call's arguments, `self` included.
    """
    method = getattr(kind, name)

    def killed(*args, **kwargs):
        if is_the_call(*args, **kwargs):
            raise Killed
        return method(*args, **kwargs)

    monkeypatch.setattr(kind, name, killed)
