"""The best checkpoint, kept beside a training: on files, without a network."""

import contextlib
import json
import math
import os
import shutil
import types

import pytest
from kills import Killed
from number_features import features_of

from bert_estimator.command_line.flags import FlagError
from bert_estimator.command_line.run_directory import path_of_best
from bert_estimator.jobs import best_checkpoint
from bert_estimator.jobs import run as jobs_run
from bert_estimator.jobs.best_checkpoint import BestCheckpoint
from bert_estimator.jobs.fine_tuning.classification_job import Classification
from bert_estimator.jobs.groups import EvaluationFlags
from bert_estimator.jobs.pretraining import pretraining_config
from bert_estimator.jobs.pretraining.pretraining_job import Pretraining


class Run:
    """Trains on files: its evaluations give `values`, by step."""

    def __init__(self, folder, values, num_train_steps=10**6, **options):
        self.folder, self.values, self.options = folder, values, options
        self.num_train_steps = num_train_steps
        self.evaluated, self.step, self.of = [], 0, "dev.tsv"
        self.kill = lambda place: None
        self.begin()

    def begin(self):
        """As a process does; the one before it may have been killed."""
        options = {"keep_best_checkpoint": True, **self.options}
        self.listener = BestCheckpoint(
            str(self.folder),
            EvaluationFlags(**options),
            self.num_train_steps,
            self._evaluate,
            self.of,
        )

    def _evaluate(self, checkpoint):
        self.kill("in the evaluation")
        step = self.step if checkpoint is None else int(checkpoint.rpartition("-")[2])
        self.evaluated.append(step)
        self.kill("after the evaluation")
        return self.values[step], checkpoint or str(self.folder / f"model.ckpt-{step}")

    def save(self, step):
        self.step = step
        for extension in ("index", "data-00000-of-00001"):
            (self.folder / f"model.ckpt-{step}.{extension}").write_text(str(step))
        return self.listener.after_save(None, step)

    def resume(self, step):
        self.step = step
        self.begin()
        self.listener.resume(step)

    def finish(self):
        """Trains on to the end; returns the last step."""
        for step in self.values:
            if self.listener.exhausted:
                break
            if step > self.step:
                self.save(step)
        return self.step

    def kept(self):
        return {path.name: path.read_text() for path in (self.folder / "best").iterdir()}


@pytest.fixture
def run(tmp_path):
    return lambda values, **options: Run(tmp_path, values, **options)


def kept(tmp_path):
    return sorted(path.name for path in (tmp_path / "best").glob("model*"))


@pytest.mark.parametrize("eval_steps", [20, 100])
def test_the_last_checkpoint_is_evaluated_too(tmp_path, run, eval_steps):
    a_run = run({10: 0.5, 20: 0.6, 30: 0.7}, num_train_steps=30, eval_steps=eval_steps)
    a_run.finish()
    assert a_run.evaluated == ([20, 30] if eval_steps == 20 else [30])
    assert path_of_best(str(tmp_path)) == f"{tmp_path}/best/model.ckpt-30"
    a_run.resume(30)  # the same command again
    assert a_run.evaluated.count(30) == 1


def test_without_keeping_the_best_the_last_is_left_to_do_eval(run):
    a_run = run({10: 0.5, 20: 0.6}, num_train_steps=20, eval_steps=100, keep_best_checkpoint=False)
    a_run.finish()
    assert a_run.evaluated == []


def test_if_no_metric_is_a_number_the_last_checkpoint_is_kept(tmp_path, run, logged):
    a_run = run(dict.fromkeys((10, 20, 30), math.nan), early_stopping_patience=2)
    assert a_run.finish() == 30 and a_run.listener.exhausted
    assert logged[-1] == ("INFO", "Ending at step 30: no evaluation had a number as its metric.")
    assert path_of_best(str(tmp_path)) == f"{tmp_path}/best/model.ckpt-30"
    assert a_run.kept().keys() >= {"model.ckpt-30.index"}
    assert "model.ckpt-10.index" not in a_run.kept()


def test_the_best_is_kept_whatever_comes_after(tmp_path, run):
    a_run = run({10: 0.5, 20: 0.7, 30: 0.6})
    assert path_of_best(str(tmp_path)) is None
    for step in (10, 20, 30):
        assert a_run.save(step) is False
    assert kept(tmp_path) == ["model.ckpt-20.data-00000-of-00001", "model.ckpt-20.index"]
    assert path_of_best(str(tmp_path)) == f"{tmp_path}/best/model.ckpt-20"
    assert (tmp_path / "best" / "model.ckpt-20.index").read_text() == "20"


