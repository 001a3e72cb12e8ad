"""Draws what `training_speed` and `fine_tuning_speed` measured: a bar for each side.

    python -m benchmarks.speed_picture

docs/training_speed.svg has examples a second of BERT-base with 32 examples of 128 tokens, none of
which is padding. docs/useful_tokens.svg has tokens without padding a second, for texts of ordinary
length in bfloat16. The best round of each side counts.
"""

import itertools
import json
import os
from collections.abc import Callable, Mapping

from benchmarks import csv_rows, fine_tuning_speed, main_job, training_speed
from bert_estimator.command_line import charts
from bert_estimator.command_line.charts import BLUE, GREY, ORANGE
from bert_estimator.command_line.choices import PRECISIONS

PICTURE, USEFUL_PICTURE = (
    os.path.join(main_job.ROOT, "docs", name)
    for name in ("training_speed.svg", "useful_tokens.svg")
)
_CELL = {"network": "base", "length": "128", "batch": "32"}
_TITLE = "BERT-base, batches of 32 examples of 128 tokens: examples a second"
_USEFUL_TITLE = "BERT-base in bfloat16, texts of ordinary length: tokens a second, without padding"
_USEFUL_TOKENS = 16384  # positions of a batch
# Sides of the files -> their names in the pictures, and their colours.
_SIDES = {
    "ours": ("this project", BLUE),
    "Hugging Face, float32": ("Hugging Face on torch", ORANGE),
    "Hugging Face, bfloat16": ("Hugging Face, weights in bfloat16", ORANGE),
    "Hugging Face, autocast": ("Hugging Face, autocast", ORANGE),
    "products by TensorFlow": ("the matrix products alone", GREY),
}
_USEFUL_SIDES = {
    "packed": ("this project, packed rows", BLUE),
    "unpacked": ("this project, a row for each text", BLUE),
    "joined": ("Hugging Face, joined texts see each other", ORANGE),
    "grouped": ("Hugging Face, texts of like length", ORANGE),
    "padded": ("Hugging Face, padded", ORANGE),
}
# Sides of both files -> the picture's sides.
_KINDS = {
    "ours": "unpacked",
    "ours, packed, --use_tpu": "packed",
    "this project, --nopack": "unpacked",
    "this project, --use_tpu": "packed",
}
for _precision in ("autocast", "bfloat16"):
    _side = f"Hugging Face, {_precision}"
    _KINDS |= {_side: "padded", f"{_side}, shuffled": "padded"}
    _KINDS |= {f"{_side}, {kind}": kind for kind in ("joined", "grouped")}
_BAR, _HEADING = 0.26, 0.3  # the heights of a bar and of a heading, in inches


def rates(path: str) -> dict[str, dict[str, float]]:
    """Returns precision -> side -> examples a second, of a file of `training_speed`."""
    rows = [row for row in csv_rows.read(path) if _CELL.items() <= row.items()]
    groups = csv_rows.by_keys(rows, "precision", "side")
    found = {}
    for precision, side in itertools.product(reversed(PRECISIONS), _SIDES):
        if own := groups.get((precision, side)):
            rate = int(_CELL["batch"]) / min(csv_rows.numbers(own, "secs"))
            found.setdefault(precision, {})[side] = rate
    return found


def useful_rates(pretraining: str, fine_tuning: str) -> dict[str, dict[str, float]]:
    """Returns work -> side -> tokens a second, padding not counted, of a file of `training_speed
    --packed` and of a file of `fine_tuning_speed`."""
    rows = [
        row
        for row in csv_rows.read(pretraining)
        if (row["network"], row["precision"]) == ("base", "bfloat16")
        and int(row["length"]) * int(row["batch"]) == _USEFUL_TOKENS
    ]
    with open(fine_tuning, encoding="utf-8") as reader:
        fine_tuned = json.load(reader)
    found: dict[str, dict[str, float]] = {}

    def add(work, side, rate):
        if side in _USEFUL_SIDES:
            sides = found.setdefault(work, {})
            sides[side] = max(rate, sides.get(side, 0))

    for row in sorted(rows, key=lambda row: int(row["length"])):
        processor = _processor(row["machine"])
        work = f"pretraining, documents in records of {row['length']} tokens, {processor}"
        tokens = int(row["batch"]) * float(row["mean_tokens"])
        add(work, _KINDS.get(row["side"]), tokens / float(row["secs"]))
    processor = _processor(fine_tuned["machine"])
    work = (
        f"fine-tuning, sentences of {fine_tuned['mean_length']:.0f} tokens in the mean, {processor}"
    )
    tokens = fine_tuned["batch"] * fine_tuned["mean_length"]
    for row in fine_tuned["rows"]:
        if row["precision"] == "bfloat16":
            add(work, _KINDS.get(row["side"]), tokens / row["train_secs"])
    order = list(_USEFUL_SIDES)
    return {
        work: dict(sorted(s.items(), key=lambda i: order.index(i[0]))) for work, s in found.items()
    }


def _processor(machine):
    """Returns the name of the processor in what `main_job.machine` returns."""
    return machine.split(", ")[1].replace("(R)", "").removesuffix(" Processor")


def svg(
    groups: Mapping[str, Mapping[str, float]],
    title: str = _TITLE,
    sides: Mapping[str, tuple[str, str]] = _SIDES,
    shown: Callable[[float], str] = "{:.2f}".format,
) -> str:
    """Returns a picture with a bar for each rate of heading -> side -> rate; `shown` returns the
    text beside a bar."""
    counts = [len(group) for group in groups.values()]
    longest = max(rate for group in groups.values() for rate in group.values())

    def draw(figure):
        figure.set_figheight(_BAR * sum(counts) + _HEADING * (len(counts) + 1))
        figure.suptitle(title, x=0.01, ha="left", size=10, weight="bold")
        panels = figure.subplots(len(groups), sharex=True, squeeze=False, height_ratios=counts)
        for axes, (heading, group) in zip(panels[:, 0], groups.items(), strict=True):
            names, colours = zip(*(sides[side] for side in group), strict=True)
            bars = axes.barh(names, list(group.values()), height=0.7, color=colours)
            axes.bar_label(bars, map(shown, group.values()), padding=4)
            axes.set_title(heading, color=GREY, size=9, weight="normal")
            axes.set_xlim(0, 1.1 * longest)
            axes.set_ylim(len(group) - 0.5, -0.5)  # the first bar is at the top
            axes.grid(False)
            axes.xaxis.set_visible(False)
            axes.spines.bottom.set_visible(False)

    return charts.svg(draw)


def useful_svg(groups: Mapping[str, Mapping[str, float]]) -> str:
    """Returns the picture of what `useful_rates` returns, as the text of an SVG file."""
    return svg(groups, _USEFUL_TITLE, _USEFUL_SIDES, "{:,.0f}".format)


def main() -> None:
    full = rates(training_speed.RESULTS)
    useful = useful_rates(training_speed.RESULTS, fine_tuning_speed.RESULTS)
    for path, picture in ((PICTURE, svg(full)), (USEFUL_PICTURE, useful_svg(useful))):
        with open(path, "w", encoding="utf-8") as writer:
            writer.write(picture)


if __name__ == "__main__":
    main()
