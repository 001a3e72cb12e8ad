"""Reads SVG files that `bert_estimator.command_line.charts` drew, and checks where things are."""

import itertools
import xml.etree.ElementTree
from typing import NamedTuple

from bert_estimator.command_line import charts

SVG = "{http://www.w3.org/2000/svg}"


class Box(NamedTuple):
    """Is a rectangle, in pixels, with what is in it."""

    left: float
    top: float
    right: float
    bottom: float
    what: str

    def overlaps(self, other: "Box") -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def holds(self, other: "Box") -> bool:
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )


class Picture:
    """Holds a picture.

    Args:
      text: the SVG file.

    Attributes:
      root: its root element.
      texts: the boxes of its texts.
      panels: the boxes of the areas between axes.
      curves: the boxes of its lines and dots outside of legends.
      samples: the boxes of the lines and dots of legends.
    """

    def __init__(self, text: str):
        self.root = xml.etree.ElementTree.fromstring(text)
        self.texts = [_text_box(element) for element in self.root.iter(f"{SVG}text")]
        lines = [_around(line_of(e), 1, "line") for e in self.root.iter(f"{SVG}polyline")]
        dots = [
            _around([(float(e.get("cx")), float(e.get("cy")))], float(e.get("r")), "dot")
            for e in self.root.iter(f"{SVG}circle")
        ]
        self.panels = [
            _frame(element)
            for element in self.root.iter(f"{SVG}path")
            if element.get("stroke") == "#888"
        ]
        drawn = lines + dots
        self.curves = [d for d in drawn if any(panel.overlaps(d) for panel in self.panels)]
        self.samples = [d for d in drawn if d not in self.curves]

    def words(self) -> list[str]:
        """Returns the texts, from the first to the last element."""
        return [box.what for box in self.texts]

    def check(self) -> None:
        """Checks that nothing is cut off, and that no text lies on another or on a curve."""
        width, height = (float(self.root.get(name)) for name in ("width", "height"))
        assert self.root.get("viewBox") == f"0 0 {width:.0f} {height:.0f}"
        page = Box(0, 0, width, height, "page")
        for box in [*self.texts, *self.samples, *self.curves, *self.panels]:
            assert page.holds(box), box
        for box in self.curves:  # a dot may lie on the edge of its panel, and a text beside it
            assert any(panel.holds(_smaller(box, 3)) for panel in self.panels), box
        texts_and_panels = [*self.texts, *self.panels]
        for one, other in itertools.combinations(texts_and_panels, 2):
            assert not one.overlaps(other), (one, other)
        for sample, box in itertools.product(self.samples, texts_and_panels):
            assert not sample.overlaps(box), (sample, box)


def line_of(element: xml.etree.ElementTree.Element) -> list[tuple[float, float]]:
    """Returns the places, in pixels, that a polyline joins."""
    return [tuple(map(float, place.split(","))) for place in element.get("points").split()]


def _text_box(element):
    size = float(element.get("font-size", 12))
    width = charts.text_width(element.text, size, element.get("font-weight") == "bold")
    x, y = float(element.get("x")), float(element.get("y"))
    left = x - width * {"start": 0, "middle": 0.5, "end": 1}[element.get("text-anchor", "start")]
    return Box(left, y - 0.8 * size, left + width, y + 0.25 * size, element.text)


def _frame(element):
    """Returns the area of a panel from its axes, a path `Mx,yVyHx`."""
    start, rest = element.get("d").removeprefix("M").split("V")
    (left, top), (bottom, right) = map(float, start.split(",")), map(float, rest.split("H"))
    return Box(left, top, right, bottom, "panel")


def _around(places, margin, what):
    xs, ys = zip(*places, strict=True)
    return Box(min(xs) - margin, min(ys) - margin, max(xs) + margin, max(ys) + margin, what)


def _smaller(box, margin):
    """Returns the box without its margin; a box that is all margin has no size."""
    x, y = (box.left + box.right) / 2, (box.top + box.bottom) / 2
    return Box(
        min(box.left + margin, x),
        min(box.top + margin, y),
        max(box.right - margin, x),
        max(box.bottom - margin, y),
        box.what,
    )