def test_scores_of_other_data_are_not_compared(tmp_path, run, logged):
    """They do not count for patience, and the best checkpoint is evaluated on the other data."""
    a_run = run({10: 0.9, 20: 0.8, 30: 0.5, 40: 0.6}, early_stopping_patience=2)
    for step in (10, 20):
        a_run.save(step)
    a_run.of, a_run.values = "other.tsv", {**a_run.values, 10: 0.45, 20: 0.4}
    a_run.evaluated.clear()
    a_run.resume(20)
    assert logged[-1] == (
        "WARNING",
        "Other data or settings are evaluated than until now: the best checkpoint, of step 10, is "
        "evaluated anew, and compared with the newest one and later ones.",
    )
    assert a_run.evaluated == [10, 20]
    assert path_of_best(str(tmp_path)) == f"{tmp_path}/best/model.ckpt-10"
    for step in (30, 40):
        assert not a_run.save(step)
    assert path_of_best(str(tmp_path)) == f"{tmp_path}/best/model.ckpt-40"
    assert kept(tmp_path) == ["model.ckpt-40.data-00000-of-00001", "model.ckpt-40.index"]
    logged.clear()
    a_run.resume(40)
    assert not logged
    # What earlier versions wrote does not say what its metrics are of.
    path = tmp_path / "best" / "best.json"
    path.write_text(json.dumps({"evaluations": json.loads(path.read_text())["evaluations"]}))
    a_run.resume(40)
    assert not logged and path_of_best(str(tmp_path)) == f"{tmp_path}/best/model.ckpt-40"


def test_a_kill_while_the_best_is_evaluated_anew_loses_nothing(tmp_path, run):
    a_run = run({10: 0.9, 20: 0.8}, early_stopping_patience=2)
    a_run.finish()
    a_run.of = "other.tsv"

    def kill(place):
        raise Killed(place)

    a_run.kill = kill
    with pytest.raises(Killed):
        a_run.resume(20)
    assert kept(tmp_path) == ["model.ckpt-10.data-00000-of-00001", "model.ckpt-10.index"]
    a_run.kill = lambda place: None
    a_run.resume(20)
    assert path_of_best(str(tmp_path)) == f"{tmp_path}/best/model.ckpt-10"


@pytest.mark.parametrize("options", [{}, {"early_stopping_patience": 1}])
def test_a_complete_run_keeps_its_best_whatever_is_evaluated_next(tmp_path, run, options, capsys):
    """The same command with another file trains and removes nothing, by steps or by patience."""
    a_run = run({10: 0.9, 20: 0.8, 30: 0.7}, **options)
    last = a_run.finish()
    a_run.of, a_run.values = "other.tsv", dict.fromkeys(a_run.values, 0.1)
    a_run.evaluated.clear()
    a_run.begin()
    estimator = types.SimpleNamespace(global_step=lambda: last)
    training = types.SimpleNamespace(
        estimator=estimator, config=types.SimpleNamespace(output_dir=str(tmp_path))
    )
    steps = 30 if not options else 10**6
    assert jobs_run.Run._is_complete(training, steps, "num_train_epochs", a_run.listener)
    assert "Nothing left to train" in capsys.readouterr().out
    assert a_run.evaluated == []
    assert path_of_best(str(tmp_path)) == f"{tmp_path}/best/model.ckpt-10"
    assert kept(tmp_path) == ["model.ckpt-10.data-00000-of-00001", "model.ckpt-10.index"]


def test_the_network_is_kept_with_the_best(tmp_path, run):
    for name in ("bert_config.json", "vocab.txt"):
        (tmp_path / name).write_text(name)
    run({10: 0.5, 20: 0.7}).finish()
    for name in ("bert_config.json", "vocab.txt"):
        assert (tmp_path / "best" / name).read_text() == name


def test_the_best_is_on_the_disk_before_best_json_names_it(run, monkeypatch):
    calls = []

    def noted(name, function):
        def called(source, *arguments):
            is_open = isinstance(source, int)
            path = os.readlink(f"/proc/self/fd/{source}") if is_open else source
            calls.append((name, os.path.basename(path)))
            return function(source, *arguments)

        monkeypatch.setattr(os, name, called)

    for name in ("fsync", "replace", "remove"):
        noted(name, getattr(os, name))
    a_run = run({10: 0.5, 20: 0.7})
    a_run.save(10)
    del calls[:]
    a_run.save(20)
    named = calls.index(("replace", "best.json.tmp"))
    for extension in ("index", "data-00000-of-00001"):
        name = f"model.ckpt-20.{extension}.tmp"
        assert calls.index(("fsync", name)) < calls.index(("replace", name)) < named
    last = calls.index(("replace", "model.ckpt-20.index.tmp"))
    assert ("fsync", "best") in calls[last:named]
    assert ("remove", "model.ckpt-10.index") in calls[named:]


def test_what_has_no_weights_yet_is_not_evaluated(run):
    a_run = run({})
    assert a_run.save(0) is False
    a_run.resume(0)
    assert a_run.evaluated == []


