"""The scripts stopped in the middle, by errors, signals and kills; runs that go on."""

import json
import os
import shutil
import signal
import time

import locked
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from kills import copy_at
from scripts import CLASSIFIER, PRETRAINING, SCRIPTS, SHORT_TAGGER, SQUAD, end, start, with_slow
from tiny_run import (
    bert_config,
    metrics_of,
    steps_of,
    training_metrics,
    variables_of,
    without_timing,
)

from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.tpu.verbs import checkpoints

PROMPTLY_SECS = 30  # on a busy machine; nothing here takes a second


@pytest.fixture(
    scope="module", params=[*with_slow(SQUAD), pytest.param("tagging", marks=pytest.mark.slow)]
)
def script(request):
    return SHORT_TAGGER if request.param == "tagging" else SCRIPTS[request.param]


# Failures in the middle


def assert_last_checkpoint(output_dir, step):
    assert checkpoints.newest_whole(str(output_dir)) == f"{output_dir}/model.ckpt-{step}"
    for number in steps_of(output_dir):
        assert checkpoints.damage(f"{output_dir}/model.ckpt-{number}") is None


@pytest.fixture(scope="module")
def failing(data, tmp_path_factory):
    """Returns a function of a script whose input_fn fails: (directory, process). The quick ones are
    started together, since each keeps one core busy."""
    started = {}

    def find(script):
        if script not in started:
            path = shutil.copytree(data[script.name], tmp_path_factory.mktemp("failing") / "data")
            flags = script.flags(path, path / "run", **script.steps(10**5))
            action = f"{script.reads} = fail"
            started[script] = path, start(script, [*flags, "--do_train"], 6, action)
        return started[script]

    for script in (PRETRAINING, CLASSIFIER):
        find(script)
    yield find
    for _, process in started.values():
        process.kill()
        process.communicate()  # closes the pipes of a process that no test has waited for


def assert_ended_after_step_6(path, code):
    """Asserts a failure of the infeed after step 6, or the 32 batches that are read at a time."""
    assert code == 1
    assert steps_of(path / "run")[-1] >= 4
    assert 6 <= training_metrics(path / "run")[-1]["step"] < 100
    assert_last_checkpoint(path / "run", steps_of(path / "run")[-1])


def test_an_exception_inside_input_fn(failing, script):
    path, process = failing(script)
    code, err = end(process)
    assert "RuntimeError: the disk has gone" in err[err.index("Traceback") :]
    assert "CancelledError" not in err
    assert_ended_after_step_6(path, code)


def test_a_file_cut_short_while_it_is_read(data, tmp_path, monkeypatch, capsys):
    def add_metrics(self, record, add_metrics=RunDirectory.add_metrics):
        add_metrics(self, record)
        if record["step"] == 6:
            os.truncate(tmp_path / "data" / "train.tfrecord", 0)

    monkeypatch.setattr(RunDirectory, "add_metrics", add_metrics)
    path = shutil.copytree(data[PRETRAINING.name], tmp_path / "data")
    changes = {**PRETRAINING.steps(10**5), "optimizer": "lars", "do_train": True}
    code = PRETRAINING.main(PRETRAINING.flags(path, path / "run", **changes))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"run_pretraining.py: error: {path}/train.tfrecord: record ")
    assert last.endswith("is damaged: its checksum does not match its data. Create the file again.")
    assert_ended_after_step_6(path, code)


