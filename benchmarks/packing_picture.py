"""Draws docs/packed_rows.svg: the sequences of a batch in rows of their own, and packed.

    python -m benchmarks.packing_picture

The rows are what `input_pipelines.records.packed_rows` makes of these lengths.
"""

import os

import numpy as np

from benchmarks import main_job
from benchmarks.speed_picture import frame, text
from bert_estimator.command_line.charts import BLUE, GREY, ORANGE, WIDTH
from input_pipelines.records import packed_rows

PICTURE = os.path.join(main_job.ROOT, "docs", "packed_rows.svg")
_ROW_LENGTH = 128
_LENGTHS = np.array([128, 31, 57, 97, 22, 64, 12, 105, 41, 70, 35, 90, 18, 9, 52, 27])
_COLOURS = (BLUE, ORANGE, "#4a9", "#a5a", "#c95", "#789")
_EDGE, _ROW, _BAR, _SPACE = 16, 20, 16, 32  # pixels


def svg() -> str:
    """Returns the picture as the text of an SVG file."""
    width = (WIDTH - 2 * _EDGE - _SPACE) / 2
    own = packed_rows.Deal(np.arange(len(_LENGTHS)), np.zeros_like(_LENGTHS), len(_LENGTHS))
    parts, bottom = [], 0
    for left, title, dealt in (
        (_EDGE, "a row for each sequence", own),
        (_EDGE + width + _SPACE, "packed rows", packed_rows.deal(_LENGTHS, _ROW_LENGTH)),
    ):
        share = _LENGTHS.sum() / (dealt.num_rows * _ROW_LENGTH)
        title = f"{title}: {dealt.num_rows} rows, {share:.0%} tokens"
        parts.append(text(left, _EDGE + 4, title, "font-weight='bold'"))
        top = _EDGE + _ROW
        for row in range(dealt.num_rows):
            y = top + row * _ROW
            parts.append(_bar(left, y, width, "#eee", f"stroke='{GREY}' stroke-width='0.5'"))
            for number in np.flatnonzero(dealt.rows == row):
                x = left + dealt.offsets[number] / _ROW_LENGTH * width
                colour = _COLOURS[number % len(_COLOURS)]
                parts.append(_bar(x, y, _LENGTHS[number] / _ROW_LENGTH * width, colour))
                parts.append(text(x + 3, y + _BAR - 4, str(number + 1), "fill='white'"))
        bottom = max(bottom, top + dealt.num_rows * _ROW)
    return frame(parts, bottom + _EDGE)


def _bar(x, y, width, colour, attributes=""):
    return (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{_BAR}' fill='{colour}' "
        f"{attributes}/>"
    )


def main() -> None:
    with open(PICTURE, "w", encoding="utf-8") as writer:
        writer.write(svg())


if __name__ == "__main__":
    main()
