"""Tests what charts have: ticks, places of texts and curves, and the curves of runs."""

import math
import random

import pytest

from bert_estimator.command_line import charts
from bert_estimator.command_line.charts import Curve, Panel
from tests.support.pictures import SVG, Picture, line_of


def texts(axis):
    return " ".join(text for _, text in axis.ticks)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (0, "0 1"),
        (1, "0 1"),
        (3, "0 1 2 3"),
        (8, "0 1 2 3 4 5 6 7 8"),
        (9, "0 2 4 6 8"),
        (200, "0 50 100 150 200"),
        (1000, "0 200 400 600 800 1,000"),
        (8599, "0 2,000 4,000 6,000 8,000"),
        (100_000, "0 20,000 40,000 60,000 80,000 100,000"),
        (1_000_000, "0 200,000 400,000 600,000 800,000 1,000,000"),
        (30_000_000, "0 5e6 1e7 1.5e7 2e7 2.5e7 3e7"),
    ],
)
def test_ticks_of_steps_are_round_whole_numbers(last, expected):
    axis = charts.steps_axis(last)
    assert texts(axis) == expected
    assert (axis.low, axis.high) == (0, max(last, 1))


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([5.322, 7.672], {}, "5.0 5.5 6.0 6.5 7.0 7.5 8.0"),
        ([0.0, 1.0], {}, "0 0.2 0.4 0.6 0.8 1.0"),
        ([0.3, 0.7], {}, "0.3 0.4 0.5 0.6 0.7"),
        ([-1.0, 1.0], {}, "-1.0 -0.5 0 0.5 1.0"),
        ([0.002, 0.01], dict(from_zero=True, most=4), "0 0.005 0.010"),
        ([1e-5, 2e-5], dict(from_zero=True, most=4), "0 5e-6 1e-5 1.5e-5 2e-5"),
        ([0.0], {}, "-0.6 -0.4 -0.2 0 0.2 0.4 0.6"),
        ([2.0], {}, "1.90 1.95 2.00 2.05 2.10"),
        ([-3.0, -3.0], {}, "-3.15 -3.10 -3.05 -3.00 -2.95 -2.90 -2.85"),
        ([1200.0, 5600.0], {}, "1,000 2,000 3,000 4,000 5,000 6,000"),
        ([0.0, 3e38], {}, "0 5e37 1e38 1.5e38 2e38 2.5e38 3e38"),
        # Logarithmic, since 200 / 2 is more than 50.
        ([2.0, 200.0], dict(may_be_log=True), "2 5 10 20 50 100 200"),
        ([3.0, 4e5], dict(may_be_log=True), "1 10 100 1,000 10,000 100,000 1e6"),
        ([0.03, 70.0], dict(may_be_log=True), "0.01 0.1 1 10 100"),
        ([1e-20, 1e20], dict(may_be_log=True), "1e-21 1e-14 1e-7 1 1e7 1e14 1e21"),
        # Zero is not on a logarithmic axis.
        ([0.0, 200.0], dict(may_be_log=True), "0 50 100 150 200"),
        ([2.0, 100.0], dict(may_be_log=True), "0 20 40 60 80 100"),
    ],
)
def test_ticks_of_values(values, options, expected):
    assert texts(charts.values_axis(values, **options)) == expected


def test_axes_hold_their_values_and_the_texts_of_ticks_are_their_values():
    generator = random.Random(1)
    for _ in range(500):
        scale = 10 ** generator.uniform(-30, 30)
        size = 10 ** generator.uniform(-8, 0)  # of the differences, in comparison with the values
        values = [scale * (1 + size * generator.gauss(0, 1)) for _ in range(3)]
        for may_be_log in (False, True):
            most = generator.randint(3, 8)
            axis = charts.values_axis(values, most, may_be_log=may_be_log)
            assert all(0 <= axis.share(value) <= 1 for value in values), values
            shares = [axis.share(value) for value, _ in axis.ticks]
            assert shares == sorted(set(shares)) and shares[0] >= 0 and shares[-1] <= 1
            assert 2 <= len(shares) <= most + 1
            for value, text in axis.ticks:
                assert math.isclose(float(text.replace(",", "")), value, rel_tol=1e-12), values


