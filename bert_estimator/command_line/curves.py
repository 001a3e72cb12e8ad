"""Draws the curves of a run, such as the loss by step, as SVG."""

import math
import statistics
from collections.abc import Mapping, Sequence

from bert_estimator.command_line import axes, chart

# A chart does not have place for larger numbers, which only a diverging run has.
_LARGEST = 1e300
_FEWEST_TO_SMOOTH = 10  # points
_MOST_DOTS = 50  # of evaluations; lines alone show more of them


def svg(
    training: Sequence[Mapping[str, float]],
    evaluations: Sequence[Mapping[str, float]],
    corners: Sequence[Mapping[str, float]] = (),
) -> str:
    """Returns a picture of a run: its loss, its scores on held-out data, its learning rate.

    A run without any record has an empty panel. Values that are not finite are left out.

    Args:
      training: the records of logged steps: dicts of name -> value with `step`. Of several records
        of a step, the last counts.
      evaluations: the records of evaluations, which have names that start with `eval_`.
      corners: the records with `learning_rate` of the steps where the schedule bends, such as the
        end of the warm-up, which may lie between logged steps.
    """
    steps = axes.of_steps(max((r["step"] for r in [*training, *evaluations]), default=0))
    panels = [
        _losses(training, evaluations, steps),
        _scores(training, evaluations, steps),
        _learning_rate(training, corners),
    ]
    return chart.svg([panel for panel in panels if panel is not None], steps, "step")


def running_median(points: Sequence[tuple[float, float]], window: int) -> list[tuple[float, float]]:
    """Returns the median of the values around each point; of more than 1000 points, some are kept.

    Near its start the curve of a loss is steep, so there the window is smaller, as far as the point
    is from the start. Near the end the window is cut off, because the last value, which varies much
    by itself, would otherwise look like a trend.

    Args:
      points: (step, value), sorted by step.
      window: the number of points that a median is of, odd.
    """
    values = [value for _, value in points]
    every = math.ceil(len(points) / 1000)
    places = sorted({*range(0, len(points), every), len(points) - 1}) if points else []
    smooth = []
    for i in places:
        half = min(window // 2, i)
        smooth.append((points[i][0], statistics.median(values[i - half : i + half + 1])))
    return smooth


def _losses(training, evaluations, steps):
    """Returns the panel of the loss: masked-LM's in pretraining, else the loss of the task."""
    title, name, held_out = "loss", "loss", "mean_loss"
    if any({"masked_lm_loss", "eval_masked_lm_loss"} & r.keys() for r in [*training, *evaluations]):
        title, name, held_out = "masked-LM loss (nats)", "masked_lm_loss", "masked_lm_loss"
    curves = _of_training(training, name)
    curves += _of_evaluations("held-out", _points(evaluations, f"eval_{held_out}"), chart.ORANGE)
    curves += _baselines(evaluations, steps, of_loss=True)
    if not curves:
        return chart.Panel(title, axes.of_values([0.0, 1.0]), [])
    axis = axes.of_values(_values(curves), may_be_log=True)
    return chart.Panel(title + (", log scale" if axis.is_log else ""), axis, curves)


def _scores(training, evaluations, steps):
    """Returns the panel of all held-out metrics that are not losses; None without such metrics."""
    found = dict.fromkeys(name for record in evaluations for name in record)
    names = [
        name.removeprefix("eval_")
        for name in found
        if name.startswith("eval_") and not name.endswith(("loss", "_baseline"))
    ]
    by_name = {name: _points(evaluations, f"eval_{name}") for name in names}
    by_name = {name: points for name, points in by_name.items() if points}
    if not by_name:
        return None
    if len(by_name) == 1:
        ((name, points),) = by_name.items()
        title = _words(name)
        curves = _of_training(training, name)
        curves += _of_evaluations("held-out", points, chart.ORANGE)
    else:
        title, curves = "held-out scores", []
        for number, (name, points) in enumerate(by_name.items()):
            colour = chart.COLOURS[number % len(chart.COLOURS)]
            curves += _of_evaluations(_words(name), points, colour)
    curves += _baselines(evaluations, steps, of_loss=False)
    return chart.Panel(title, axes.of_values(_values(curves), most=5), curves, height=150)


def _learning_rate(training, corners):
    """Returns the panel of the learning rate, or None if no step has logged it."""
    logged = _points(training, "learning_rate")
    if not logged:
        return None
    corners = [corner for corner in corners if corner["step"] <= logged[-1][0]]
    rates = _points([*corners, *training], "learning_rate")
    curve = chart.Curve("", rates, chart.BLUE, has_dots=len(rates) == 1)
    axis = axes.of_values([rate for _, rate in rates], most=4, from_zero=True)
    return chart.Panel("learning rate", axis, [curve], height=110)


def _of_training(training, name):
    """Returns the curves of a value of training: what was logged, and if there is much, smooth."""
    points = _points(training, name)
    if not points:
        return []
    if len(points) < _FEWEST_TO_SMOOTH:
        return [chart.Curve("training", points, chart.BLUE, has_dots=True)]
    window = round(math.sqrt(len(points))) | 1
    name = f"median of {window} points"
    return [
        chart.Curve("training, as logged", points, chart.BLUE, False, has_dots=True, is_faint=True),
        chart.Curve(name, running_median(points, window), chart.BLUE),
    ]


def _of_evaluations(label, points, colour):
    has_dots = len(points) <= _MOST_DOTS
    return [chart.Curve(label, points, colour, has_dots=has_dots)] if points else []


def _baselines(evaluations, steps, of_loss):
    """Returns lines at the baselines of the loss, or else of scores, of the last evaluation."""
    latest = {}
    for record in evaluations:
        for name, value in record.items():
            is_of_loss = name == "eval_unigram_baseline"
            if name.endswith("_baseline") and is_of_loss == of_loss and abs(value) < _LARGEST:
                latest[_words(name.removeprefix("eval_"))] = value
    return chart.levels(latest.items(), steps)


def _points(records, name):
    """Returns the (step, value) of the records that have a finite value of that name, by step."""
    found = {r["step"]: r[name] for r in records if name in r and abs(r[name]) < _LARGEST}
    return sorted(found.items())


def _values(curves):
    return [value for curve in curves for _, value in curve.points]


def _words(name):
    """Returns the name of a metric in words."""
    return (
        name.replace("masked_lm", "masked-LM")
        .replace("next_sentence", "next-sentence")
        .replace("_", " ")
    )
