"""Checks what `bert_estimator.command_line.charts` drew: its texts, and where they are."""

import itertools
import re
import xml.etree.ElementTree
from collections.abc import Callable
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from bert_estimator.command_line.charts import draw_run, svg

SVG = "{http://www.w3.org/2000/svg}"


class Box(NamedTuple):
    """Is a rectangle, in points, with what is in it."""

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


def words(text: str) -> list[str]:
    """Returns the texts in an SVG file, from the first to the last."""
    return [e.text for e in xml.etree.ElementTree.fromstring(text).iter(f"{SVG}text")]


class Picture:
    """Draws a picture with `svg`; keeps its `text` and its `panels`, matplotlib's axes."""

    def __init__(self, draw: Callable[[Figure], None]):
        figures = []
        self.text = svg(lambda figure: (figures.append(figure), draw(figure)))
        (self._figure,) = figures
        self.panels = self._figure.axes

    @classmethod
    def of_run(cls, *records) -> "Picture":
        return cls(lambda figure: draw_run(figure, *records))

    def words(self) -> list[str]:
        return words(self.text)

    def curve(self, panel: int, name: str) -> list[tuple[float, float]]:
        """Returns the points of the curve of this name, which may be drawn in parts."""
        lines = [line for line in self.panels[panel].lines if line.get_label() == name]
        return [tuple(point) for line in lines for point in line.get_xydata()]

    def check(self) -> None:
        """Checks that nothing is cut off, and that no text lies on another or on a panel."""
        root = xml.etree.ElementTree.fromstring(self.text)
        _, _, width, height = map(float, root.get("viewBox").split())
        page = Box(0, 0, width, height, "page")
        texts = [_text_box(element) for element in root.iter(f"{SVG}text")]
        panels = [_panel_box(axes, width, height) for axes in self.panels]
        for box in [*texts, *panels]:
            assert page.holds(box), box
        for one, other in itertools.combinations([*texts, *panels], 2):
            assert not one.overlaps(other), (one, other)
        for axes in self.panels:
            if axes.lines:
                for (low, high), values in (
                    (axes.get_xlim(), axes.dataLim.intervalx),
                    (axes.get_ylim(), axes.dataLim.intervaly),
                ):
                    rounding = 1e-9 * (high - low)  # a limit that is a tick is rounded
                    assert low - rounding <= min(values) and max(values) <= high + rounding


def _text_box(element):
    style = element.get("style")
    size = float(re.search(r"([\d.]+)px", style)[1])
    weight = "bold" if re.search(r"\b(bold|700)\b", style) else "normal"
    width, height, descent = text_to_path.get_text_width_height_descent(
        element.text, FontProperties(size=size, weight=weight), ismath=False
    )
    x, y = float(element.get("x")), float(element.get("y"))
    anchor = re.search(r"text-anchor: (\w+)", style)
    left = x - width * {"start": 0, "middle": 0.5, "end": 1}[anchor[1]]
    return Box(left, y - (height - descent), left + width, y + descent, element.text)


def _panel_box(axes, width, height):
    """Returns the area between the axes."""
    area = axes.get_position()
    bottom, top = height * (1 - area.y0), height * (1 - area.y1)
    return Box(width * area.x0, top, width * area.x1, bottom, "panel")
