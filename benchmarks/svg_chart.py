"""A small chart as SVG: curves over a few values, each with the spread of its repetitions."""

import math
import statistics

_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728")
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 320, 70, 40


def write(path, title, curves):
    """Draws the medians as lines and the extremes as bars.

    Args:
      path: the SVG file.
      title: printed above.
      curves: dict of name -> dict of x -> values; all x side by side at equal distances, values
        that are not finite left out.
    """
    finite = {
        name: {
            x: kept for x, values in curve.items() if (kept := list(filter(math.isfinite, values)))
        }
        for name, curve in curves.items()
    }
    places = sorted({x for curve in curves.values() for x in curve})
    shown = [value for curve in finite.values() for values in curve.values() for value in values]
    low, high = min(shown), max(shown)
    low, high = low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1)

    def across(x):
        return _LEFT + _WIDTH * (places.index(x) + 0.5) / len(places)

    def down(value):
        return _TOP + _HEIGHT * (high - value) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 30}" '
        f'height="{_TOP + _HEIGHT + 40}" font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="{_TOP - 12}" font-weight="bold">{title}</text>'
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" '
        'stroke="#999"/>'
    ]
    for value in (low + (high - low) * i / 5 for i in range(6)):
        y = down(value) + 4
        parts.append(f'<text x="{_LEFT - 6}" y="{y:.0f}" text-anchor="end">{value:.2f}</text>')
    for x in places:
        y = _TOP + _HEIGHT + 18
        parts.append(f'<text x="{across(x):.0f}" y="{y}" text-anchor="middle">{x}</text>')
    for number, (name, curve) in enumerate(finite.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            f"{across(x):.1f},{down(statistics.median(values)):.1f}" for x, values in curve.items()
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        for x, values in curve.items():
            parts.append(
                f'<line x1="{across(x):.1f}" x2="{across(x):.1f}" y1="{down(min(values)):.1f}" '
                f'y2="{down(max(values)):.1f}" stroke="{colour}" stroke-width="3"/>'
            )
        parts.append(
            f'<text x="{_LEFT + _WIDTH - 8}" y="{_TOP + 18 + 16 * number}" text-anchor="end" '
            f'fill="{colour}">{name}</text>'
        )
    with open(path, "w", encoding="utf-8") as writer:
        writer.write("\n".join([*parts, "</svg>", ""]))
