"""Draws results/training_speed.csv as docs/training_speed.svg: a bar for each side.

    python -m benchmarks.speed_picture

The best round of each side counts, for BERT-base with 32 examples of 128 tokens.
"""

import csv
import html
import os
from collections.abc import Mapping, Sequence

from benchmarks import main_job, training_speed
from bert_estimator.command_line.charts import BLUE, GREY, ORANGE, WIDTH, text_width
from bert_estimator.command_line.choices import PRECISIONS

PICTURE = os.path.join(main_job.ROOT, "docs", "training_speed.svg")
_CELL = {"network": "base", "length": "128", "batch": "32"}
_TITLE = "BERT-base, batches of 32 examples of 128 tokens: examples a second"
# Sides of the file -> their names in the picture, and their colours.
_SIDES = {
    "ours": ("this project", BLUE),
    "Hugging Face, float32": ("Hugging Face on torch", ORANGE),
    "Hugging Face, bfloat16": ("Hugging Face, weights in bfloat16", ORANGE),
    "Hugging Face, autocast": ("Hugging Face, autocast", ORANGE),
    "TensorFlow 1.15": ("google-research/bert on TensorFlow 1.15", ORANGE),
    "products by TensorFlow": ("the matrix products alone", GREY),
}
_EDGE, _ROW, _BAR, _SPACE = 16, 24, 16, 8  # pixels


def rates(path: str) -> dict[str, dict[str, float]]:
    """Returns precision -> side -> examples a second, of a file of `training_speed`."""
    with open(path, newline="", encoding="utf-8") as reader:
        rows = [row for row in csv.DictReader(reader) if _CELL.items() <= row.items()]
    found = {}
    for precision in reversed(PRECISIONS):
        for side in _SIDES:
            secs = [
                float(row["secs"])
                for row in rows
                if (row["precision"], row["side"]) == (precision, side)
            ]
            if secs:
                found.setdefault(precision, {})[side] = int(_CELL["batch"]) / min(secs)
    return found


def svg(groups: Mapping[str, Mapping[str, float]]) -> str:
    """Returns the picture of what `rates` returns, as the text of an SVG file."""
    left = _EDGE + max(text_width(name) for name, _ in _SIDES.values()) + _SPACE
    longest = max(rate for group in groups.values() for rate in group.values())
    scale = (WIDTH - left - _EDGE - text_width("00.00") - _SPACE) / longest
    parts, y = [text(_EDGE, _EDGE + 4, _TITLE, "font-weight='bold'")], 2 * _ROW
    for precision, group in groups.items():
        parts.append(text(_EDGE, y, precision, f"fill='{GREY}'"))
        for side, rate in group.items():
            y += _ROW
            name, colour = _SIDES[side]
            width = rate * scale
            parts += [
                text(left - _SPACE, y, name, "text-anchor='end'"),
                f"<rect x='{left:.1f}' y='{y - _BAR / 2 - 4:.1f}' width='{width:.1f}' "
                f"height='{_BAR}' fill='{colour}'/>",
                text(left + width + _SPACE, y, f"{rate:.2f}"),
            ]
        y += _ROW + _SPACE
    return frame(parts, y)


def frame(parts: Sequence[str], height: int) -> str:
    """Returns the text of an SVG file that has these elements."""
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' "
            f"viewBox='0 0 {WIDTH} {height}' font-family='Helvetica, Arial, sans-serif' "
            "font-size='12' fill='#333'>",
            "<rect width='100%' height='100%' fill='white'/>",
            *parts,
            "</svg>",
            "",
        ]
    )


def text(x: float, y: float, content: str, attributes: str = "") -> str:
    """Returns the element of a text."""
    return f"<text x='{x:.1f}' y='{y:.1f}' {attributes}>{html.escape(content)}</text>"


def main() -> None:
    with open(PICTURE, "w", encoding="utf-8") as writer:
        writer.write(svg(rates(training_speed.RESULTS)))


if __name__ == "__main__":
    main()