def test_a_logarithmic_axis_has_equal_distances_for_equal_ratios():
    axis = charts.values_axis([1.0, 100.0], may_be_log=True)
    assert axis.is_log
    assert [axis.share(value) for value in (1.0, 10.0, 100.0)] == pytest.approx([0, 0.5, 1])


def test_names_stand_at_equal_distances():
    axis = charts.names_axis(["a", "b"])
    assert axis.ticks == ((0, "a"), (1, "b"))
    assert [axis.share(value) for value in (0, 1)] == [0.25, 0.75]


UNIT = charts.values_axis([0.0, 1.0])


def picture(*panels, axis=None):
    drawn = Picture(charts.draw(panels, axis or charts.steps_axis(10), "step"))
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
    wide = charts.values_axis([0.0, 4e6])  # its labels are long
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
    picture(Panel("share", UNIT, [curve]), axis=charts.steps_axis(last))


def test_levels_run_across_and_differ():
    axis = charts.steps_axis(10)
    drawn = picture(Panel("share", UNIT, charts.levels([("a", 0.2), ("b", 0.4)], axis)), axis=axis)
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
    text = charts.draw([Panel("share", UNIT, [curve])], charts.steps_axis(100_000), "step")
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
    assert charts.text_width(letter, size=100) >= 100 * width
    assert charts.text_width(letter, size=100, is_bold=True) > charts.text_width(letter, size=100)