def test_a_loss_that_is_infinite(script, data, tmp_path, capsys):
    path = shutil.copytree(data[script.name], tmp_path / "data")
    # LAMB and LARS would take the norm of a huge weight, which is infinite at once.
    changes = {**script.steps(20), **script.spoil(path), "optimizer": "adamw"}
    assert script.main([*script.flags(path, tmp_path / "run", **changes), "--do_train"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"{script.name}: error: The loss of step 7 is {script.bad_loss}")
    assert "Lower the learning rate" in last
    assert_last_checkpoint(tmp_path / "run", 4)
    assert [r["step"] for r in training_metrics(tmp_path / "run")] == [1, 2, 4, 6]


CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.mark.parametrize(
    ("script", "number"),
    [
        (PRETRAINING, signal.SIGTERM),  # all scripts are ended by the same code
        pytest.param(PRETRAINING, signal.SIGINT, marks=pytest.mark.slow),
        *(
            pytest.param(script, number, marks=pytest.mark.slow)
            for script in (CLASSIFIER, SQUAD, SHORT_TAGGER)
            for number in CODES
        ),
    ],
)
def test_a_signal_saves_and_ends_with_its_own_code(script, number, data, tmp_path):
    changes = {**script.steps(10**6), "save_checkpoints_steps": 10**6, "do_train": True}
    process = start(script, script.flags(data[script.name], tmp_path / "run", **changes))
    try:
        deadline = time.monotonic() + 120
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not metrics.exists() or len(metrics_of(tmp_path / "run")) < 4:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        code, err = end(process, PROMPTLY_SECS)
    finally:
        process.kill()
    assert code == CODES[number]
    assert f"{number.name}: finishing the current step, then saving." in err
    assert "Traceback" not in err
    step = steps_of(tmp_path / "run")[-1]
    assert step == training_metrics(tmp_path / "run")[-1]["step"] >= 6
    assert_last_checkpoint(tmp_path / "run", step)


# Runs that go on


@pytest.fixture(scope="module")
def finished(script, data, tmp_path_factory):
    """The directory of a finished run of eight steps, with its evaluation."""
    path = tmp_path_factory.mktemp("finished") / "run"
    assert script.main(script.flags(data[script.name], path, **script.steps(8))) == 0
    return path


@pytest.fixture
def rerun(script, data, finished, tmp_path):
    """Runs the command again on a copy of the finished run's directory, with changed flags."""
    output_dir = shutil.copytree(finished, tmp_path / "run")

    def run(**changes):
        flags = {**script.steps(8), **changes}
        return script.main(script.flags(data[script.name], output_dir, **flags))

    return output_dir, run


def test_a_second_run_says_that_nothing_is_left(script, rerun, capsys):
    output_dir, run = rerun
    before = training_metrics(output_dir)
    assert run() == 0
    out = capsys.readouterr().out
    (flag,) = script.steps(8)
    assert f"Nothing left to train: {output_dir} is at step 8. Give a larger --{flag} to go" in out
    assert "Training took" not in out
    assert "at step 8: " in out  # the evaluation
    assert steps_of(output_dir) == [0, 4, 8]
    assert training_metrics(output_dir) == before


def test_the_last_checkpoint_is_named_if_a_kill_came_before(script, rerun, capsys):
    output_dir, run = rerun
    (output_dir / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-4"\n')
    assert run() == 0
    assert tf.train.get_checkpoint_state(str(output_dir)).model_checkpoint_path.endswith("ckpt-8")
    out, err = capsys.readouterr()
    assert out.count("Nothing left to train: ") == 1
    assert "Nothing to train" not in out + err
    assert steps_of(output_dir) == [0, 4, 8]


def test_what_a_kill_left_of_an_old_checkpoint_goes_though_nothing_is_left_to_train(script, rerun):
    output_dir, run = rerun
    before = sorted(path.name for path in output_dir.glob("model.ckpt-*"))
    shutil.copy(
        output_dir / "model.ckpt-4.data-00000-of-00001",
        output_dir / "model.ckpt-2.data-00000-of-00001",
    )
    assert run() == 0
    assert sorted(path.name for path in output_dir.glob("model.ckpt-*")) == before


def test_a_longer_run_goes_on(script, rerun, capsys):
    output_dir, run = rerun
    assert run(**script.steps(12), iterations_per_loop=1) == 0
    assert steps_of(output_dir) == [0, 4, 8, 12]
    assert [r["step"] for r in training_metrics(output_dir)] == [1, 2, 4, 6, 8, 9, 10, 11, 12]
    at_start = [0] if script is PRETRAINING else []  # it evaluates before the first step, too
    evaluated = [r["step"] for r in metrics_of(output_dir) if "eval_loss" in r]
    assert evaluated == [*at_start, 8, 12]
    assert f"Checkpoint: {output_dir}/model.ckpt-12" in capsys.readouterr().out


def test_an_evaluation_does_not_need_the_flags_of_the_training(script, rerun, capsys):
    """The run was trained with other values of all of these."""
    output_dir, run = rerun
    assert run(do_eval=True, do_train=False) == 0
    expected = capsys.readouterr().out
    others = {"train_batch_size": 7, "learning_rate": 0.5, "optimizer": "lars", "random_seed": 1}
    others |= {"micro_batch_size": 3, "init_checkpoint": None}
    if script is SQUAD:
        others["train_file"] = None  # the others read their labels or their vocabulary there
    assert run(do_eval=True, do_train=False, **others) == 0
    assert "at step 8: " in expected
    assert capsys.readouterr().out == expected
    assert run(**others) == 2
    assert steps_of(output_dir) == [0, 4, 8]


def test_predictions_and_exports_of_an_earlier_checkpoint(data, tmp_path, capsys):
    flags = {**CLASSIFIER.steps(8), "predict_file": data[CLASSIFIER.name] / "dev.tsv"}
    output_dir, found = tmp_path / "run", {}

    def run(**changes):
        made = CLASSIFIER.flags(data[CLASSIFIER.name], output_dir, **flags, **changes)
        return CLASSIFIER.main(made)

    assert run(do_train=True, keep_best_checkpoint=True) == 0
    named = {step: output_dir / f"model.ckpt-{step}" for step in (4, 8)}
    (best,) = (output_dir / "best").glob("*.index")
    named["best"] = best.with_suffix("")
    for name, path in {None: None, **named}.items():
        assert run(do_train=False, do_predict=True, init_checkpoint=path) == 0
        found[name] = (output_dir / "test_results.tsv").read_text()
    assert found[None] == found["best"] == found[int(best.stem.rpartition("-")[2])]
    assert found[4] != found[8]
    changes = {"do_export": True, "export_inputs": "ids", "init_checkpoint": named[4]}
    assert run(do_train=False, **changes) == 0
    (variables,) = (output_dir / "export").glob("*/variables/variables.index")
    exported, four = (
        tf.train.load_checkpoint(str(path)).get_tensor("output_weights")
        for path in (variables.with_suffix(""), named[4])
    )
    np.testing.assert_array_equal(exported, four)
    # A network that is not of the run's training is not a checkpoint of the run.
    for file in (".index", ".data-00000-of-00001"):
        shutil.copy(f"{named[4]}{file}", output_dir / f"bert_model.ckpt{file}")
    assert run(do_train=False, do_predict=True, init_checkpoint=output_dir / "bert_model.ckpt") == 2
    message = f"without training, a checkpoint of the run can be named, such as {output_dir}/model"
    assert message in capsys.readouterr().err


def test_an_evaluation_of_an_earlier_checkpoint(script, rerun, capsys):
    output_dir, run = rerun
    assert run(do_eval=True, do_train=False, init_checkpoint=output_dir / "model.ckpt-4") == 0
    assert "at step 4: " in capsys.readouterr().out
    assert steps_of(output_dir) == [0, 4, 8]
    assert [r["step"] for r in metrics_of(output_dir) if "eval_loss" in r][-1] == 4
    # Training cannot go on from it.
    assert run(init_checkpoint=output_dir / "model.ckpt-4") == 2


def test_while_another_process_trains_there_a_run_only_reads(rerun, capsys):
    output_dir, run = rerun
    files = ("config.json", "checkpoint", "metrics.jsonl")
    before = [(output_dir / name).read_bytes() for name in files]
    with locked.by_another(output_dir / ".lock"):
        assert run() == 2
        assert f".py: {output_dir} {locked.WHO}" in capsys.readouterr().err
        assert [(output_dir / name).read_bytes() for name in files] == before
        assert run(do_eval=True) == 0
    assert run(do_train=True) == 0
    assert not (output_dir / ".lock").exists()


def test_a_directory_of_another_run_is_refused(script, data, rerun, capsys):
    output_dir, run = rerun
    with open(output_dir / "config.json", encoding="utf-8") as reader:
        before = {name: flag["value"] for name, flag in json.load(reader)["flags"].items()}
    other_data = {script.data_flag: data[script.name] / "bert_config.json"}
    for name, value in {**script.others, **other_data}.items():
        assert run(**script.steps(20), **{name: value}) == 2
        message = f"--{name}={value}: {output_dir} holds a run with --{name}={before[name]}."
        assert message in capsys.readouterr().err
    assert steps_of(output_dir) == [0, 4, 8]


def test_a_directory_of_a_run_on_other_data_is_refused(script, data, finished, tmp_path, capsys):
    """The files' names are the same; what is in them is not."""
    own = shutil.copytree(data[script.name], tmp_path / "data")
    output_dir = shutil.copytree(finished, tmp_path / "run")
    config = (output_dir / "config.json").read_text()
    (output_dir / "config.json").write_text(config.replace(str(data[script.name]), str(own)))
    flags = [*script.flags(own, output_dir, **script.steps(8)), "--do_train"]
    assert script.main(flags) == 0
    script.change_data(own)
    assert script.main(flags) == 2
    message = f"--{script.data_flag}: {output_dir} holds a run on other records"
    assert message in capsys.readouterr().err


ON_TPU = {"use_tpu": True, "precision": "bfloat16"}


@pytest.mark.parametrize(
    ("script", "changes"),
    [
        (PRETRAINING, ON_TPU),
        # test_killed_evaluations.py has a quick case in local mode.
        pytest.param(
            PRETRAINING, {"use_tpu": False, "keep_best_checkpoint": True}, marks=pytest.mark.slow
        ),
        (CLASSIFIER, {**ON_TPU, "keep_best_checkpoint": True}),
        pytest.param(SQUAD, {**ON_TPU, "keep_best_checkpoint": True}, marks=pytest.mark.slow),
        pytest.param(
            SHORT_TAGGER, {**ON_TPU, "keep_best_checkpoint": True}, marks=pytest.mark.slow
        ),
    ],
    ids=["pretraining-tpu", "pretraining-local", "classifier", "squad", "tagging"],
)
def test_a_killed_run_resumed_equals_an_uninterrupted_one(
    data, tmp_path, monkeypatch, script, changes
):
    """A process is killed once, and its newest checkpoint is damaged as well. Elsewhere a copy of
    the uninterrupted run's directory, made half way, stands for what a kill leaves."""
    own = shutil.copytree(data[script.name], tmp_path / "data")
    is_thorough = script is PRETRAINING and changes["use_tpu"]  # what takes seconds is done once
    if is_thorough:
        network = bert_config(40, hidden_act="gelu")
        (own / "bert_config.json").write_text(json.dumps(network))
    changes = {
        **script.steps(18),
        "save_checkpoints_steps": 6,
        "iterations_per_loop": 3,
        "do_train": True,
        **changes,
    }

    def flags(name):
        return script.flags(own, tmp_path / name, **changes)

    if is_thorough:
        process = start(script, flags("killed"), 15, "os.kill(os.getpid(), signal.SIGKILL)")
        try:
            assert script.main(flags("whole")) == 0
            assert end(process)[0] == -signal.SIGKILL
        finally:
            process.kill()
    else:
        with monkeypatch.context() as patched:
            copy_at(
                patched, RunDirectory, "add_metrics", lambda _, record: record["step"] == 15,
                tmp_path / "whole", tmp_path / "killed", after=True,
            )  # fmt: skip
            assert script.main(flags("whole")) == 0
    expected = variables_of(tmp_path / "whole", 18)
    assert len([name for name in expected if "/adam_" in name]) > 40
    assert steps_of(tmp_path / "killed") == [0, 6, 12]
    # The ends of loops, which are single steps without --use_tpu.
    logged = [1, 3, 6, 9, 12, 15] if changes["use_tpu"] else [*range(1, 16)]
    assert [r["step"] for r in training_metrics(tmp_path / "killed")] == logged

    if is_thorough:  # As if the kill had come while the newest checkpoint was written.
        cut = tmp_path / "killed" / "model.ckpt-12.data-00000-of-00001"
        os.truncate(cut, os.path.getsize(cut) // 2)
        assert checkpoints.newest_whole(str(tmp_path / "killed")).endswith("-6")

    assert script.main(flags("killed")) == 0
    found = variables_of(tmp_path / "killed", 18)
    np.testing.assert_equal(found, expected)
    metrics, all_metrics = (
        map(without_timing, metrics_of(tmp_path / name)) for name in ("killed", "whole")
    )
    assert list(metrics) == list(all_metrics)
    assert_last_checkpoint(tmp_path / "killed", 18)
