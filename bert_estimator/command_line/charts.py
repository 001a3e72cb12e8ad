"""Draws pictures as SVG with matplotlib, such as the curves of a run.

matplotlib takes most of a second and 40 MB, so it is imported when a picture is drawn. Its settings
are this module's meanwhile, and afterwards what they were before.
"""

import contextlib
import io
import itertools
import logging
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 8.5  # of a picture; matplotlib counts inches, which have 96 pixels in a browser
BLUE, ORANGE = "#0072b2", "#d55e00"
# These differ for eyes that confuse red and green, too (Okabe and Ito, 2008).
COLOURS = (BLUE, ORANGE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
GREY = "#6b6b6b"

_INK = "#333333"
_STYLE = {
    # Texts stay texts, which a reader can search, and equal pictures have equal bytes.
    "svg.fonttype": "none",
    "svg.hashsalt": "bert-estimator",
    # DejaVu Sans comes with matplotlib, and is wide: another font does not need more room.
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial", "sans-serif"],
    "font.size": 9,
    "text.parse_math": False,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "axes.edgecolor": "#888888",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    # An axis of values begins and ends at ticks.
    "axes.autolimit_mode": "round_numbers",
    "axes.xmargin": 0,
    "axes.ymargin": 0,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.borderaxespad": 0,
    # Thousands of points make a small file: what differs by less than this, in pixels, is left out.
    "path.simplify_threshold": 0.5,
}


def svg(draw: Callable[["Figure"], None]) -> str:
    """Returns what `draw` draws on an empty figure, as the text of an SVG file."""
    with _quiet_log():
        import matplotlib.style
        from matplotlib.figure import Figure

        # A user's own settings for matplotlib do not count.
        with matplotlib.style.context(["default", _STYLE]):
            figure = Figure((WIDTH, WIDTH), layout="constrained")
            draw(figure)
            # The solver of the layout rounds differently from time to time.
            figure.get_layout_engine().execute(figure)
            figure.set_layout_engine("none")
            for axes in figure.axes:
                axes.set_position([round(share, 5) for share in axes.get_position().bounds])
            text = io.StringIO()
            # The metadata would have the time.
            metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(text, format="svg", metadata=metadata)
    return text.getvalue()


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    """Keeps what matplotlib says of its fonts and of its caches out of the log of a run."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


# An axis is logarithmic if its values are positive and differ by more than this factor.
_LARGE_RATIO = 50.0
# A chart does not have place for larger numbers, which only a diverging run has.
_LARGEST = 1e100
_FEWEST_TO_SMOOTH = 10  # points
_MOST_DOTS = 50  # of evaluations; lines alone show more of them


def of_run(
    training: Sequence[Mapping[str, float]],
    evaluations: Sequence[Mapping[str, float]],
    corners: Sequence[Mapping[str, float]] = (),
) -> str:
    """Returns a picture of a run: its loss, its scores on held-out data, its learning rate.

    Args:
      training: the records of logged steps: dicts of name -> value with `step`. Of several records
        of a step, the last counts.
      evaluations: the records of evaluations, whose values have names that begin with `eval_`.
      corners: the records with `learning_rate` of the steps where the schedule bends, such as the
        end of the warm-up, which may lie between logged steps.
    """
    return svg(lambda figure: draw_run(figure, training, evaluations, corners))


def draw_run(
    figure: "Figure",
    training: Sequence[Mapping[str, float]],
    evaluations: Sequence[Mapping[str, float]],
    corners: Sequence[Mapping[str, float]] = (),
) -> None:
    """Draws what `of_run` returns on an empty figure: panels that share the axis of steps."""
    from matplotlib.ticker import MaxNLocator

    scores, rates = _scores(evaluations), _rates(training, corners)
    # The height of each panel in inches, and what draws it.
    panels = [(2.5, lambda axes: _draw_losses(axes, training, evaluations))]
    if scores:
        panels.append((1.8, lambda axes: _draw_scores(axes, scores, training, evaluations)))
    if rates:
        panels.append((1.4, lambda axes: _draw_rates(axes, rates)))
    heights = [height for height, _ in panels]
    figure.set_figheight(sum(heights) + 0.5)
    columns = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=heights)
    for axes, (_, draw) in zip(columns[:, 0], panels, strict=True):
        draw(axes)
    last = max((record["step"] for record in [*training, *evaluations]), default=0)
    axes.set_xlim(0, max(last, 1))
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.7g}")
    axes.set_xlabel("step")


def running_median(points: Sequence[tuple[float, float]], window: int) -> list[tuple[float, float]]:
    """Returns the median of the `window` (odd) values around each (step, value), sorted by step; of
    more than 1000 points, some are kept."""
    values = [value for _, value in points]
    every = math.ceil(len(points) / 1000)
    places = sorted({*range(0, len(points), every), len(points) - 1}) if points else []
    smooth = []
    for i in places:
        # Near its start the curve of a loss is steep, so there the window is smaller, as far as the
        # point is from the start. Near the end the window is cut off, because the last value, which
        # varies much by itself, would otherwise look like a trend.
        half = min(window // 2, i)
        smooth.append((points[i][0], statistics.median(values[i - half : i + half + 1])))
    return smooth


def finish_panel(axes: "Axes", title: str, may_be_log: bool = False) -> None:
    """Gives axes that have their curves a title, a scale, and a legend that covers nothing."""
    from matplotlib.ticker import LogLocator

    low, high = axes.dataLim.intervaly
    if may_be_log and low > 0 and high > _LARGE_RATIO * low:
        title += ", log scale"
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
        axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_title(title)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1))


def draw_levels(axes: "Axes", levels: Mapping[str, float]) -> None:
    """Draws a dashed line for each name -> value, as long as the horizontal axis."""
    dashes = itertools.cycle(((4, 3), (1.5, 2), (6, 2, 1.5, 2)))
    for name, value in levels.items():
        axes.axhline(value, color=GREY, dashes=next(dashes), label=name)


def _draw_losses(axes, training, evaluations):
    """Draws the loss: masked-LM's in pretraining, else the loss of the task."""
    title, name, held_out = "loss", "loss", "mean_loss"
    if any({"masked_lm_loss", "eval_masked_lm_loss"} & r.keys() for r in [*training, *evaluations]):
        title, name, held_out = "masked-LM loss (nats)", "masked_lm_loss", "masked_lm_loss"
    _draw_training(axes, _points(training, name))
    _draw_evaluations(axes, _points(evaluations, f"eval_{held_out}"), "held-out", ORANGE)
    draw_levels(axes, _baselines(evaluations, of_loss=True))
    finish_panel(axes, title, may_be_log=True)


def _draw_scores(axes, scores, training, evaluations):
    """Draws all held-out metrics that are not losses."""
    # One score has place for its values in training; several share a panel.
    if len(scores) == 1:
        ((name, points),) = scores.items()
        title = _words(name)
        _draw_training(axes, _points(training, name))
        _draw_evaluations(axes, points, "held-out", ORANGE)
    else:
        title = "held-out scores"
        for colour, (name, points) in zip(itertools.cycle(COLOURS), scores.items(), strict=False):
            _draw_evaluations(axes, points, _words(name), colour)
    draw_levels(axes, _baselines(evaluations, of_loss=False))
    finish_panel(axes, title)


def _draw_rates(axes, rates):
    _draw_line(axes, rates, None, BLUE, has_dots=len(rates) == 1)
    axes.set_ylim(bottom=0)
    finish_panel(axes, "learning rate")


def _draw_training(axes, points):
    """Draws a value of training: what was logged, and if that is much, smooth."""
    if not points:
        return
    if len(points) < _FEWEST_TO_SMOOTH:
        _draw_line(axes, points, "training", BLUE, has_dots=True)
        return
    window = round(math.sqrt(len(points))) | 1
    _draw_line(axes, points, "training, as logged", BLUE, alpha=0.45, linewidth=1)
    _draw_line(axes, running_median(points, window), f"median of {window} points", BLUE)


def _draw_evaluations(axes, points, name, colour):
    if points:
        _draw_line(axes, points, name, colour, has_dots=len(points) <= _MOST_DOTS)


def _draw_line(axes, points, name, colour, has_dots=False, **options):
    """Draws a line; a line without a name is not in the legend."""
    steps, values = zip(*points, strict=True)
    marker = "o" if has_dots else None
    # The first and the last dot lie on the edge of the panel.
    axes.plot(steps, values, color=colour, label=name, marker=marker, clip_on=False, **options)


def _scores(evaluations):
    """Returns a dict of name -> points of the held-out metrics that are neither losses nor
    baselines."""
    names = [
        name.removeprefix("eval_")
        for name in dict.fromkeys(itertools.chain(*evaluations))
        if name.startswith("eval_") and not name.endswith(("loss", "_baseline"))
    ]
    by_name = {name: _points(evaluations, f"eval_{name}") for name in names}
    return {name: points for name, points in by_name.items() if points}


def _rates(training, corners):
    """Returns the points of the learning rate; none if no step has logged it."""
    logged = _points(training, "learning_rate")
    if not logged:
        return []
    corners = [corner for corner in corners if corner["step"] <= logged[-1][0]]
    return _points([*corners, *training], "learning_rate")


def _baselines(evaluations, of_loss):
    """Returns name -> the baselines of the loss, or else of scores, of the last evaluation."""
    latest = {}
    for record in evaluations:
        for name, value in record.items():
            is_of_loss = name == "eval_unigram_baseline"
            if name.endswith("_baseline") and is_of_loss == of_loss and abs(value) < _LARGEST:
                latest[_words(name.removeprefix("eval_"))] = value
    return latest


def _points(records, name):
    """Returns the (step, value) of the records that have a finite value of that name, by step."""
    values = {r["step"]: r[name] for r in records if name in r and abs(r[name]) < _LARGEST}
    return sorted(values.items())


def _words(name):
    """Returns the name of a metric in words."""
    words = name.replace("_", " ")
    return words.replace("masked lm", "masked-LM").replace("next sentence", "next-sentence")