def test_a_metric_that_is_not_a_number_is_below_all_others(tmp_path, run):
    run({1: math.nan, 2: -0.5, 3: math.nan}).finish()
    assert path_of_best(str(tmp_path)) == f"{tmp_path}/best/model.ckpt-2"
    evaluations = json.loads((tmp_path / "best" / "best.json").read_text())["evaluations"]
    assert [each["value"] for each in evaluations] == [None, -0.5, None]


def test_patience_counts_evaluations_that_are_no_better(run, logged):
    a_run = run({1: 0.5, 2: 0.5, 3: 0.6, 4: 0.1, 5: 0.6}, early_stopping_patience=2)
    assert [a_run.save(step) for step in (1, 2, 3, 4)] == [False] * 4
    assert not a_run.listener.exhausted
    assert a_run.save(5) is True
    assert a_run.listener.exhausted
    said = "Ending at step 5: the last 2 evaluations were not better than step 3's."
    assert logged[-1] == ("INFO", said)


# Kills.

VALUES = {4: 0.5, 8: 0.7, 12: 0.6, 16: 0.7, 20: 0.8, 24: 0.8, 28: 0.1, 32: 0.2, 36: 0.3}
PLACES = [
    "in the evaluation",
    "after the evaluation",
    "in the copy's first file",
    "in the copy's last file",
    "after the copy",
    "before best.json is there",
    "after best.json is there",
    "while others are removed",
]


def kills(run, monkeypatch, place, at_step):
    """Has a run killed at a place of the evaluation of a step, if it comes there."""
    copy, replace, remove = shutil.copyfileobj, os.replace, os.remove

    def killing(where, function, is_there=lambda *paths: True):
        def killed(*paths):
            if where == place and run.step == at_step and is_there(*paths):
                if function is copy:
                    paths[1].write(b"half")
                raise Killed
            return function(*paths)

        return killed

    def kill(where):
        if where == place and run.step == at_step:
            raise Killed

    def to_json(source, target):
        return target.endswith("best.json")

    def is_index(source, target):
        return source.name.endswith(".index")

    copy_last = killing("in the copy's last file", copy, is_index)
    copied = killing("in the copy's first file", copy_last)
    replaced = killing("before best.json is there", replace, to_json)

    def after(source, target):
        replaced(source, target)
        if target.endswith(".index"):
            kill("after the copy")
        elif to_json(source, target):
            kill("after best.json is there")

    run.kill = kill
    monkeypatch.setattr(best_checkpoint.shutil, "copyfileobj", copied)
    monkeypatch.setattr(best_checkpoint.os, "replace", after)
    monkeypatch.setattr(best_checkpoint.os, "remove", killing("while others are removed", remove))


def runs_in(folder, **options):
    runs = {name: Run(folder / name, VALUES, **options) for name in ("whole", "killed")}
    for run in runs.values():
        run.folder.mkdir()
        (run.folder / "bert_config.json").write_text("{}")
    return runs


