"""Tests the batch-scaling study with pretended runs: its rules, its search, how it resumes."""

import csv
import math

import pytest

from benchmarks import batch_scaling
from tests.support.pictures import Picture


class Replaced(batch_scaling.Study):
    """Pretends to run: the loss is the distance of the rate from the best rate."""

    best = 1e-3

    def __init__(self, path):
        super().__init__(str(path), str(path.parent))
        self.trained = []

    def train(self, output_dir, length, init_checkpoint, **key):
        self.trained.append((length, init_checkpoint, key))
        loss = abs(math.log2(float(key["learning_rate"]) / self.best))
        if loss > 4:
            return {"masked_lm_loss": "diverged", "masked_lm_accuracy": "", "train_secs": ""}
        return {"masked_lm_loss": loss, "masked_lm_accuracy": 0.5, "train_secs": 1}


@pytest.fixture
def study(tmp_path):
    return Replaced(tmp_path / "results.csv")


def test_every_batch_gets_all_examples_and_a_hundred_steps_or_more():
    for batch in batch_scaling.BATCHES:
        assert batch_scaling.EXAMPLES % batch == 0
        assert batch_scaling.EXAMPLES // batch >= 100
        assert batch % min(batch, batch_scaling.MICRO_BATCH) == 0


def test_the_rate_goes_with_the_root_of_the_batch():
    runs = [batch_scaling.run_of("", "lamb", batch, 4096, 1e-3, 1) for batch in (32, 128, 2048)]
    assert [run["learning_rate"] for run in runs] == ["0.001", "0.002", "0.008"]


@pytest.mark.parametrize("power", [-7, -1, 0, 3])
def test_the_search_ends_where_both_neighbours_are_worse(study, power):
    study.best = batch_scaling.FIRST_RATES["lamb"] * 2.0**power
    if power == -7:
        study.best *= 2**4  # rates too far from the best diverge
    assert batch_scaling.tuned_rate(study, "lamb") == study.best
    assert {key["steps"] for _, _, key in study.trained} == {batch_scaling.EXAMPLES // 4 // 32}


def test_every_batch_trains_on_the_same_examples(study):
    for run in batch_scaling.scaling_runs("lars", 2, 1e-3):
        study.row(**run)
    assert [key["batch"] for _, _, key in study.trained] == list(batch_scaling.BATCHES)
    assert all(k["batch"] * k["steps"] == batch_scaling.EXAMPLES for _, _, k in study.trained)


def test_the_second_stage_starts_from_the_first_with_and_without_a_warmup(study, tmp_path):
    batch_scaling.run_stages(study, str(tmp_path), 1, 1e-3)
    (_, start, first), (length, *plain), (_, *warm) = study.trained
    assert start is None and length == batch_scaling.LONG_LENGTH
    assert plain[0] == warm[0] and plain[0].endswith(f"1/model.ckpt-{first['steps']}")
    assert (plain[1]["warmup_steps"], warm[1]["warmup_steps"]) == (0, 26)
    batch_scaling.run_stages(study, str(tmp_path), 1, 1e-3)
    assert len(study.trained) == 3


def test_table_and_picture(study, tmp_path):
    study.best = batch_scaling.FIRST_RATES["lamb"]
    for seed in batch_scaling.SEEDS:
        batch_scaling.run_stages(study, str(tmp_path), seed, study.best)
        for optimizer in batch_scaling.FIRST_RATES:
            for run in batch_scaling.scaling_runs(optimizer, seed, study.best * 2.0):
                study.row(**run)
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as reader:
        assert len(list(csv.DictReader(reader))) == 3 * 3 * 5 + 3 * 2
    lines = batch_scaling.table(study.rows).splitlines()
    assert lines[2] == "| 32 | 64000 | " + " | ".join(["1.000 (1.000 to 1.000)"] * 3) + " |"
    assert lines[6] == "| 4096 | 500 | " + " | ".join(["3 of 3 diverged"] * 3) + " |"
    assert "| 26 steps of warm-up | 2.500 (2.500 to 2.500) |" in lines
    ended = [row for row in study.rows if row["masked_lm_loss"] != "diverged"]  # each took a second
    assert batch_scaling.core_hours(study.rows) == len(ended) / 3600
    picture = Picture(lambda figure: batch_scaling.draw(figure, study.rows, 2.5))
    picture.check()
    words = {"batch", "unigram baseline", "lamb", "lars", "32", "4096"}
    assert words <= set(picture.words())
    # The chart has a dot for each run that ended; the runs at the largest batch diverged.
    (panel,) = picture.panels
    dots = [y for line in panel.lines if line.get_marker() == "o" for y in line.get_ydata()]
    of_scale = [batch_scaling.loss(row) for row in study.rows if row["part"] == "scale"]
    finite = [value for value in of_scale if value < math.inf]
    assert sorted(dots) == sorted(finite) and 0 < len(finite) < len(of_scale)
