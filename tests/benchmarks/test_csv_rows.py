"""Tests that results of benchmarks are kept, and that only what is missing is measured."""

from benchmarks import csv_rows

COLUMNS = ["network", "batch", "secs"]


def test_what_has_a_row_is_not_measured_again(tmp_path, capsys):
    path, measured = str(tmp_path / "new" / "results.csv"), []

    def measure(network, batch):
        measured.append((network, batch))
        return {"secs": batch / 2, "of no column": 1}

    results = csv_rows.Results(path, COLUMNS, 2)
    assert results.rows == []
    for key in (("tiny", 1), ("base", 1), ("tiny", 1)):
        results.row(key, measure)
    assert capsys.readouterr().out.splitlines() == [
        "network tiny, batch 1, secs 0.5",
        "network base, batch 1, secs 0.5",
    ]
    again = csv_rows.Results(path, COLUMNS, 2)
    assert again.rows == results.rows
    row = again.row(("base", 4), measure)
    assert row == again.rows[-1] == {"network": "base", "batch": "4", "secs": "2.0"}
    assert again.row(("base", 4), measure) == row
    assert measured == [("tiny", 1), ("base", 1), ("base", 4)]
    assert again.find("base") == again.rows[1:] and again.find("base", 4) == [row]


def test_rows_in_groups():
    rows = [{"a": a, "secs": secs} for a, secs in (("x", "1"), ("y", "5"), ("x", "3"))]
    groups = csv_rows.by_keys(rows, "a")
    assert [*groups] == [("x",), ("y",)]
    secs = csv_rows.numbers(groups["x",], "secs")
    assert csv_rows.spread(secs) == "2.000 (1.000 to 3.000)"
    assert csv_rows.span(secs) == "1 to 3"
