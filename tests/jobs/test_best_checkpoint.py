"""The best checkpoint, kept beside a training: on files, without a network."""

import json
import math

import pytest

from bert_estimator.command_line.run_directory import path_of_best
from bert_estimator.jobs.best_checkpoint import BestCheckpoint


@pytest.fixture
def run(tmp_path):
    """Makes a listener whose evaluations give the values in turn."""

    def make(values, **options):
        values = iter(values)
        state = {}

        def evaluate():
            return next(values), str(tmp_path / f"model.ckpt-{state['step']}")

        listener = BestCheckpoint(str(tmp_path), evaluate, **options)

        def save(step):
            state["step"] = step
            for extension in ("index", "data-00000-of-00001"):
                (tmp_path / f"model.ckpt-{step}.{extension}").write_text(str(step))
            return listener.after_save(None, step)

        return listener, save

    return make


def kept(tmp_path):
    return sorted(path.name for path in (tmp_path / "best").glob("model*"))


def test_the_best_is_kept_whatever_comes_after(tmp_path, run):
    _, save = run([0.5, 0.7, 0.6])
    assert path_of_best(str(tmp_path)) is None
    for step in (10, 20, 30):
        assert save(step) is False
    assert kept(tmp_path) == ["model.ckpt-20.data-00000-of-00001", "model.ckpt-20.index"]
    assert path_of_best(str(tmp_path)) == f"{tmp_path}/best/model.ckpt-20"
    assert (tmp_path / "best" / "model.ckpt-20.index").read_text() == "20"


def test_the_network_is_kept_with_the_best(tmp_path, run):
    for name in ("bert_config.json", "vocab.txt"):
        (tmp_path / name).write_text(name)
    _, save = run([0.5, 0.7])
    save(10), save(20)
    for name in ("bert_config.json", "vocab.txt"):
        assert (tmp_path / "best" / name).read_text() == name


def test_what_has_no_weights_yet_is_not_evaluated(run):
    _, save = run([])
    assert save(0) is False


def test_a_metric_that_is_no_number_is_below_all_others(tmp_path, run):
    _, save = run([math.nan, -0.5, math.nan])
    for step in (1, 2, 3):
        save(step)
    assert path_of_best(str(tmp_path)) == f"{tmp_path}/best/model.ckpt-2"


def test_patience_counts_evaluations_that_are_no_better(run):
    listener, save = run([0.5, 0.5, 0.6, 0.1, 0.6], early_stopping_patience=2)
    assert [save(step) for step in (1, 2, 3, 4)] == [False] * 4
    assert not listener.exhausted
    assert save(5) is True
    assert listener.exhausted


def test_a_resumed_training_remembers(tmp_path, run):
    _, save = run([0.5, 0.4], early_stopping_patience=2)
    save(1)
    save(2)
    listener, save = run([0.45], early_stopping_patience=2)
    assert save(2) is False  # evaluated before
    assert save(3) is True
    assert listener.exhausted
    assert kept(tmp_path)[0].startswith("model.ckpt-1.")
    assert json.loads((tmp_path / "best" / "best.json").read_text())["since"] == 2
