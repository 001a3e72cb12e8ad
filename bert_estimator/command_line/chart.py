"""Draws charts as SVG: panels, one below the other, that share their horizontal axis.

The legend of a panel stands above it, so it does not cover curves. Margins are as wide as the texts
in them need. The width of a text is not known, since the reader's machine chooses the font;
`text_width` bounds it from above.
"""

import dataclasses
import html
import itertools
from collections.abc import Iterable, Sequence

from bert_estimator.command_line.axes import Axis

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
    """Holds a curve of a panel.

    Attributes:
      name: its name in the legend; a curve without a name has no entry there.
      points: the finite (x, y), sorted by x.
      colour: its colour in SVG.
      has_line: whether a line joins its points.
      has_dots: whether each point has a dot.
      dashes: the lengths of the line's dashes and gaps, as in SVG; empty: the line is solid.
      is_faint: whether it is drawn faintly.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    has_line: bool = True
    has_dots: bool = False
    dashes: str = ""
    is_faint: bool = False


@dataclasses.dataclass(frozen=True)
class Panel:
    """Holds a panel.

    Attributes:
      title: what its vertical axis measures.
      axis: the vertical axis, which holds all curves.
      curves: the curves; a later curve is drawn over an earlier curve.
      height: the height of the area of the curves, in pixels.
    """

    title: str
    axis: Axis
    curves: Sequence[Curve]
    height: int = 220


def levels(values: Iterable[tuple[str, float]], axis: Axis) -> list[Curve]:
    """Returns a dashed line for each (name, value), from one end of the axis to the other.

    Args:
      values: the names and values.
      axis: the horizontal axis.
    """
    dashes = itertools.cycle(("6 4", "2 3", "9 3 2 3"))
    return [
        Curve(name, [(axis.low, value), (axis.high, value)], GREY, dashes=next(dashes))
        for name, value in values
    ]


def svg(panels: Sequence[Panel], axis: Axis, label: str) -> str:
    """Returns a picture as the text of an SVG file.

    Args:
      panels: the panels, from top to bottom.
      axis: the horizontal axis of all panels.
      label: what the horizontal axis measures.
    """
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
