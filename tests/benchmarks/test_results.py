"""The published results are whole files, each as its benchmark wrote it."""

import csv
import glob
import json
import os

import pytest

from benchmarks import main_job

RESULTS = os.path.join(main_job.ROOT, "benchmarks", "results")


@pytest.mark.parametrize("path", glob.glob(f"{RESULTS}/**/*.json", recursive=True))
def test_json(path):
    with open(path, encoding="utf-8") as file:
        assert isinstance(json.load(file), dict)


@pytest.mark.parametrize("path", glob.glob(f"{RESULTS}/*.csv"))
def test_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert all(len(row) > 1 and None not in row and None not in row.values() for row in rows)
