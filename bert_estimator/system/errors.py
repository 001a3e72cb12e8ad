"""Errors of flags, and of library functions' arguments, which commands report as flags' errors."""

import math
from collections.abc import Sequence

GREATEST = 2**31 - 1  # of a whole number: steps are counted in 32 bits on cores


class FlagError(ValueError):
    """A flag's value cannot work; the text names the flag, what is allowed, and what to do."""


class ArgumentError(ValueError):
    """The value of an argument cannot work.

    Its text begins with the argument's name and says what is allowed and what to do. Arguments and
    flags have the same names, so `command_line.console` reports it as the error of a flag.

    Args:
      argument: name of the argument.
      rule: what is wrong, what is allowed, and what to do.
      value: the value, or None if the rule says it.
    """

    def __init__(self, argument: str, rule: str, value: object = None):
        super().__init__(f"{argument}: {rule}" if value is None else f"{argument}={value}: {rule}")


_MOST_ITEMS = 10


def listed(items: Sequence[str], separator: str = ", ") -> str:
    """Returns the items of a message in a row: the first ten, and how many more there are."""
    more = len(items) - _MOST_ITEMS
    return separator.join([*items[:_MOST_ITEMS], *[f"and {more} more"] * (more > 0)])


def check_number(argument: str, value: object) -> None:
    """Raises ArgumentError for a number that nothing can be counted or computed with.

    Args:
      argument: name of the argument.
      value: its value; a value of another type than int and float passes.
    """
    if type(value) is int and abs(value) > GREATEST:
        raise ArgumentError(argument, f"cannot be beyond {GREATEST}", value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ArgumentError(argument, "must be a finite number", value)
