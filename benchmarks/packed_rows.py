"""Draws docs/packed_rows.svg, and prints how full the packed rows of batches of many sizes are.

    python -m benchmarks.packed_rows

The picture has the sequences of a batch in rows of their own, and packed. The table is of batches
of pretraining records of 512 tokens, with lengths as `run_pretraining.py --compile_only --fill`
takes them to be. `input_pipelines.records.packed_rows` makes the rows of both.
"""

import os

import numpy as np

from benchmarks import csv_rows, main_job
from bert_estimator.command_line import charts
from input_pipelines.records import packed_rows, record_lengths
from input_pipelines.records.order import BatchOrder

PICTURE = os.path.join(main_job.ROOT, "docs", "packed_rows.svg")
_ROW_LENGTH = 128
_LENGTHS = np.array([128, 31, 57, 97, 22, 64, 12, 105, 41, 70, 35, 90, 18, 9, 52, 27])
_ROW = 0.22  # inches

# How full the records of the embedded corpus are, and Wikipedia (Krell et al., 2021).
FILLS = (0.46, 0.5)
# (sequences of a batch, cores, or None for a session); the last is the second stage of "Training
# BERT in 76 minutes", on the paper's pod.
BATCHES = ((32, None), (32, 1), (256, 8), (4096, 256), (32768, 2048))
_RECORD_LENGTH, _PREDICTIONS = 512, 76
_PLANNED = 2**21  # sequences


def svg() -> str:
    """Returns the picture as the text of an SVG file."""
    number = len(_LENGTHS)
    own = packed_rows.Deal(np.arange(number), np.zeros_like(_LENGTHS), number)
    packed = packed_rows.deal(_LENGTHS, _ROW_LENGTH)
    colours = [charts.COLOURS[i % 4] for i in range(number)]  # white can be read on these

    def draw(figure):
        figure.set_figheight(_ROW * (number + 2))
        figure.get_layout_engine().set(wspace=0.06)
        panels = figure.subplots(1, 2, sharey=True)
        titles = ("a row for each sequence", "packed rows")
        for axes, title, dealt in zip(panels, titles, (own, packed), strict=True):
            share = _LENGTHS.sum() / (dealt.num_rows * _ROW_LENGTH)
            axes.set_title(f"{title}: {dealt.num_rows} rows, {share:.0%} tokens")
            rows = {"height": 0.8, "edgecolor": "white", "linewidth": 0.5}
            axes.barh(range(dealt.num_rows), _ROW_LENGTH, color="#dddddd", **rows)
            bars = axes.barh(dealt.rows, _LENGTHS, left=dealt.offsets, color=colours, **rows)
            axes.bar_label(bars, range(1, number + 1), label_type="center", color="white")
            axes.set_xlim(0, _ROW_LENGTH)
            axes.set_ylim(number - 0.5, -0.5)  # the first row is at the top
            axes.axis("off")

    return charts.svg(draw)


def filling(fill: float, batch_size: int, cores: int | None) -> packed_rows.Filling:
    """Returns how full the rows of batches are, whose records are as full as `fill` says."""
    lengths = record_lengths.evenly_spread(fill, _RECORD_LENGTH, _PREDICTIONS)
    order = BatchOrder(len(lengths.tokens), batch_size, seed=1)
    fillings = []
    num_batches = min(1000, _PLANNED // batch_size)
    is_session, cores = cores is None, cores or 1
    packs = packed_rows.Packs(num_batches, skips_empty=is_session, report=fillings.append)
    shape = (_RECORD_LENGTH, batch_size // cores, cores)
    packs.slot_order(order, lengths.of, *shape, predictions=lengths.predictions)
    return fillings[0]


def line(batch_size: int, cores: int | None) -> list[str]:
    """Returns the cells of a line of the table."""
    cells = [f"{batch_size}", f"{cores}" if cores else "a session"]
    for fill in FILLS:
        result = filling(fill, batch_size, cores)
        computed = result.rows * (1 - result.empty_share * result.skips_empty)
        cells.append(f"{computed:,.0f} rows, {100 * result.token_share:.0f} % tokens")
    return cells


def main() -> None:
    with open(PICTURE, "w", encoding="utf-8") as writer:
        writer.write(svg())
    fills = " | ".join(f"records {100 * fill:.0f} % full" for fill in FILLS)
    print(csv_rows.markdown(f"examples of a batch | cores | {fills}", (line(*b) for b in BATCHES)))


if __name__ == "__main__":
    main()
