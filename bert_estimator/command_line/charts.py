"""Draws charts as SVG, such as the curves of a run: panels that share their horizontal axis.

The legend of a panel stands above it, so it does not cover curves. Margins are as wide as the texts
in them need. The width of a text is not known, since the reader's machine chooses the font;
`text_width` bounds it from above.
"""

import dataclasses
import html
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

# An axis may be logarithmic if positive values differ by more than this factor.
_LARGE_RATIO = 50.0
_DIGITS = (1, 2, 5)


@dataclasses.dataclass(frozen=True)
class Axis:
    """Holds the range of an axis, with its ticks."""

    low: float
    high: float
    # (value, text) of each tick; the values lie in the range.
    ticks: tuple[tuple[float, str], ...]
    # Whether equal distances are equal ratios; `low` is positive then.
    is_log: bool = False

    def share(self, value: float) -> float:
        """Returns how far a value lies along the axis: 0 at `low`, 1 at `high`."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def steps_axis(last: int, most: int = 8) -> Axis:
    """Returns an axis from step 0 to the last step (at least 1), with at most `most` ticks above 0,
    which are whole numbers."""
    last = max(last, 1)
    steps = _tick_steps(last / most)
    digit, exponent = next(s for s in steps if s[1] >= 0 and last / _size(s) <= most)
    values = range(0, last + 1, digit * 10**exponent)
    return Axis(
        0, last, tuple((n, f"{n:,}" if last < 10**7 else _tick_text(n, exponent)) for n in values)
    )


def values_axis(
    values: Iterable[float], most: int = 6, from_zero: bool = False, may_be_log: bool = False
) -> Axis:
    """Returns an axis that holds all values (finite, at least one), and 0 if `from_zero`; it begins
    and ends at ticks, with at most `most` spaces between them."""
    values = [*values, *([0.0] if from_zero else [])]
    low, high = min(values), max(values)
    if may_be_log and low > 0 and high / low > _LARGE_RATIO:
        return _logarithmic(low, high, most)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # also if all values are 0
        margin = 0.05 * abs(high) or 0.5
        low, high = low - margin, high + margin
    for step in _tick_steps((high - low) / most):
        first = math.floor(low / _size(step) + 1e-9)
        last = math.ceil(high / _size(step) - 1e-9)
        if last - first <= most:
            break
    ticks = [(_size(step, n), _tick_text(_size(step, n), step[1])) for n in range(first, last + 1)]
    # A value may lie beyond the outermost tick by a rounding error.
    return Axis(min(low, ticks[0][0]), max(high, ticks[-1][0]), tuple(ticks))


def names_axis(names: Sequence[str]) -> Axis:
    """Returns an axis with names at equal distances: number i stands at the value i."""
    return Axis(-0.5, len(names) - 0.5, tuple(enumerate(names)))


def _tick_steps(at_least: float) -> Iterator[tuple[int, int]]:
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
    ticks = tuple((_size(tick), _tick_text(_size(tick), tick[1])) for tick in ticks)
    return Axis(ticks[0][0], ticks[-1][0], ticks, is_log=True)


def _enclosing(ticks, low, high):
    """Returns the ticks, which are sorted, from the last at most `low` to the first past `high`."""
    first = max(i for i, tick in enumerate(ticks) if _size(tick) <= low)
    last = min(i for i, tick in enumerate(ticks) if _size(tick) >= high)
    return ticks[first : last + 1]


def _tick_text(value, exponent):
    """Returns the text of a tick; its last significant digit counts multiples of 10^exponent."""
    if value == 0:
        return "0"
    if exponent >= -4 and abs(value) < 1e6:
        return f"{value:,.{max(-exponent, 0)}f}"
    digits = max(math.floor(math.log10(abs(value)) + 1e-9) - exponent, 0)
    mantissa, power = f"{value:.{digits}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if digits else mantissa
    return f"{mantissa}e{int(power)}"


WIDTH = 760  # of a picture, in pixels
BLUE, ORANGE = "#0072b2", "#d55e00"
# These differ for eyes that confuse red and green, too (Okabe and Ito, 2008).
COLOURS = (BLUE, ORANGE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
GREY = "#6b6b6b"

_SIZE, _TITLE_SIZE = 12, 13  # of letters
_EDGE = 16  # around the picture
_ROW = 18  # a row of a legend, or of labels below a panel
_SWATCH = 24  # the sample of a curve in a legend
_SPACE = 8  # between a sample and its name, and between a label and its axis
_MANY = 2000  # of a curve with more points, those are drawn that make a difference
_CELL = 3  # pixels; of many dots in such a square, one is drawn


@dataclasses.dataclass(frozen=True)
class Curve:
    """Holds a curve of a panel."""

    # A curve without a name has no entry in the legend.
    name: str
    # The finite (x, y), sorted by x.
    points: Sequence[tuple[float, float]]
    colour: str
    has_line: bool = True
    has_dots: bool = False
    # The lengths of the line's dashes and gaps, as in SVG; empty: the line is solid.
    dashes: str = ""
    is_faint: bool = False


@dataclasses.dataclass(frozen=True)
class Panel:
    """Holds a panel, whose vertical axis measures what its title says."""

    title: str
    axis: Axis
    # A later curve is drawn over an earlier curve.
    curves: Sequence[Curve]
    # Of the area of the curves, in pixels.
    height: int = 220


def levels(values: Iterable[tuple[str, float]], axis: Axis) -> list[Curve]:
    """Returns a dashed line for each (name, value), as long as the horizontal axis."""
    dashes = itertools.cycle(("6 4", "2 3", "9 3 2 3"))
    return [
        Curve(name, [(axis.low, value), (axis.high, value)], GREY, dashes=next(dashes))
        for name, value in values
    ]


def draw(panels: Sequence[Panel], axis: Axis, label: str) -> str:
    """Returns a picture, of panels from top to bottom over one axis, as the text of an SVG file."""
    # Half of the last tick's text stands beyond the axis.
    last = max(text_width(text) / 2 for _, text in axis.ticks)
    labels = [text for panel in panels for _, text in panel.axis.ticks]
    left = _EDGE + max(map(text_width, labels), default=0) + _SPACE
    area = _Area(left, WIDTH - max(_EDGE, last + 4), axis)
    parts, y = [], _EDGE - 4
    for panel in panels:
        drawn, y = area.panel(panel, y)
        parts += [*drawn]
        y += _EDGE
    middle = (area.left + area.right) / 2
    parts.append(_text(middle, y, label, anchor="middle"))
    height = round(y + _EDGE)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="Helvetica, Arial, sans-serif" '
            f'font-size="{_SIZE}" fill="#333">',
            '<rect width="100%" height="100%" fill="white"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def text_width(text: str, size: int = _SIZE, is_bold: bool = False) -> float:
    """Returns a width in pixels that a text does not exceed in the usual fonts without serifs."""
    width = sum(_width_of(letter) for letter in text) * size
    return width * 1.1 if is_bold else width


def _width_of(letter):
    """Returns the width of a letter in a wide font (DejaVu Sans), as a share of the font's size."""
    if letter in "iljI.,:;'|!()[] ":
        return 0.4
    if letter in "mMwW%@…" or ord(letter) > 0x2000:
        return 1.0
    return 0.8 if letter.isupper() else 0.65