def run(last, every, evaluated, is_pretraining=True, factor=1.0):
    """Returns the training records, the evaluations and the corners of a made-up run."""
    warmup = max(last // 10, 1)

    def rate(update):
        share = update / warmup if update < warmup else (last - update) / max(last - warmup, 1)
        return 1e-4 * share

    training, evaluations = [], []
    for step in range(every, last + 1, every):
        value = (2 + 6 * math.exp(-5 * step / last)) * factor ** (step // every % 7)
        record = {"step": step, "loss": value + 0.7, "learning_rate": rate(step - 1)}
        training.append({**record, "masked_lm_loss": value} if is_pretraining else record)
    for step in evaluated:
        value = 2.5 + 6 * math.exp(-5 * step / max(last, 1))
        names = {"mean_loss": value, "accuracy": 0.5, "f1": 0.4, "majority_class_baseline": 0.45}
        if is_pretraining:
            names = {"masked_lm_loss": value, "unigram_baseline": 6.2}
            names.update({"masked_lm_accuracy": 0.3, "next_sentence_accuracy": 0.6})
        values = {f"eval_{name}": value for name, value in names.items()}
        evaluations.append({"step": step, "eval_loss": value, **values})
    corners = [{"step": u + 1, "learning_rate": rate(u)} for u in (0, warmup)]
    return training, evaluations, corners


@pytest.mark.parametrize(
    "records",
    [
        ([], [], []),
        run(0, 1, []),
        run(0, 1, [0]),
        run(1, 1, []),
        run(8, 8, [0, 8]),
        run(8, 1, [8]),
        run(200, 50, [0, 200]),
        run(902, 50, range(0, 903, 250), is_pretraining=False),
        run(100_000, 100, range(0, 100_001, 1000)),
        run(5000, 1, [0, 5000], factor=30.0),
        run(300, 10, [300], factor=1e6),
        run(1_000_000, 5000, [0, 1_000_000], is_pretraining=False, factor=1e-3),
    ],
)
def test_nothing_is_cut_off_or_covered(records):
    Picture(charts.of_run(*records)).check()


def test_panels_of_pretraining():
    words = Picture(charts.of_run(*run(1000, 50, [0, 1000]))).words()
    for text in (
        *("masked-LM loss (nats)", "training, as logged", "median of 5 points"),
        *("held-out", "unigram baseline", "held-out scores", "masked-LM accuracy"),
        *("next-sentence accuracy", "learning rate", "step"),
    ):
        assert words.count(text) == 1, text


def test_panels_of_fine_tuning():
    words = Picture(charts.of_run(*run(200, 50, [100, 200], is_pretraining=False))).words()
    for text in (
        *("loss", "training", "held-out", "held-out scores", "accuracy", "f1"),
        *("majority class baseline", "learning rate"),
    ):
        assert words.count(text) == 1, text


def test_one_score_is_drawn_beside_the_score_of_training():
    training = [{"step": step, "loss": 1.0, "accuracy": 0.5} for step in (50, 100)]
    evaluations = [{"step": 100, "eval_loss": 1.0, "eval_mean_loss": 1.0, "eval_accuracy": 0.75}]
    drawn = Picture(charts.of_run(training, evaluations))
    drawn.check()
    assert drawn.words().count("accuracy") == 1
    assert drawn.words().count("training") == drawn.words().count("held-out") == 2
    assert "learning rate" not in drawn.words()


def test_values_that_are_not_finite_are_left_out():
    training = [{"step": n, "loss": v} for n, v in enumerate([3.0, math.nan, math.inf, 1.0], 1)]
    evaluations = [{"step": 4, "eval_mean_loss": -math.inf, "eval_pearson": math.nan}]
    drawn = Picture(charts.of_run(training, evaluations))
    drawn.check()
    assert len([box for box in drawn.curves if box.what == "dot"]) == 2
    assert "pearson" not in drawn.words() and "held-out" not in drawn.words()


def test_large_ratios_have_a_logarithmic_axis():
    training = [{"step": n, "loss": 10.0**n} for n in range(1, 5)]
    drawn = Picture(charts.of_run(training, []))
    drawn.check()
    (line,) = [line_of(e) for e in drawn.root.iter(f"{SVG}polyline")][1:]
    (panel,) = drawn.panels
    heights = [y for _, y in line]
    assert heights[0] == pytest.approx(panel.bottom) and heights[-1] == pytest.approx(panel.top)
    assert heights[0] - heights[1] == pytest.approx(heights[2] - heights[3], abs=0.1)
    assert "loss, log scale" in drawn.words()


def test_the_warm_up_is_drawn_between_logged_steps():
    """Steps 50 and 100 are logged; the rate has its peak at step 61."""
    training = [{"step": n, "loss": 1.0, "learning_rate": r} for n, r in ((50, 0.8), (100, 0.5))]
    corners = [{"step": n, "learning_rate": r} for n, r in ((1, 0.0), (61, 1.0), (161, 0.0))]
    drawn = Picture(charts.of_run(training, [], corners))
    drawn.check()
    line = line_of(list(drawn.root.iter(f"{SVG}polyline"))[-1])
    panel = drawn.panels[-1]
    shares = [
        ((x - panel.left) / (panel.right - panel.left), (panel.bottom - y) / 110) for x, y in line
    ]
    expected = [(0.01, 0.0), (0.5, 0.8), (0.61, 1.0), (1.0, 0.5)]
    assert [x for pair in shares for x in pair] == pytest.approx(
        [x for pair in expected for x in pair], abs=1e-3
    )


def test_the_last_record_of_a_step_counts():
    training = [{"step": n, "loss": v} for n, v in ((2, 4.0), (1, 3.0), (2, 2.0))]
    drawn = Picture(charts.of_run(training, []))
    assert len([box for box in drawn.curves if box.what == "dot"]) == 2
    (line,) = [line_of(e) for e in drawn.root.iter(f"{SVG}polyline")][1:]
    assert line[0][1] < line[1][1] and line[1][0] == drawn.panels[0].right


def test_a_running_median_by_hand():
    points = list(enumerate([9.0, 1.0, 5.0, 3.0, 4.0, 8.0]))
    # Of 1, 3, 5, 5, 4 and 3 points: the window is smaller at the start, and cut off at the end.
    assert charts.running_median(points, 5) == list(enumerate([9.0, 5.0, 4.0, 4.0, 4.5, 4.0]))
    assert charts.running_median([], 5) == []


def test_a_running_median_of_many_points_keeps_the_first_and_the_last():
    smooth = charts.running_median([(n, 1.0) for n in range(100_000)], 317)
    assert len(smooth) <= 1001
    assert smooth[0] == (0, 1.0) and smooth[-1] == (99_999, 1.0)
