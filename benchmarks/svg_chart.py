"""Draws a small chart as SVG: curves over a few values, with a dot for every repetition."""

import math
import statistics
from collections.abc import Mapping, Sequence

_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728")
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 320, 70, 40
_BESIDE = 10  # pixels between the dots of two curves at the same x


def write(
    path: str,
    title: str,
    x_label: str,
    curves: Mapping[str, Mapping[int, Sequence[float]]],
    levels: Sequence[tuple[str, float]] = (),
) -> None:
    """Draws the medians as lines and the values as dots.

    Args:
      path: the SVG file.
      title: the text above the chart.
      x_label: the text below the chart.
      curves: dict of name -> dict of x -> values. All x are drawn at equal distances. Values that
        are not finite are left out.
      levels: pairs of (name, value), which are drawn as dashed lines.
    """
    finite = {
        name: {
            x: kept for x, values in curve.items() if (kept := list(filter(math.isfinite, values)))
        }
        for name, curve in curves.items()
    }
    places = sorted({x for curve in curves.values() for x in curve})
    shown = [value for curve in finite.values() for values in curve.values() for value in values]
    shown += [value for _, value in levels]
    low, high, step = _axis(shown)

    def middle(x):
        return _LEFT + _WIDTH * (places.index(x) + 0.5) / len(places)

    def across(x, number):
        return middle(x) + _BESIDE * (number - (len(finite) - 1) / 2)

    def down(value):
        return _TOP + _HEIGHT * (high - value) / (high - low)

    bottom = _TOP + _HEIGHT
    parts = [_frame(title, x_label)]
    for number in range(round((high - low) / step) + 1):
        value = low + step * number
        y = down(value) + 4
        parts.append(f'<text x="{_LEFT - 6}" y="{y:.0f}" text-anchor="end">{value:g}</text>')
    for x in places:
        parts.append(f'<text x="{middle(x):.0f}" y="{bottom + 18}" text-anchor="middle">{x}</text>')
    for name, value in levels:
        y = down(value)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#666" '
            f'stroke-dasharray="4"/><text x="{_LEFT + 8}" y="{y - 5:.1f}" fill="#666">{name}</text>'
        )
    for number, (name, curve) in enumerate(finite.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        medians = [(across(x, number), down(statistics.median(v))) for x, v in curve.items()]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in medians)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        parts += [
            f'<circle cx="{across(x, number):.1f}" cy="{down(value):.1f}" r="3" fill="{colour}"/>'
            for x, values in curve.items()
            for value in values
        ]
        if medians:
            y = medians[-1][1] + 4
            parts.append(
                f'<text x="{_LEFT + _WIDTH + 8}" y="{y:.1f}" fill="{colour}">{name}</text>'
            )
    with open(path, "w", encoding="utf-8") as writer:
        writer.write("\n".join([*parts, "</svg>", ""]))


def _axis(values):
    """Returns (low, high, step) of a vertical axis that holds all values."""
    step = 10.0 ** math.floor(math.log10(max(values) - min(values) or 1)) / 2
    return step * math.floor(min(values) / step), step * (math.floor(max(values) / step) + 1), step


def _frame(title, x_label):
    """Returns the start of the picture: its background, its frame, its title and its label."""
    bottom = _TOP + _HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 80}" '
        f'height="{bottom + 50}" font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="{_TOP - 12}" font-weight="bold">{title}</text>'
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" '
        'stroke="#999"/>'
        f'<text x="{_LEFT + _WIDTH // 2}" y="{bottom + 38}" text-anchor="middle">{x_label}</text>'
    )
