"""Tests the search of the largest batch that fits."""

import pytest

from benchmarks import csv_rows, tpu_memory


def holding(rows):
    """Returns results that have these rows."""
    results = csv_rows.Results("no such file", tpu_memory.COLUMNS, tpu_memory.NUM_KEYS)
    results.rows.extend(rows)
    return results


def trial(batch, fits, total="14", **values):
    """Returns a row of a compilation."""
    memory = {"total": total, "weights": "1.25", "optimizer_state": "0.01", "temporaries": "9.3"}
    return {"batch_per_core": str(batch), "fits": str(fits), **memory, **values}


def test_what_is_not_known_yet():
    assert tpu_memory.largest([]) == ""
    assert tpu_memory.largest([trial(32, True), trial(512, False)]) == "32+"
    assert tpu_memory.largest([trial(32, True), trial(40, False)]) == "32"


def test_the_table_has_a_column_for_each_tpu_and_variant():
    keys = ("topology", "network", "length", "variant")
    cell = dict(zip(keys, ("v3:2x2", "large", "128", "bfloat16"), strict=True))
    results = holding([trial(16, True, **cell), trial(20, False, **cell)])
    lines = tpu_memory.table(results).splitlines()
    assert lines[0].startswith("| network, length | v2, bfloat16 | v3, bfloat16 | v2, float32 |")
    assert lines[4] == "| large, 128 |  | 16 |  |  |  |  |"


@pytest.mark.parametrize("gib_a_row", [0.0007, 0.007, 0.1, 0.9, 2.0, 20.0])
def test_the_search_finds_the_largest_and_goes_on_where_the_file_ends(
    monkeypatch, tmp_path, gib_a_row
):
    """A step takes 3.6 GiB, and so much for each row of a batch."""
    compiled, usable = [], {"v2:2x2": 7.48, "v3:2x2": 15.48}

    def compile_step(topology, network, length, variant, batch):
        compiled.append((topology, batch))
        total = 3.6 + gib_a_row * batch
        memory = dict(total=total, weights=1.2, optimizer_state=2.4, temporaries=total - 3.6)
        fits, limit = total <= usable[topology], usable[topology] * 2**30
        report = dict(memory=memory, fits=fits, usable_hbm=limit, compiler="none")
        return report, 1.0

    monkeypatch.setattr(tpu_memory, "compile_step", compile_step)
    path, step = str(tmp_path / "table.csv"), ("large", 128, "bfloat16")

    def opened():
        return csv_rows.Results(path, tpu_memory.COLUMNS, tpu_memory.NUM_KEYS)

    tpu_memory.search(opened(), step)
    number = len(compiled)
    assert number == len({*compiled}) <= 2 * 6
    results = opened()
    tpu_memory.search(results, step)
    results.row((compiled[0][0], *step, compiled[0][1]), tpu_memory.measure)
    assert len(compiled) == number
    largest = [
        max((n for n in tpu_memory.CANDIDATES if 3.6 + gib_a_row * n <= limit), default=0)
        for limit in usable.values()
    ]
    assert f"| large, 128 | {largest[0]} | {largest[1]} |" in tpu_memory.table(results)


def test_the_table_of_what_saves_memory():
    keys = ("topology", "network", "length", "variant")
    cell = dict(zip(keys, ("v3:2x2", "large", "512", "--optimizer=adafactor"), strict=True))
    row = trial(16, True, "11.2", **cell)
    (*_, line) = tpu_memory.remedies_table(holding([row])).splitlines()
    assert line == "| --optimizer=adafactor | 1.25 | 0.01 | 9.3 | 11.2 | yes |"
