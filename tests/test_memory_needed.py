"""Estimates of memory, against the measurements of `benchmarks.machine_memory`."""

import pytest

from benchmarks import csv_rows, machine_memory
from bert_estimator import memory_needed
from bert_estimator.system import memory

GIB = 1 << 30


MEASUREMENTS = csv_rows.read(machine_memory.RESULTS)


def name_of(row):
    return " ".join(row[column] for column in machine_memory.KEY)


@pytest.mark.parametrize("row", MEASUREMENTS, ids=name_of)
def test_an_estimate_is_right_within_a_fifth(row):
    assert machine_memory.estimate(row) == pytest.approx(float(row["peak_gib"]), rel=0.2)


def test_the_measurements_are_of_all_that_is_estimated():
    text = "\n".join(map(name_of, MEASUREMENTS))
    for what in (
        "train base", "train large", "evaluate", "embed", "convert", "bfloat16", "float32",
        "--recompute", "--micro_batch_size", "--tpu_name", "--optimizer",
    ):  # fmt: skip
        assert what in text, what


@pytest.mark.parametrize(
    ("gibibytes", "warns", "is_refused"), [(100, False, False), (12, True, False), (5, False, True)]
)
def test_memory_that_is_missing_is_told(monkeypatch, capsys, gibibytes, warns, is_refused):
    monkeypatch.setattr(memory, "machine_bytes", lambda: gibibytes * GIB)
    line = f"about 10.0 GiB of this machine's {gibibytes}.0 GiB of memory"
    if is_refused:
        with pytest.raises(memory_needed.TooLargeError, match=f"^it: needs {line}; run$"):
            memory_needed.check(10 * GIB, "it", "run")
    else:
        assert memory_needed.check(10 * GIB, "it", "run") == line
    warning = f"Warning: it: needs {line}; if it does not fit, run.\n"
    assert capsys.readouterr().err == (warning if warns else "")


def test_the_most_that_may_be_needed_is_not_refused(monkeypatch, capsys):
    monkeypatch.setattr(memory, "machine_bytes", lambda: 5 * GIB)
    line = "at most about 10.0 GiB of this machine's 5.0 GiB of memory"
    assert memory_needed.check(10 * GIB, "it", "run", 7 * GIB) == line
    assert f"Warning: it: needs {line}; " in capsys.readouterr().err
    with pytest.raises(memory_needed.TooLargeError, match=f"^it: needs {line}; run$"):
        memory_needed.check(10 * GIB, "it", "run", 8 * GIB)


def test_a_system_that_does_not_tell_its_memory_is_not_warned_of(monkeypatch, capsys):
    monkeypatch.setattr(memory, "machine_bytes", lambda: None)
    assert memory_needed.check(1 << 60, "it", "run") is None
    assert capsys.readouterr() == ("", "")
