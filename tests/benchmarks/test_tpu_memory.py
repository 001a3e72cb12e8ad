"""Tests the search of the largest batch that fits."""

import pytest

from benchmarks import csv_rows, tpu_memory


def holding(rows):
    """Returns results that have these rows."""
    results = csv_rows.Results("no such file", tpu_memory.COLUMNS, tpu_memory.NUM_KEYS)
    results.rows.extend(rows)
    return results


def search(fits, total):
    """Searches with a pretended compiler; returns the rows of its trials."""
    rows = []
    while (batch := tpu_memory.next_batch(rows, first=32)) is not None:
        rows.append(
            {
                "batch_per_core": str(batch),
                "fits": str(fits(batch)),
                "total": str(total(batch)),
                "usable": "15.5",
                "weights": "1.3",
                "optimizer_state": "2.7",
            }
        )
        assert len(rows) < 12
    return rows


@pytest.mark.parametrize("gib_a_row", [0.007, 0.05, 0.2, 0.9, 2.0, 20.0])
def test_the_largest_batch_is_found_whatever_the_totals_say(gib_a_row):
    """If memory is short the compiler saves some, so its totals are not linear in the rows."""

    def fits(batch):
        return 5 + gib_a_row * batch <= 15.5

    rows = search(fits, lambda batch: 5 + gib_a_row * batch * (1 if fits(batch) else 1.5))
    expected = max((n for n in tpu_memory.CANDIDATES if fits(n)), default=0)
    assert tpu_memory.largest(rows) == str(expected)


def test_the_first_guess_is_that_of_another_tpu():
    """A step takes 1.3 + 2.7 GiB, and 1/8 GiB per row: 28 rows fit 7.5 GiB, and 92 fit 15.5."""
    elsewhere = search(lambda batch: 4 + batch / 8 <= 15.5, lambda batch: 4 + batch / 8)
    assert tpu_memory.next_batch([], elsewhere, 7.5) == 28
    assert tpu_memory.next_batch([], [], 7.5, first=20) == 20


def test_without_one_that_does_not_fit_the_next_is_twice_as_large():
    rows = search(lambda batch: batch <= 300, lambda batch: min(14.0, 5 + batch / 10))
    assert [int(row["batch_per_core"]) for row in rows[:4]] == [32, 64, 128, 256]


def test_what_is_not_known_yet():
    assert tpu_memory.largest([]) == ""
    (first, *_) = search(lambda batch: batch < 200, lambda batch: 5 + batch / 20)
    assert tpu_memory.largest([first]) == "32+"


def test_the_table_has_a_column_for_each_tpu_and_variant():
    keys = ("topology", "network", "length", "variant")
    row = dict(zip(keys, ("v3:2x2", "large", "128", "bfloat16"), strict=True))
    trials = search(lambda batch: batch < 20, lambda batch: 5 + batch / 2)
    results = holding([{**row, **trial} for trial in trials])
    lines = tpu_memory.table(results).splitlines()
    assert lines[0].startswith("| network, length | v2, bfloat16 | v3, bfloat16 | v2, float32 |")
    assert lines[4] == "| large, 128 |  | 16 |  |  |  |  |"


def test_a_search_goes_on_where_the_file_ends(monkeypatch, tmp_path):
    """A step takes 3.6 GiB, and 0.1 GiB per row: 118 rows fit 15.48 GiB, and 38 fit 7.48."""
    compiled = []

    def compile_step(topology, network, length, variant, batch):
        compiled.append((topology, batch))
        usable, total = {"v3:2x2": 15.48, "v2:2x2": 7.48}[topology], 3.6 + 0.1 * batch
        memory = dict(total=total, weights=1.2, optimizer_state=2.4, temporaries=total - 3.6)
        report = dict(memory={k: v * 2**30 for k, v in memory.items()}, fits=total <= usable)
        return {**report, "usable_hbm": usable * 2**30, "compiler": "none"}, 1.0

    monkeypatch.setattr(tpu_memory, "compile_step", compile_step)
    path = str(tmp_path / "table.csv")
    step = ("large", 128, "bfloat16")

    def opened():
        return csv_rows.Results(path, tpu_memory.COLUMNS, tpu_memory.NUM_KEYS)

    tpu_memory.search(opened(), step)
    # Each TPU needs the largest batch that fits and the smallest that does not; v3 also the first
    # guess.
    assert compiled == [
        *[("v3:2x2", batch) for batch in (512, 112, 128)],
        *[("v2:2x2", batch) for batch in (40, 32)],
    ]
    results = opened()
    tpu_memory.search(results, step)
    results.row(("v3:2x2", *step, 512), tpu_memory.measure)
    assert len(compiled) == 5
    assert "| large, 128 | 32 | 112 |" in tpu_memory.table(results)


def test_the_table_of_what_saves_memory():
    values = ("v3:2x2", "large", "512", "--optimizer=adafactor", "16", "True", "11.2", "15.48")
    row = dict(zip(tpu_memory.COLUMNS, (*values, "1.25", "0.01", "9.3"), strict=False))
    (*_, line) = tpu_memory.remedies_table(holding([row])).splitlines()
    assert line == "| --optimizer=adafactor | 1.25 | 0.01 | 9.3 | 11.2 | yes |"
