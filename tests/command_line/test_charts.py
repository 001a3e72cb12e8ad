"""Tests pictures: the curves of runs, where their texts are, and what drawing leaves alone."""

import logging
import math
import os
import subprocess
import sys

import matplotlib
import pytest

from bert_estimator.command_line import charts
from tests.support.pictures import Picture, words


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
    Picture.of_run(*records).check()


def test_equal_pictures_have_equal_bytes(monkeypatch):
    picture = charts.of_run(*run(200, 50, [0, 200]))
    assert {charts.of_run(*run(200, 50, [0, 200])) for _ in range(9)} == {picture}
    # Neither the time nor a user's settings for matplotlib count.
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    with matplotlib.rc_context({"svg.fonttype": "path", "axes.facecolor": "black"}):
        assert charts.of_run(*run(200, 50, [0, 200])) == picture
        assert matplotlib.rcParams["svg.fonttype"] == "path"


def test_a_picture_has_a_background_of_its_own():
    """So it can be read on a dark page."""
    assert "fill: #ffffff" in charts.of_run(*run(8, 8, [8]))


@pytest.mark.parametrize(
    ("records", "texts"),
    [
        (
            run(1000, 50, [0, 1000]),
            "masked-LM loss (nats);training, as logged;median of 5 points;held-out;"
            "unigram baseline;held-out scores;masked-LM accuracy;next-sentence accuracy;"
            "learning rate;step",
        ),
        (
            run(200, 50, [100, 200], is_pretraining=False),
            "loss;training;held-out;held-out scores;accuracy;f1;majority class baseline;"
            "learning rate",
        ),
    ],
)
def test_texts_of_panels(records, texts):
    drawn = Picture.of_run(*records).words()
    for text in texts.split(";"):
        assert drawn.count(text) == 1, text


def test_curves_have_the_records_points():
    training, evaluations, _ = run(1000, 50, [0, 500, 1000])
    drawn = Picture.of_run(training, evaluations)
    logged = [(r["step"], r["masked_lm_loss"]) for r in training]
    assert drawn.curve(0, "training, as logged") == logged
    assert drawn.curve(0, "median of 5 points") == charts.running_median(logged, 5)
    held_out = [(r["step"], r["eval_masked_lm_loss"]) for r in evaluations]
    assert drawn.curve(0, "held-out") == held_out
    assert [y for _, y in drawn.curve(0, "unigram baseline")] == [6.2, 6.2]
    assert drawn.curve(1, "next-sentence accuracy") == [(s, 0.6) for s in (0, 500, 1000)]


@pytest.mark.parametrize("last", [1, 3, 9, 200, 8599, 1_000_000, 30_000_000])
def test_ticks_of_steps_are_whole_numbers(last):
    drawn = Picture.of_run([{"step": last, "loss": 1.0}], [])
    drawn.check()
    (panel,) = drawn.panels
    assert panel.get_xlim() == (0, last)
    ticks = [tick for tick in panel.get_xticks() if tick <= last]
    assert 2 <= len(ticks) <= 9 and all(tick.is_integer() for tick in ticks)
    texts = [f"{int(tick):,}" if tick < 1e7 else f"{tick:g}" for tick in ticks]
    assert {*texts} <= {*drawn.words()}


def test_the_axis_of_the_rate_begins_at_0_and_ends_at_a_tick():
    drawn = Picture.of_run(*run(8599, 100, [0, 8599]))
    low, high = drawn.panels[-1].get_ylim()
    assert low == 0 and 9e-5 < high < 1.5e-4 and f"{high:.10g}" in drawn.words()


def test_one_score_is_drawn_beside_the_score_of_training():
    training = [{"step": step, "loss": 1.0, "accuracy": 0.5} for step in (50, 100)]
    evaluations = [{"step": 100, "eval_loss": 1.0, "eval_mean_loss": 1.0, "eval_accuracy": 0.75}]
    drawn = Picture.of_run(training, evaluations)
    drawn.check()
    assert drawn.words().count("accuracy") == 1
    assert drawn.words().count("training") == drawn.words().count("held-out") == 2
    assert "learning rate" not in drawn.words()


