"""Charts: what is drawn where."""

import pytest

from bert_estimator.command_line import axes, chart
from bert_estimator.command_line.chart import Curve, Panel
from tests.support.pictures import SVG, Picture, line_of

UNIT = axes.of_values([0.0, 1.0])


def picture(*panels, axis=None):
    drawn = Picture(chart.svg(panels, axis or axes.of_steps(10), "step"))
    drawn.check()
    return drawn


def test_a_curve_is_drawn_to_scale():
    drawn = picture(Panel("share", UNIT, [Curve("a", [(0, 0.0), (5, 0.5), (10, 1.0)], "red")]))
    ((left, top, right, bottom, _),) = drawn.panels
    assert bottom - top == 220
    (line,) = [line_of(e) for e in drawn.root.iter(f"{SVG}polyline")][1:]  # after the legend's
    middle = ((left + right) / 2, (top + bottom) / 2)
    for place, expected in zip(line, [(left, bottom), middle, (right, top)], strict=True):
        assert place == pytest.approx(expected, abs=0.1)
    assert drawn.words() == [
        *["share", "a", "0", "0.2", "0.4", "0.6", "0.8", "1.0"],
        *["0", "2", "4", "6", "8", "10", "step"],
    ]


def test_panels_share_their_horizontal_axis():
    wide = axes.of_values([0.0, 4e6])  # its labels are long
    drawn = picture(Panel("a", UNIT, []), Panel("b", wide, [], height=100))
    first, second = drawn.panels
    assert (first.left, first.right) == (second.left, second.right)
    assert second.top > first.bottom and second.bottom - second.top == 100


@pytest.mark.parametrize("number", [1, 4, 5, 12])
@pytest.mark.parametrize("name", ["f1", "accuracy of WWWWWWWWWW", "W" * 400, "<&>\"'"])
def test_long_and_many_names_fit(name, number):
    curves = [Curve(name, [(0, 0.0), (10, 1.0)], "red", has_dots=True)] * number
    drawn = picture(Panel(name, UNIT, curves))
    assert len(drawn.samples) == 2 * number
    shown = drawn.words()[:2]
    if len(name) < 100:
        assert shown == [name, name]
    else:
        assert all(text.startswith("WWW") and text.endswith("…") for text in shown)


def test_a_curve_without_a_name_is_not_in_the_legend():
    drawn = picture(Panel("rate", UNIT, [Curve("", [(0, 0.0), (10, 1.0)], "red")]))
    assert not drawn.samples and len(drawn.curves) == 1


@pytest.mark.parametrize("last", [0, 1, 8, 999, 8599, 100_000, 1_000_000, 9_999_999, 10**12])
def test_labels_of_steps_fit(last):
    curve = Curve("a", [(0, 0.0), (last, 1.0)], "red", has_dots=True)
    picture(Panel("share", UNIT, [curve]), axis=axes.of_steps(last))


def test_levels_run_across_and_differ():
    axis = axes.of_steps(10)
    drawn = picture(Panel("share", UNIT, chart.levels([("a", 0.2), ("b", 0.4)], axis)), axis=axis)
    (panel,) = drawn.panels
    for box in drawn.curves:
        assert (box.left + 1, box.right - 1) == pytest.approx((panel.left, panel.right), abs=0.1)
    dashes = [e.get("stroke-dasharray") for e in drawn.root.iter(f"{SVG}polyline")]
    assert None not in dashes and len(set(dashes)) == 2


def test_a_point_alone_has_no_line():
    drawn = picture(Panel("share", UNIT, [Curve("a", [(5, 0.5)], "red", has_dots=True)]))
    assert [box.what for box in drawn.curves] == ["dot"]


def test_of_many_points_the_extremes_stay():
    points = [(step, 0.5 + 0.1 * (step % 2)) for step in range(100_001)]
    points[70_001] = (70_001, 1.0)
    points[70_003] = (70_003, 0.0)
    curve = Curve("a", points, "red", has_dots=True)
    text = chart.svg([Panel("share", UNIT, [curve])], axes.of_steps(100_000), "step")
    assert len(text) < 300_000
    drawn = Picture(text)
    drawn.check()
    (panel,) = drawn.panels
    for what in ("line", "dot"):
        boxes = [box for box in drawn.curves if box.what == what]
        margin = 1 if what == "line" else 3
        assert min(box.top for box in boxes) + margin == pytest.approx(panel.top, abs=0.1)
        assert max(box.bottom for box in boxes) - margin == pytest.approx(panel.bottom, abs=0.1)


@pytest.mark.parametrize(
    ("letter", "width"), [("i", 0.278), ("e", 0.615), ("N", 0.748), ("W", 0.989), ("9", 0.636)]
)
def test_widths_of_letters_are_not_less_than_in_a_wide_font(letter, width):
    """These are the widths of DejaVu Sans, which is wide."""
    assert chart.text_width(letter, size=100) >= 100 * width
    assert chart.text_width(letter, size=100, is_bold=True) > chart.text_width(letter, size=100)
