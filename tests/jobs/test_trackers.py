"""Experiment trackers get what metrics.jsonl gets, in one run that resumed runs continue."""

import importlib
import json
from typing import ClassVar

import pytest
from scripts import CLASSIFIER, PRETRAINING

from bert_estimator.jobs import trackers


class Recording:
    """Is a tracker that keeps what it gets, in a list that all runs share."""

    events: ClassVar[list] = []

    def __init__(self, identity, name, settings):
        self.identity = "run 1"
        self.events.append(("begin", identity, name, settings["learning_rate"]))

    def add(self, record):
        self.events.append(record)

    def close(self, error):
        self.events.append(("close", type(error).__name__))


@pytest.fixture
def recording(monkeypatch):
    monkeypatch.setitem(trackers._TRACKERS, "mlflow", Recording)
    monkeypatch.setattr(trackers, "check", lambda name: None)
    Recording.events = []
    return Recording


def run(path, *flags, **changes):
    """Runs run_pretraining.py on a few records; returns its exit code."""
    if not (path / "bert_config.json").exists():
        PRETRAINING.write_data(path)
    changes = {"report_to": "mlflow", "num_train_steps": 4, **changes}
    return PRETRAINING.main([*PRETRAINING.flags(path, path / "run", **changes), *flags])


def records(path):
    return [json.loads(line) for line in (path / "run" / "metrics.jsonl").read_text().splitlines()]


def test_a_tracker_gets_all_records_in_one_run(tmp_path, recording):
    assert run(tmp_path, "--do_train", "--do_eval") == 0
    begin, *added, end = recording.events
    assert begin == ("begin", None, "run", 0.01) and end == ("close", "NoneType")
    assert added == records(tmp_path) and any("eval_loss" in record for record in added)
    recording.events.clear()
    assert run(tmp_path, "--do_train", num_train_steps=6) == 0
    begin, *more, end = recording.events
    assert begin == ("begin", "run 1", "run", 0.01)
    assert added + more == records(tmp_path) and len(more) > 0
    recording.events.clear()
    assert run(tmp_path, "--do_train", num_train_steps=6) == 0  # nothing is left to train
    assert recording.events == []


def test_a_fine_tuning_reports_its_evaluations(tmp_path, recording):
    CLASSIFIER.write_data(tmp_path)
    argv = CLASSIFIER.flags(tmp_path, tmp_path / "run", report_to="mlflow")
    argv += ["--do_eval", "--keep_best_checkpoint"]
    assert CLASSIFIER.main([*argv, "--do_train"]) == 0
    begin, *added, end = recording.events
    assert begin[:2] == ("begin", None) and end == ("close", "NoneType")
    assert added == records(tmp_path) and any("eval_accuracy" in record for record in added)
    recording.events.clear()
    assert CLASSIFIER.main(argv) == 0  # without training there is a baseline less
    begin, *more, end = recording.events
    assert begin[:2] == ("begin", "run 1") and len(more) == 1
    assert added + more == records(tmp_path)
    recording.events.clear()
    assert CLASSIFIER.main(argv) == 0  # an equal record is not written again
    assert [event[0] for event in recording.events] == ["begin", "close"]


def test_a_run_without_a_tracker_reports_nowhere(tmp_path, recording):
    assert run(tmp_path, "--do_train", report_to="tensorboard") == 0
    assert recording.events == [] and not (tmp_path / "run" / "tracker.json").exists()


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path, recording, monkeypatch, warned):
    def add(self, record):
        raise OSError("the network is down\nlong trace")

    monkeypatch.setattr(recording, "add", add)
    assert run(tmp_path, "--do_train") == 0
    said = [text for text in warned() if "report_to" in text]
    assert said == [
        "--report_to=mlflow: the network is down. The run goes on without; metrics.jsonl has all "
        "records."
    ]
    assert records(tmp_path)[-1]["step"] == 4


def test_a_tracker_that_cannot_begin_is_an_error_before_step_0(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise RuntimeError("no key\nmore")

    monkeypatch.setitem(trackers._TRACKERS, "wandb", refuse)
    monkeypatch.setattr(trackers, "check", lambda name: None)
    assert run(tmp_path, "--do_train", report_to="wandb") == 2
    assert "--report_to=wandb: no key. See the tracker's environment" in capsys.readouterr().err
    assert not list((tmp_path / "run").glob("model.ckpt*"))


def test_an_error_is_the_end_that_a_tracker_hears_of(tmp_path, recording):
    tracker = trackers.Tracker("mlflow", str(tmp_path), {"learning_rate": 1})
    tracker.begin()
    with pytest.raises(KeyboardInterrupt):
        try:
            raise KeyboardInterrupt
        finally:
            tracker.close()
    assert recording.events[-1] == ("close", "KeyboardInterrupt")


def test_a_missing_package_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(tmp_path, "--do_train") == 2
    error = capsys.readouterr().err
    assert "--report_to=mlflow: the package is not installed: pip install mlflow-skinny" in error
    assert run(tmp_path, "--do_train", report_to="wandbb") == 2
    assert (
        "must be one of tensorboard, mlflow, wandb; did you mean wandb?" in capsys.readouterr().err
    )


@pytest.mark.slow
def test_mlflow_has_one_run_with_all_records(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/store")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert run(tmp_path, "--do_train", "--do_eval") == 0
    assert run(tmp_path, "--do_train", "--do_eval", num_train_steps=6) == 0
    client = mlflow.MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'bert-estimator'")
    (made,) = client.search_runs([experiment.experiment_id])
    assert made.info.status == "FINISHED" and made.data.params["learning_rate"] == "0.01"
    for name in ("loss", "eval_loss"):
        expected = [(r["step"], r[name]) for r in records(tmp_path) if name in r]
        history = client.get_metric_history(made.info.run_id, name)
        assert [(metric.step, metric.value) for metric in history] == expected


def log_of(content, start=7, block=1 << 15):
    """Yields the records of a log in LevelDB's format, after a header of so many bytes."""
    place, parts = start, []
    while place - start < len(content):
        if block - place % block < 7:  # the rest of a block is empty
            place += block - place % block
            continue
        header = content[place - start : place - start + 7]
        size, kind = int.from_bytes(header[4:6], "little"), header[6]
        parts.append(content[place - start + 7 : place - start + 7 + size])
        place += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield b"".join(parts)
            parts = []


@pytest.mark.slow
def test_wandb_offline_has_the_records(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    assert run(tmp_path, "--do_train", report_to="wandb") == 0
    assert run(tmp_path, "--do_train", report_to="wandb", num_train_steps=6) == 0
    losses, names = [], set()
    for file in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb")):
        for data in log_of(file.read_bytes()[7:]):
            record = wandb_internal_pb2.Record.FromString(data)
            items = {item.key or item.nested_key[0]: item for item in record.history.item}
            if "loss" in items:
                losses.append([json.loads(items[name].value_json) for name in ("step", "loss")])
            if record.HasField("run"):
                names.add(record.run.run_id)
    assert losses == [[r["step"], r["loss"]] for r in records(tmp_path)]
    assert len(names) == 1