@pytest.mark.parametrize("at_step", VALUES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("patience", [0, 3])
def test_a_run_killed_anywhere_ends_as_one_that_was_not(
    tmp_path, monkeypatch, place, at_step, patience
):
    runs = runs_in(tmp_path, early_stopping_patience=patience)
    last = runs["whole"].finish()
    assert last == (32 if patience else 36)

    run = runs["killed"]
    with monkeypatch.context() as patched:
        kills(run, patched, place, at_step)
        try:
            run.finish()
            was_killed = False
        except Killed:
            was_killed = True
    improves = at_step in (4, 8, 20)
    if place.startswith(("in the eval", "after the eval", "before best", "after best")):
        assert was_killed == (at_step <= last)
    elif "copy" in place:
        assert was_killed == improves
    else:
        assert was_killed == (at_step in (8, 20))
    run.kill = lambda place: None
    run.resume(run.step)
    assert run.finish() == last
    assert run.listener.exhausted == runs["whole"].listener.exhausted == bool(patience)
    assert run.kept() == runs["whole"].kept()
    assert path_of_best(tmp_path / "killed") == f"{tmp_path}/killed/best/model.ckpt-20"
    # Nothing is evaluated twice but what had to be.
    assert len(run.evaluated) - len(runs["whole"].evaluated) in (0, 1)


def test_going_back_to_an_earlier_checkpoint_evaluates_again(tmp_path, run):
    """Because the newest one is damaged, for example: what was better then is better again."""
    whole = run(VALUES, early_stopping_patience=3)
    whole.finish()
    expected = whole.kept()
    for earlier in (24, 20, 16, 4):
        a_run = run(VALUES, early_stopping_patience=3)
        a_run.resume(earlier)
        # The best checkpoint until then may have been removed since: this one may take its place.
        assert a_run.evaluated == [earlier]
        assert path_of_best(str(tmp_path)) == f"{tmp_path}/best/model.ckpt-{min(earlier, 20)}"
        assert not a_run.listener.exhausted
        assert a_run.finish() == 32
        assert a_run.kept() == expected


def test_an_abandoned_checkpoint_is_never_the_best(tmp_path, run):
    """Neither while training comes to its step again, nor after that with another metric."""
    run({4: 0.3, 8: 0.5, 12: 0.4, 16: 0.9}).finish()
    a_run = run({4: 0.3, 8: 0.5, 12: 0.4, 16: 0.2, 20: 0.35, 24: 0.45})
    a_run.resume(12)
    best = []
    for step in (16, 20, 24):
        best.append(path_of_best(str(tmp_path)))
        a_run.save(step)
    # The checkpoint of step 8 is gone. So the best checkpoint there is now the best one.
    assert best == [f"{tmp_path}/best/model.ckpt-12"] * 3
    assert path_of_best(str(tmp_path)) == f"{tmp_path}/best/model.ckpt-24"


def test_started_over_nothing_of_the_run_before_counts(tmp_path, run):
    run(VALUES).finish()
    a_run = run({4: 0.2})
    a_run.resume(0)
    a_run.finish()
    assert a_run.evaluated == [4]
    assert kept(tmp_path) == ["model.ckpt-4.data-00000-of-00001", "model.ckpt-4.index"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"evaluations": [3]}',
        '{"evaluations": [{"step": "x", "value": 1}]}',
        '{"evaluations": [{"step": 1, "value": [1]}]}',
        "[" * 100_000,
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path, run, content):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "best.json").write_text(content)
    for call in (lambda: run({}), lambda: path_of_best(str(tmp_path))):
        with pytest.raises(FlagError, match=rf"^--output_dir: {tmp_path}/best/best.json cannot be"):
            call()


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        (1, list(VALUES)),
        (4, list(VALUES)),
        (5, [8, 12, 16, 20, 28, 32, 36]),
        (12, [12, 24, 36]),
        (99, []),
    ],
)
@pytest.mark.parametrize("kill_at", [0, 8, 12, 20, 24])
def test_which_checkpoints_are_evaluated_does_not_depend_on_kills(run, every, steps, kill_at):
    a_run = run(VALUES, eval_steps=every)
    for step in VALUES:
        a_run.save(step)
        if step == kill_at:
            a_run.resume(step)
    assert a_run.evaluated == steps


def test_evaluations_alone_keep_no_checkpoint(tmp_path, run):
    a_run = run(VALUES, keep_best_checkpoint=False, eval_steps=4)
    a_run.finish()
    assert a_run.evaluated == list(VALUES)
    assert os.listdir(tmp_path / "best") == ["best.json"]
    assert path_of_best(str(tmp_path)) is None


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_at_the_last_step_loses_no_evaluation(tmp_path, monkeypatch, place):
    runs = runs_in(tmp_path, num_train_steps=36, eval_steps=100)
    runs["whole"].finish()
    with monkeypatch.context() as patched:
        kills(runs["killed"], patched, place, 36)
        with contextlib.suppress(Killed):
            runs["killed"].finish()
    runs["killed"].kill = lambda place: None
    runs["killed"].resume(36)
    assert runs["killed"].kept() == runs["whole"].kept()
    assert "model.ckpt-36.index" in runs["whole"].kept()


def digest_of_records(records, number, batch_size, steps=100):
    job = Pretraining(
        config=pretraining_config.PretrainingConfig(
            evaluation=pretraining_config.HeldOutFlags(
                eval_batch_size=batch_size, max_eval_steps=steps
            )
        ),
        network=None,
        rule=None,
        data=types.SimpleNamespace(num_eval_records=number, eval_digest=records),
        run=None,
    )
    return job._evaluation_digest()


def test_scores_of_pretraining_are_of_records_however_many_are_in_a_batch():
    # Padding fills the last batch.
    whole = digest_of_records("a", 79, 8)
    assert whole == digest_of_records("a", 79, 32)
    assert whole != digest_of_records("b", 79, 8)
    assert whole != digest_of_records("a", 79, 8, steps=9)


def test_scores_of_labels_are_of_the_examples():
    def digest(**evaluated):
        task = types.SimpleNamespace(evaluate=evaluated)
        data = types.SimpleNamespace(task=task, deciding_metric="accuracy")
        return Classification(None, data).evaluation_digest()

    ones, twos = features_of(("1", None, 0)), features_of(("2", None, 0))
    assert digest(dev=ones) == digest(dev=features_of(("1", None, 0)))
    assert len({digest(dev=ones), digest(dev=twos), digest(dev=ones, other=twos)}) == 3
