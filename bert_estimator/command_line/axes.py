"""Axes of charts: their ranges, with ticks at round numbers."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

# If positive values differ by more than this factor, an axis may be logarithmic.
_LARGE_RATIO = 50.0
_DIGITS = (1, 2, 5)


@dataclasses.dataclass(frozen=True)
class Axis:
    """Holds the range of an axis, with its ticks.

    Attributes:
      low, high: the values at its two ends.
      ticks: tuple of (value, text); the values lie in the range.
      is_log: whether equal distances are equal ratios; `low` is positive then.
    """

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def share(self, value: float) -> float:
        """Returns how far a value lies along the axis: 0 at `low`, 1 at `high`."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def of_steps(last: int, most: int = 8) -> Axis:
    """Returns an axis from step 0 to the last step (at least 1), with ticks at whole numbers.

    Args:
      last: the last step.
      most: there is at most this number of ticks, not counting the tick at 0.
    """
    last = max(last, 1)
    digit, exponent = next(s for s in _steps(last / most) if s[1] >= 0 and last / _size(s) <= most)
    values = range(0, last + 1, digit * 10**exponent)
    return Axis(
        0, last, tuple((n, f"{n:,}" if last < 10**7 else _text(n, exponent)) for n in values)
    )


def of_values(
    values: Iterable[float], most: int = 6, from_zero: bool = False, may_be_log: bool = False
) -> Axis:
    """Returns an axis that holds all values and begins and ends at ticks.

    Args:
      values: the finite values, at least one.
      most: there is at most this number of spaces between ticks.
      from_zero: whether 0 lies on the axis even if no value is near it.
      may_be_log: whether the axis is logarithmic if the values are positive and their ratios large.
    """
    values = [*values, *([0.0] if from_zero else [])]
    low, high = min(values), max(values)
    if may_be_log and low > 0 and high / low > _LARGE_RATIO:
        return _logarithmic(low, high, most)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # also if all values are 0
        margin = 0.05 * abs(high) or 0.5
        low, high = low - margin, high + margin
    for step in _steps((high - low) / most):
        first = math.floor(low / _size(step) + 1e-9)
        last = math.ceil(high / _size(step) - 1e-9)
        if last - first <= most:
            break
    ticks = [(_size(step, n), _text(_size(step, n), step[1])) for n in range(first, last + 1)]
    # A value may lie beyond the outermost tick by a rounding error.
    return Axis(min(low, ticks[0][0]), max(high, ticks[-1][0]), tuple(ticks))


def of_names(names: Sequence[str]) -> Axis:
    """Returns an axis with names at equal distances: number i stands at the value i."""
    return Axis(-0.5, len(names) - 0.5, tuple(enumerate(names)))


def _steps(at_least: float) -> Iterator[tuple[int, int]]:
    """Yields 1, 2 and 5 times powers of ten, as (digit, exponent), from about `at_least` on."""
    exponent = math.floor(math.log10(at_least))
    while True:
        yield from ((digit, exponent) for digit in _DIGITS)
        exponent += 1


def _size(step, times=1):
    """Returns a multiple of a step (digit, exponent), rounded once: 3 * 0.1 would not be 0.3."""
    digit, exponent = step
    return times * digit * 10.0**exponent if exponent >= 0 else times * digit / 10.0**-exponent


def _logarithmic(low, high, most):
    """Returns a logarithmic axis with ticks at 1, 2 and 5 times powers of ten, or at fewer."""
    lowest, highest = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    powers = range(lowest, highest + 1)
    ticks = _enclosing([(digit, power) for power in powers for digit in _DIGITS], low, high)
    every = 1
    while len(ticks) > most + 1:
        first = lowest // every * every
        ticks = _enclosing([(1, p) for p in range(first, highest + every, every)], low, high)
        every += 1
    ticks = tuple((_size(tick), _text(_size(tick), tick[1])) for tick in ticks)
    return Axis(ticks[0][0], ticks[-1][0], ticks, is_log=True)


def _enclosing(ticks, low, high):
    """Returns the ticks, which are sorted, from the last at most `low` to the first past `high`."""
    first = max(i for i, tick in enumerate(ticks) if _size(tick) <= low)
    last = min(i for i, tick in enumerate(ticks) if _size(tick) >= high)
    return ticks[first : last + 1]


def _text(value, exponent):
    """Returns the text of a tick; its last significant digit counts multiples of 10^exponent."""
    if value == 0:
        return "0"
    if exponent >= -4 and abs(value) < 1e6:
        return f"{value:,.{max(-exponent, 0)}f}"
    digits = max(math.floor(math.log10(abs(value)) + 1e-9) - exponent, 0)
    mantissa, power = f"{value:.{digits}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if digits else mantissa
    return f"{mantissa}e{int(power)}"
