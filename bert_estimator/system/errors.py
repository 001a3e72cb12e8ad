"""Errors of flags, and of library functions' arguments, which commands report as flags' errors."""

import math
from collections.abc import Sequence

GREATEST = 2**31 - 1  # of a whole number: steps are counted in 32 bits on cores


class FlagError(ValueError):
    """A flag's value cannot work; the text names the flag, what is allowed, and what to do."""


class ArgumentError(ValueError):
    """The value of an argument cannot work; the text names it, what is allowed, and what to do."""

    def __init__(self, argument: str, rule: str, value: object = None):
        # Arguments and flags have the same names, so `command_line.console` reports this as a
        # flag's error.
        super().__init__(f"{argument}: {rule}" if value is None else f"{argument}={value}: {rule}")


_MOST_ITEMS = 10


def listed(items: Sequence[str], separator: str = ", ") -> str:
    """Returns the items of a message in a row: the first ten, and how many more there are."""
    more = len(items) - _MOST_ITEMS
    return separator.join([*items[:_MOST_ITEMS], *[f"and {more} more"] * (more > 0)])


def check_number(argument: str, value: object) -> None:
    """Raises ArgumentError for an int or float that nothing can be counted or computed with."""
    if type(value) is int and abs(value) > GREATEST:
        raise ArgumentError(argument, f"cannot be beyond {GREATEST}", value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ArgumentError(argument, "must be a finite number", value)
