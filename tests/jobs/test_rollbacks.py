"""Training that goes on without the batches whose loss is not finite."""

import json
import os
import signal

import log_lines
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from kills import Killed, copy_at
from scripts import CLASSIFIER, PRETRAINING, SQUAD, write_data
from tiny_run import metrics_of, steps_of, training_metrics, variables_of

from bert_estimator.command_line.choices import OPTIMIZER_NAMES
from bert_estimator.command_line.flags import FlagError
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs.run import Rollbacks
from bert_estimator.tpu.verbs import snapshot, training


def test_rollbacks_are_kept_and_bounded(tmp_path):
    rollbacks = Rollbacks(str(tmp_path), 2)
    assert rollbacks.add(4, 7)
    assert not rollbacks.add(8, 8)  # nothing would be skipped
    assert Rollbacks(str(tmp_path), 2).skipped == [(4, 3)]
    assert rollbacks.add(4, 6)
    assert not rollbacks.add(8, 9)
    again = Rollbacks(str(tmp_path), 3)
    assert again.skipped == [(4, 3), (4, 2)]
    assert again.add(8, 9)
    again.begin()
    assert Rollbacks(str(tmp_path), 0).skipped == []


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"rollbacks": 1}', '{"rollbacks": [{"step": "1", "skipped": 1}]}']
)
def test_a_file_that_cannot_be_read(tmp_path, content):
    (tmp_path / "rollbacks.json").write_text(content)
    with pytest.raises(FlagError, match=r"rollbacks\.json cannot be read .* put back a copy"):
        Rollbacks(str(tmp_path), 1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory)


@pytest.fixture(params=["while training waits", "in the background"])
def way(request, monkeypatch):
    """How checkpoints are written: in the background all of them are, whatever their size."""
    if request.param == "in the background":
        monkeypatch.setattr(snapshot, "LEAST_BYTES", 0)
    return request.param


LOCAL, SESSION, CORES = {"use_tpu": False}, {}, {"tpu_name": "rehearse:2"}


@pytest.fixture
def run(request, data, tmp_path):
    """Trains on data whose loss at step 7 is not finite; checkpoints are written every 4 steps."""

    def run(script, name, runtime, **changes):
        if runtime is CORES:
            request.getfixturevalue("xla_runtime")
        path = data[script.name]
        flags = script.flags(
            path,
            tmp_path / name,
            **{**script.steps(12), **script.spoil(path), **runtime, **changes},
        )
        tf.summary.FileWriterCache.clear()
        return script.main([*flags, "--do_train"])

    return run


def skipped_by(path):
    entries = json.loads((path / "rollbacks.json").read_text())["rollbacks"]
    return [(entry["step"], entry["skipped"]) for entry in entries]


@pytest.mark.parametrize(
    ("script", "runtime"),
    [
        (PRETRAINING, SESSION),
        *(
            pytest.param(script, runtime, marks=pytest.mark.slow)
            for script in (PRETRAINING, CLASSIFIER, SQUAD)
            for runtime in (LOCAL, SESSION, CORES)
        ),
    ],
)
def test_a_run_goes_on_without_the_batches_and_resumes_exactly(
    run, script, runtime, tmp_path, monkeypatch, capsys
):
    def is_of_step_10(directory, record):
        return record["step"] == 10

    with monkeypatch.context() as patched:
        copy_at(
            patched, RunDirectory, "add_metrics", is_of_step_10,
            tmp_path / "whole", tmp_path / "killed", after=True,
        )  # fmt: skip
        assert run(script, "whole", runtime, max_rollbacks=2) == 0
    out = capsys.readouterr().out
    assert "Rolling back to step 4, and skipping 3 batches (rollback 1 of at most 2)." in out
    assert steps_of(tmp_path / "whole") == [0, 4, 8, 12]
    # Fine-tuning's records come again in the second epoch.
    skipped = [(4, 3)] if script is PRETRAINING else [(4, 3), (8, 2)]
    assert skipped_by(tmp_path / "whole") == skipped
    logged = [record["step"] for record in training_metrics(tmp_path / "whole")]
    assert logged == sorted(set(logged))

    assert steps_of(tmp_path / "killed") == [0, 4, 8]
    assert run(script, "killed", runtime, max_rollbacks=0) == 0  # It has rolled back.
    found, expected = (variables_of(tmp_path / name, 12) for name in ("killed", "whole"))
    np.testing.assert_equal(found, expected)
    assert training_metrics(tmp_path / "killed") == training_metrics(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("runtime", [LOCAL, SESSION, CORES])
@pytest.mark.parametrize("script", [PRETRAINING, SQUAD])
def test_rollbacks_and_the_best_checkpoint(run, script, runtime, way, tmp_path, monkeypatch):
    """Steps 2 and 4 are saved in the background; steps 6 and 12 are saved and evaluated."""
    changes = {"max_rollbacks": 3, "keep_best_checkpoint": True, "eval_steps": 6, "do_eval": True}
    changes["save_checkpoints_steps"] = 2

    def left(name):
        best = json.loads((tmp_path / name / "best" / "best.json").read_text())
        files = sorted(os.listdir(tmp_path / name / "best"))
        return best, files, skipped_by(tmp_path / name), training_metrics(tmp_path / name)

    assert run(script, "whole", runtime, **changes) == 0
    assert [each["step"] for each in left("whole")[0]["evaluations"]] == [6, 12]
    assert left("whole")[2][0] == (6, 1)

    def add(self, checkpoint_step, failed_step, add=Rollbacks.add):
        add(self, checkpoint_step, failed_step)
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Rollbacks, "add", add)
        run(script, "killed", runtime, **changes)
    assert run(script, "killed", runtime, **changes) == 0
    assert left("killed") == left("whole")
    found, expected = (variables_of(tmp_path / name, 12) for name in ("killed", "whole"))
    np.testing.assert_equal(found, expected)


