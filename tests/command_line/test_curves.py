"""The picture of a run."""

import math

import pytest

from bert_estimator.command_line import curves
from tests.support.pictures import SVG, Picture, line_of


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
    Picture(curves.svg(*records)).check()


def test_panels_of_pretraining():
    words = Picture(curves.svg(*run(1000, 50, [0, 1000]))).words()
    for text in (
        *("masked-LM loss (nats)", "training, as logged", "median of 5 points"),
        *("held-out", "unigram baseline", "held-out scores", "masked-LM accuracy"),
        *("next-sentence accuracy", "learning rate", "step"),
    ):
        assert words.count(text) == 1, text


def test_panels_of_fine_tuning():
    words = Picture(curves.svg(*run(200, 50, [100, 200], is_pretraining=False))).words()
    for text in (
        *("loss", "training", "held-out", "held-out scores", "accuracy", "f1"),
        *("majority class baseline", "learning rate"),
    ):
        assert words.count(text) == 1, text


def test_one_score_is_drawn_beside_the_score_of_training():
    training = [{"step": step, "loss": 1.0, "accuracy": 0.5} for step in (50, 100)]
    evaluations = [{"step": 100, "eval_loss": 1.0, "eval_mean_loss": 1.0, "eval_accuracy": 0.75}]
    drawn = Picture(curves.svg(training, evaluations))
    drawn.check()
    assert drawn.words().count("accuracy") == 1
    assert drawn.words().count("training") == drawn.words().count("held-out") == 2
    assert "learning rate" not in drawn.words()


def test_values_that_are_not_finite_are_left_out():
    training = [{"step": n, "loss": v} for n, v in enumerate([3.0, math.nan, math.inf, 1.0], 1)]
    evaluations = [{"step": 4, "eval_mean_loss": -math.inf, "eval_pearson": math.nan}]
    drawn = Picture(curves.svg(training, evaluations))
    drawn.check()
    assert len([box for box in drawn.curves if box.what == "dot"]) == 2
    assert "pearson" not in drawn.words() and "held-out" not in drawn.words()


def test_large_ratios_have_a_logarithmic_axis():
    training = [{"step": n, "loss": 10.0**n} for n in range(1, 5)]
    drawn = Picture(curves.svg(training, []))
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
    drawn = Picture(curves.svg(training, [], corners))
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
    drawn = Picture(curves.svg(training, []))
    assert len([box for box in drawn.curves if box.what == "dot"]) == 2
    (line,) = [line_of(e) for e in drawn.root.iter(f"{SVG}polyline")][1:]
    assert line[0][1] < line[1][1] and line[1][0] == drawn.panels[0].right


def test_a_running_median_by_hand():
    points = list(enumerate([9.0, 1.0, 5.0, 3.0, 4.0, 8.0]))
    # Of 1, 3, 5, 5, 4 and 3 points: the window is smaller at the start, and cut off at the end.
    assert curves.running_median(points, 5) == list(enumerate([9.0, 5.0, 4.0, 4.0, 4.5, 4.0]))
    assert curves.running_median([], 5) == []


def test_a_running_median_of_many_points_keeps_the_first_and_the_last():
    smooth = curves.running_median([(n, 1.0) for n in range(100_000)], 317)
    assert len(smooth) <= 1001
    assert smooth[0] == (0, 1.0) and smooth[-1] == (99_999, 1.0)
