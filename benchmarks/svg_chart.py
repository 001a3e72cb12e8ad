"""Draws a small chart as SVG: curves over a few values, with a dot for every repetition."""

import math
import statistics
from collections.abc import Mapping, Sequence

from bert_estimator.command_line import charts

_BESIDE = 0.07  # between the dots of two curves at the same x, as a share of the distance of two x


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
    places = sorted({x for curve in curves.values() for x in curve})
    across = charts.names_axis([str(x) for x in places])
    drawn = charts.levels(levels, across)
    for number, (name, curve) in enumerate(curves.items()):
        colour = charts.COLOURS[number % len(charts.COLOURS)]
        beside = _BESIDE * (number - (len(curves) - 1) / 2)
        dots, medians = [], []
        for x in sorted(curve):
            kept = [value for value in curve[x] if math.isfinite(value)]
            place = places.index(x) + beside
            dots += [(place, value) for value in kept]
            medians += [(place, statistics.median(kept))] if kept else []
        drawn.append(charts.Curve(name, medians, colour))
        drawn.append(charts.Curve("", dots, colour, has_line=False, has_dots=True))
    values = [value for curve in drawn for _, value in curve.points]
    panel = charts.Panel(title, charts.values_axis(values, most=8), drawn, height=320)
    with open(path, "w", encoding="utf-8") as writer:
        writer.write(charts.draw([panel], across, x_label))