def test_a_rollback_past_an_evaluated_checkpoint_forgets_its_evaluation(run, tmp_path, monkeypatch):
    """The newest checkpoint is damaged meanwhile, so training goes back to the one before it."""
    path, add_metrics = tmp_path / "run", RunDirectory.add_metrics

    def damaging(self, record):
        if record["step"] == 6 and not (path / "rollbacks.json").exists():
            os.truncate(path / "model.ckpt-4.data-00000-of-00001", 9)
        add_metrics(self, record)

    monkeypatch.setattr(RunDirectory, "add_metrics", damaging)
    changes = {"max_rollbacks": 2, "keep_best_checkpoint": True, "eval_steps": 4, "do_eval": True}
    with log_lines.collected() as logged:
        assert run(PRETRAINING, "run", LOCAL, **changes) == 0
    assert skipped_by(path)[0] == (0, 7)
    assert sum(line.startswith("Evaluation at step 4: ") for _, line in logged) == 2
    evaluated = json.loads((path / "best" / "best.json").read_text())["evaluations"]
    assert [each["step"] for each in evaluated] == [4, 8, 12]


@pytest.mark.slow  # quick tests have signals and rollbacks apart
def test_a_signal_in_the_step_that_fails_ends_the_run(run, tmp_path, monkeypatch):
    """The same command rolls back, and goes on to the end."""
    check = training._TrainingLoop._check_losses

    def with_signal(self, result):
        if not np.isfinite(result.losses).all():
            os.kill(os.getpid(), signal.SIGTERM)  # it came while the step ran
        check(self, result)

    flags = {"optimizer": "adamw", "max_rollbacks": 2}
    monkeypatch.setattr(training._TrainingLoop, "_check_losses", with_signal)
    assert run(PRETRAINING, "run", SESSION, **flags) == 143
    assert steps_of(tmp_path / "run") == [0, 4]
    assert not (tmp_path / "run" / "rollbacks.json").exists()
    monkeypatch.undo()
    assert run(PRETRAINING, "run", SESSION, **flags) == 0
    assert skipped_by(tmp_path / "run") == [(4, 3)]


def test_too_many_rollbacks_end_with_the_error(run, tmp_path, monkeypatch, capsys):
    """The data is not at fault: each attempt fails."""
    changes = {"learning_rate": 1e30, "optimizer": "adamw"}  # a smaller graph than LAMB's
    assert run(PRETRAINING, "run", SESSION, **changes, max_rollbacks=2) == 1
    out, err = capsys.readouterr()
    assert out.count("Rolling back to step 0") == 2
    assert "All rollbacks of this run are used up (2); a larger --max_rollbacks allows" in out
    assert err.splitlines()[-1].startswith("run_pretraining.py: error: ")
    assert "Lower the learning rate" in err.splitlines()[-1]
    assert steps_of(tmp_path / "run") == [0]
    assert all(record["step"] > 0 for record in metrics_of(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZER_NAMES)
@pytest.mark.parametrize("rate", [1e4, 1e20, 3e38])
@pytest.mark.parametrize("runtime", [LOCAL, SESSION, CORES])
@pytest.mark.usefixtures("way")
def test_no_checkpoint_holds_what_is_not_finite(
    request, data, tmp_path, capsys, optimizer, rate, runtime
):
    if runtime is CORES:
        request.getfixturevalue("xla_runtime")
    changes = {"learning_rate": rate, "optimizer": optimizer, "num_warmup_steps": 0, **runtime}
    changes |= {"save_checkpoints_steps": 1, "iterations_per_loop": 1, "do_train": True}
    flags = PRETRAINING.flags(data[PRETRAINING.name], tmp_path / "run", **changes)
    tf.summary.FileWriterCache.clear()
    if PRETRAINING.main(flags) != 0:
        assert "Lower the learning rate" in capsys.readouterr().err.splitlines()[-1]
    for name in os.listdir(tmp_path / "run"):
        if name.endswith(".index"):
            step = int(name[len("model.ckpt-") : -len(".index")])
            for variable, value in variables_of(tmp_path / "run", step).items():
                assert np.all(np.isfinite(value)), (step, variable)
