"""Estimates of memory, against the measurements of `benchmarks.machine_memory`."""

import csv
import math
import pathlib
import re

import pytest

import bert_estimator
from bert_estimator import memory_needed
from bert_estimator.bert_config import BertConfig
from bert_estimator.system import memory

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "machine_memory.csv"
MOMENTS = {"lamb": 2, "lars": 1, "adafactor": 0}
GIB = 1 << 30


def measurements():
    with RESULTS.open(encoding="utf-8") as reader:
        return list(csv.DictReader(reader))


def option(row, name, default=None):
    value = re.search(rf"--{name}=(?:rehearse:)?(\w+)", row["options"])
    return default if value is None else value[1]


@pytest.mark.parametrize("row", measurements(), ids=lambda row: " ".join(list(row.values())[:-1]))
def test_an_estimate_is_right_within_a_fifth(row):
    config = BertConfig.preset(row["network"], 30522)
    length, micro_batch_size = int(row["length"]), option(row, "micro_batch_size")
    step = memory_needed.Step(
        rows=int(row["batch"]),
        length=length,
        precision=row["precision"],
        replicas=int(option(row, "tpu_name", 0)),
        micro_batch_size=micro_batch_size and int(micro_batch_size),
        recompute="--recompute" in row["options"],
        predictions=0 if row["verb"] == "embed" else math.ceil(0.15 * length),
    )
    moments = MOMENTS[option(row, "optimizer", "lamb")]
    needed = {
        "train": lambda: memory_needed.of_training(config, step, moments),
        "evaluate": lambda: memory_needed.of_running(config, step),
        "embed": lambda: memory_needed.of_running(config, step),
        "convert": lambda: memory_needed.of_conversion(config),
    }[row["verb"]]()
    assert needed / GIB == pytest.approx(float(row["peak_gib"]), rel=0.2)


def test_the_measurements_are_of_all_that_is_estimated():
    rows = measurements()
    assert {row["verb"] for row in rows} == {"train", "evaluate", "embed", "convert"}
    for names in (("base", "large"), ("float32", "bfloat16"), ("--recompute", "--tpu_name")):
        assert all(
            any(name in row.values() or name in row["options"] for row in rows) for name in names
        )


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


def test_a_system_that_does_not_tell_its_memory_is_not_warned_of(monkeypatch, capsys):
    monkeypatch.setattr(memory, "machine_bytes", lambda: None)
    assert memory_needed.check(1 << 60, "it", "run") is None
    assert capsys.readouterr() == ("", "")