def test_values_that_are_not_finite_are_left_out():
    training = [{"step": n, "loss": v} for n, v in enumerate([3.0, math.nan, math.inf, 1.0], 1)]
    evaluations = [{"step": 4, "eval_mean_loss": -math.inf, "eval_pearson": math.nan}]
    drawn = Picture.of_run(training, evaluations)
    drawn.check()
    assert drawn.curve(0, "training") == [(1, 3.0), (4, 1.0)]
    assert "pearson" not in drawn.words() and "held-out" not in drawn.words()


@pytest.mark.parametrize(
    ("last", "is_log", "texts"),
    [(50.0, False, ["0", "10", "50"]), (51.0, True, ["1", "2", "50"]), (1e6, True, ["1", "1,000"])],
)
def test_large_ratios_have_a_logarithmic_axis(last, is_log, texts):
    training = [{"step": n, "loss": loss} for n, loss in enumerate([1.0, last], 1)]
    drawn = Picture.of_run(training, [])
    drawn.check()
    assert drawn.panels[0].get_yscale() == ("log" if is_log else "linear")
    assert ("loss, log scale" in drawn.words()) == is_log
    assert {*texts} <= {*drawn.words()}


def test_the_warm_up_is_drawn_between_logged_steps():
    """Steps 50 and 100 are logged; the rate has its peak at step 61."""
    training = [{"step": n, "loss": 1.0, "learning_rate": r} for n, r in ((50, 0.8), (100, 0.5))]
    corners = [{"step": n, "learning_rate": r} for n, r in ((1, 0.0), (61, 1.0), (161, 0.0))]
    drawn = Picture.of_run(training, [], corners)
    drawn.check()
    (rates,) = drawn.panels[-1].lines
    assert rates.get_xydata().tolist() == [[1, 0.0], [50, 0.8], [61, 1.0], [100, 0.5]]


def test_the_last_record_of_a_step_counts():
    training = [{"step": n, "loss": v} for n, v in ((2, 4.0), (1, 3.0), (2, 2.0))]
    assert Picture.of_run(training, []).curve(0, "training") == [(1, 3.0), (2, 2.0)]


def test_many_points_make_a_small_file():
    training = [{"step": step, "loss": 0.5 + 0.1 * (step % 7)} for step in range(1, 100_001)]
    assert len(charts.of_run(training, [])) < 300_000


def test_a_running_median_by_hand():
    points = list(enumerate([9.0, 1.0, 5.0, 3.0, 4.0, 8.0]))
    # Of 1, 3, 5, 5, 4 and 3 points: the window is smaller at the start, and cut off at the end.
    assert charts.running_median(points, 5) == list(enumerate([9.0, 5.0, 4.0, 4.0, 4.5, 4.0]))
    assert charts.running_median([], 5) == []


def test_a_running_median_of_many_points_keeps_the_first_and_the_last():
    smooth = charts.running_median([(n, 1.0) for n in range(100_000)], 317)
    assert len(smooth) <= 1001
    assert smooth[0] == (0, 1.0) and smooth[-1] == (99_999, 1.0)


def test_texts_are_not_formulas():
    drawn = charts.svg(lambda figure: charts.finish_panel(figure.subplots(), "$x_1$ & <y>"))
    assert "$x_1$ & <y>" in words(drawn)


DRAWS = """
import logging, signal, threading
logging.basicConfig(level=logging.DEBUG)
handlers = [signal.getsignal(number) for number in signal.valid_signals()]
from bert_estimator.command_line import charts
assert charts.of_run([{"step": 1, "loss": 2.0}], []).startswith("<?xml")
assert handlers == [signal.getsignal(number) for number in signal.valid_signals()]
assert threading.active_count() == 1
"""


def test_drawing_says_nothing_and_leaves_signals_and_threads_alone(tmp_path):
    """Also the first time, and where matplotlib cannot keep its list of fonts."""
    env = {**os.environ, "MPLCONFIGDIR": "/proc/nowhere", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-c", DRAWS]
    ended = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert ended.stdout == ended.stderr == ""
    assert os.listdir(tmp_path) == []


def test_the_level_of_the_log_is_as_before():
    logger = logging.getLogger("matplotlib")
    before = logger.level
    charts.of_run([], [])
    assert logger.level == before
