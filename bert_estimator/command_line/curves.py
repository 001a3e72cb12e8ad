"""Draws the curves of a run, such as the loss by step, as SVG."""

from collections.abc import Mapping, Sequence

_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c")
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 640, 220, 70, 30, 60


def svg(panels: Sequence[tuple[str, Mapping[str, Sequence[tuple[float, float]]]]]) -> str:
    """Returns a picture of panels, each below the panel before it, as the text of an SVG file.

    Args:
      panels: list of (title, dict of curve name -> list of (step, value)); empty curves are left
        out.
    """
    total = len(panels) * (_HEIGHT + _GAP) + _TOP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 30}" height="{total}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, (title, curves) in enumerate(panels):
        curves = {name: points for name, points in curves.items() if points}
        top = _TOP + number * (_HEIGHT + _GAP)
        parts.append(f'<text x="{_LEFT}" y="{top - 8}" font-weight="bold">{title}</text>')
        if curves:
            parts += _panel(curves, top)
    return "\n".join([*parts, "</svg>", ""])


def _panel(curves, top):
    points = [point for curve in curves.values() for point in curve]
    steps, values = [p[0] for p in points], [p[1] for p in points]
    low_step, high_step = min(steps), max(max(steps), min(steps) + 1)
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5

    def place(step, value):
        x = _LEFT + _WIDTH * (step - low_step) / (high_step - low_step)
        return f"{x:.1f},{top + _HEIGHT * (high - value) / (high - low):.1f}"

    parts = [
        f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" '
        'stroke="#999"/>'
    ]
    for i in range(5):
        y, value = top + _HEIGHT * i / 4, high - (high - low) * i / 4
        x, step = _LEFT + _WIDTH * i / 4, low_step + (high_step - low_step) * i / 4
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{value:.4g}</text>')
        parts.append(
            f'<text x="{x:.0f}" y="{top + _HEIGHT + 16}" text-anchor="middle">{step:.0f}</text>'
        )
    for number, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(place(*point) for point in curve)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        if len(curve) < 10:
            for x, y in (place(*point).split(",") for point in curve):
                parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
        parts.append(
            f'<text x="{_LEFT + _WIDTH - 8}" y="{top + 18 + 16 * number}" text-anchor="end" '
            f'fill="{colour}">{name}</text>'
        )
    return parts