class _Area:
    """Draws panels between two vertical lines, at `left` and at `right`."""

    def __init__(self, left, right, axis):
        self.left, self.right, self._axis = left, right, axis

    def panel(self, panel, top):
        """Returns the elements of a panel, and the height at which it ends."""
        y = top + _TITLE_SIZE
        title = _cut(panel.title, self.right - self.left, _TITLE_SIZE, is_bold=True)
        parts = [_text(self.left, y, title, size=_TITLE_SIZE, is_bold=True)]
        legend, y = self._legend(panel.curves, y + 6)
        top = y + _SPACE
        bottom = top + panel.height
        parts += [*legend, *self._grid(panel.axis, top, bottom)]
        for curve in panel.curves:
            parts += self._curve(curve, panel.axis, top, bottom)
        for value, text in self._axis.ticks:
            parts.append(_text(self._across(value), bottom + _ROW, text, anchor="middle"))
        return parts, bottom + _ROW + 4

    def _across(self, value):
        return self.left + (self.right - self.left) * self._axis.share(value)

    def _legend(self, curves, top):
        """Returns the samples and names, in as many rows as they need, and where they end."""
        parts, x, y = [], self.left, top + _ROW / 2
        named = [curve for curve in curves if curve.name]
        for curve in named:
            text = _cut(curve.name, self.right - self.left - _SWATCH - _SPACE)
            width = _SWATCH + _SPACE + text_width(text)
            if x > self.left and x + width > self.right:
                x, y = self.left, y + _ROW
            parts += _strokes(curve, [(x, y), (x + _SWATCH, y)], [(x + _SWATCH / 2, y)])
            parts.append(_text(x + _SWATCH + _SPACE, y + 4, text))
            x += width + 2 * _SPACE
        return parts, y + _ROW / 2 if named else top

    def _grid(self, axis, top, bottom):
        heights = [
            (bottom - (bottom - top) * axis.share(value), text) for value, text in axis.ticks
        ]
        lines = [f"M{self.left:.1f},{y:.1f}H{self.right:.1f}" for y, _ in heights]
        lines += [f"M{self._across(x):.1f},{top:.1f}V{bottom:.1f}" for x, _ in self._axis.ticks]
        yield f'<path d="{"".join(lines)}" stroke="#e4e4e4" fill="none"/>'
        frame = f"M{self.left:.1f},{top:.1f}V{bottom:.1f}H{self.right:.1f}"
        yield f'<path d="{frame}" stroke="#888" fill="none"/>'
        for y, text in heights:
            yield _text(self.left - _SPACE, y + 4, text, anchor="end")

    def _curve(self, curve, axis, top, bottom):
        pixels = [
            (self._across(x), bottom - (bottom - top) * axis.share(y)) for x, y in curve.points
        ]
        # Thousands of points would make a large file that looks the same.
        line = dots = pixels
        if len(pixels) > _MANY:
            line = list(_extremes(pixels))
            dots = {(x // _CELL, y // _CELL): (x, y) for x, y in pixels}.values()
        return _strokes(curve, line, dots)


def _strokes(curve, line, dots):
    """Yields the line of a curve through places in pixels, and its dots, if the curve has them."""
    opacity = 0.45 if curve.is_faint else 1
    if curve.has_line and len(line) > 1:
        dashes = f' stroke-dasharray="{curve.dashes}"' if curve.dashes else ""
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
        yield (
            f'<polyline points="{points}" fill="none" stroke="{curve.colour}" stroke-width="1.8" '
            f'stroke-linejoin="round" opacity="{opacity}"{dashes}/>'
        )
    if curve.has_dots:
        radius = 2 if curve.is_faint else 3
        yield f'<g fill="{curve.colour}" fill-opacity="{opacity}">'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in dots)
        yield "</g>"


def _extremes(pixels: Iterable[tuple[float, float]]):
    """Yields the first, the lowest, the highest and the last of the places in each column."""
    columns = {}
    for place in pixels:
        columns.setdefault(round(place[0]), []).append(place)
    for column in columns.values():
        heights = [y for _, y in column]
        kept = {0, heights.index(min(heights)), heights.index(max(heights)), len(column) - 1}
        yield from (column[i] for i in sorted(kept))


def _cut(text, width, size=_SIZE, is_bold=False):
    """Returns a text, or as much of its start as fits the width, with an ellipsis."""
    if text_width(text, size, is_bold) <= width:
        return text
    while text and text_width(text + "…", size, is_bold) > width:
        text = text[:-1]
    return text + "…"


def _text(x, y, text, anchor="start", size=_SIZE, is_bold=False):
    style = f' font-size="{size}"' if size != _SIZE else ""
    style += ' font-weight="bold"' if is_bold else ""
    style += f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{html.escape(text)}</text>'


# A chart does not have place for larger numbers, which only a diverging run has.
_LARGEST = 1e300
_FEWEST_TO_SMOOTH = 10  # points
_MOST_DOTS = 50  # of evaluations; lines alone show more of them


def of_run(
    training: Sequence[Mapping[str, float]],
    evaluations: Sequence[Mapping[str, float]],
    corners: Sequence[Mapping[str, float]] = (),
) -> str:
    """Returns a picture of a run: its loss, its scores on held-out data, its learning rate.

    Args:
      training: the records of logged steps: dicts of name -> value with `step`. Of several records
        of a step, the last counts.
      corners: the records with `learning_rate` of the steps where the schedule bends, such as the
        end of the warm-up, which may lie between logged steps.
    """
    steps = steps_axis(max((r["step"] for r in [*training, *evaluations]), default=0))
    panels = [
        _losses(training, evaluations, steps),
        _scores(training, evaluations, steps),
        _learning_rate(training, corners),
    ]
    return draw([panel for panel in panels if panel is not None], steps, "step")


def running_median(points: Sequence[tuple[float, float]], window: int) -> list[tuple[float, float]]:
    """Returns the median of the `window` (odd) values around each (step, value), sorted by step; of
    more than 1000 points, some are kept."""
    values = [value for _, value in points]
    every = math.ceil(len(points) / 1000)
    places = sorted({*range(0, len(points), every), len(points) - 1}) if points else []
    smooth = []
    for i in places:
        # Near its start the curve of a loss is steep, so there the window is smaller, as far as the
        # point is from the start. Near the end the window is cut off, because the last value, which
        # varies much by itself, would otherwise look like a trend.
        half = min(window // 2, i)
        smooth.append((points[i][0], statistics.median(values[i - half : i + half + 1])))
    return smooth


def _losses(training, evaluations, steps):
    """Returns the panel of the loss: masked-LM's in pretraining, else the loss of the task."""
    title, name, held_out = "loss", "loss", "mean_loss"
    if any({"masked_lm_loss", "eval_masked_lm_loss"} & r.keys() for r in [*training, *evaluations]):
        title, name, held_out = "masked-LM loss (nats)", "masked_lm_loss", "masked_lm_loss"
    curves = _of_training(training, name)
    curves += _of_evaluations("held-out", _points(evaluations, f"eval_{held_out}"), ORANGE)
    curves += _baselines(evaluations, steps, of_loss=True)
    # A run without any record has an empty panel.
    if not curves:
        return Panel(title, values_axis([0.0, 1.0]), [])
    axis = values_axis(_values(curves), may_be_log=True)
    return Panel(title + (", log scale" if axis.is_log else ""), axis, curves)


def _scores(training, evaluations, steps):
    """Returns the panel of all held-out metrics that are not losses; None without such metrics."""
    names = [
        name.removeprefix("eval_")
        for name in dict.fromkeys(itertools.chain(*evaluations))
        if name.startswith("eval_") and not name.endswith(("loss", "_baseline"))
    ]
    by_name = {name: _points(evaluations, f"eval_{name}") for name in names}
    by_name = {name: points for name, points in by_name.items() if points}
    if not by_name:
        return None
    # One score has place for its values in training; several share a panel.
    if len(by_name) == 1:
        ((name, points),) = by_name.items()
        title = _words(name)
        curves = _of_training(training, name)
        curves += _of_evaluations("held-out", points, ORANGE)
    else:
        title, curves = "held-out scores", []
        for number, (name, points) in enumerate(by_name.items()):
            colour = COLOURS[number % len(COLOURS)]
            curves += _of_evaluations(_words(name), points, colour)
    curves += _baselines(evaluations, steps, of_loss=False)
    return Panel(title, values_axis(_values(curves), most=5), curves, height=150)


def _learning_rate(training, corners):
    """Returns the panel of the learning rate, or None if no step has logged it."""
    logged = _points(training, "learning_rate")
    if not logged:
        return None
    corners = [corner for corner in corners if corner["step"] <= logged[-1][0]]
    rates = _points([*corners, *training], "learning_rate")
    curve = Curve("", rates, BLUE, has_dots=len(rates) == 1)
    axis = values_axis([rate for _, rate in rates], most=4, from_zero=True)
    return Panel("learning rate", axis, [curve], height=110)


def _of_training(training, name):
    """Returns the curves of a value of training: what was logged, and if there is much, smooth."""
    points = _points(training, name)
    if not points:
        return []
    if len(points) < _FEWEST_TO_SMOOTH:
        return [Curve("training", points, BLUE, has_dots=True)]
    window = round(math.sqrt(len(points))) | 1
    name = f"median of {window} points"
    return [
        Curve("training, as logged", points, BLUE, False, has_dots=True, is_faint=True),
        Curve(name, running_median(points, window), BLUE),
    ]


def _of_evaluations(label, points, colour):
    has_dots = len(points) <= _MOST_DOTS
    return [Curve(label, points, colour, has_dots=has_dots)] if points else []


def _baselines(evaluations, steps, of_loss):
    """Returns lines at the baselines of the loss, or else of scores, of the last evaluation."""
    latest = {}
    for record in evaluations:
        for name, value in record.items():
            is_of_loss = name == "eval_unigram_baseline"
            if name.endswith("_baseline") and is_of_loss == of_loss and abs(value) < _LARGEST:
                latest[_words(name.removeprefix("eval_"))] = value
    return levels(latest.items(), steps)


def _points(records, name):
    """Returns the (step, value) of the records that have a finite value of that name, by step."""
    values = {r["step"]: r[name] for r in records if name in r and abs(r[name]) < _LARGEST}
    return sorted(values.items())


def _values(curves):
    return [value for curve in curves for _, value in curve.points]


def _words(name):
    """Returns the name of a metric in words."""
    words = name.replace("_", " ")
    return words.replace("masked lm", "masked-LM").replace("next sentence", "next-sentence")
