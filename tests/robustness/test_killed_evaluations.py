"""run_classifier.py killed around an evaluation: it ends as a run that was never killed."""

import json
import os
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from kills import copy_at
from scripts import CLASSIFIER, write_data
from tiny_run import metrics_of, variables_of, without_timing

from bert_estimator.command_line import run_directory
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs.best_checkpoint import BestCheckpoint
from bert_estimator.tpu import TPUEstimator, summary
from bert_estimator.tpu.job import Job
from bert_estimator.tpu.verbs import checkpoints

LOCAL, CORES = {"use_tpu": False}, {"use_tpu": True, "tpu_name": "rehearse:2"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory)[CLASSIFIER.name]


def flags(data, output_dir, runtime):
    return CLASSIFIER.flags(
        data,
        output_dir,
        **runtime,
        save_checkpoints_steps=2,
        learning_rate=0.1,
        adam_bias_correction=False,
        random_seed=3,  # of the four evaluations, the second is the best
        keep_best_checkpoint=True,
        early_stopping_patience=9,
        do_train=True,
        do_eval=True,
        do_predict=True,
        predict_file=data / "dev.tsv",
        do_export=True,
    )


def run(data, output_dir, runtime):
    tf.summary.FileWriterCache.clear()
    assert CLASSIFIER.main(flags(data, output_dir, runtime)) == 0
    tf.summary.FileWriterCache.clear()


def left_by(output_dir):
    """What a run leaves that must not depend on kills."""
    (export,) = (output_dir / "export").iterdir()
    best = output_dir / "best"
    events = summary.read_events(f"{output_dir}/eval/events.out.tfevents.*")
    return {
        "best": json.loads((best / "best.json").read_text()),
        "kept": sorted(os.listdir(best)),
        "metrics": list(map(without_timing, metrics_of(output_dir))),
        "eval events": {step: {**metrics} for step, metrics in events.items()},
        "results": (output_dir / "eval_results.txt").read_text(),
        "predictions": (output_dir / "test_results.tsv").read_text(),
        "exported": tf.train.load_variable(str(export / "variables" / "variables"), "global_step"),
    }


def at(step):
    return lambda *args, **kwargs: evaluated_step(args[0]) == step


def evaluated_step(listener):
    newest = checkpoints.newest_whole(os.path.dirname(listener._directory), quiet=True)
    return checkpoints.global_step_of(newest)


def of_results_at(step):
    return lambda directory, results: results["global_step"] == step


def whose_list_ends_at(step):
    return lambda directory, values, of: list(values)[-1:] == [step]


# Place of the kill -> (what is patched, its name, which call of it).
PLACES = {
    "after the checkpoint of step 4": (BestCheckpoint, "after_save", lambda _, s, step: step == 4),
    "in the evaluation of step 8, the last": (RunDirectory, "add_evaluation", of_results_at(8)),
    "before the best checkpoint is copied": (BestCheckpoint, "_copy", at(4)),
    "before best.json says so": (run_directory, "write_evaluations", whose_list_ends_at(4)),
    "before best.json says so of the last": (
        run_directory,
        "write_evaluations",
        whose_list_ends_at(8),
    ),
    "before the final evaluation": (TPUEstimator, "predict", lambda *args, **kwargs: True),
}


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Runs that nobody killed, by runtime: (what each left, its last variables, the modes of its
    calls of model_fn, place of a kill -> the directory as it was there)."""
    found, modes = {}, []
    call_model_fn = Job.call_model_fn

    def noted(job, *args):
        modes.append(job.mode)
        return call_model_fn(job, *args)

    def of(runtime):
        name = runtime.get("tpu_name", "local")
        if name not in found:
            folder = tmp_path_factory.mktemp("whole")
            path, copies = folder / "run", {place: folder / place for place in PLACES}
            modes.clear()
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(Job, "call_model_fn", noted)
                for place, call in PLACES.items():
                    copy_at(patched, *call, path, copies[place])
                run(data, path, runtime)
            assert all(copy.exists() for copy in copies.values()), "take another random_seed"
            found[name] = left_by(path), variables_of(path, 8), list(modes), copies
        return found[name]

    return of


def test_the_five_evaluations_of_a_run_share_a_graph(whole):
    modes = whole(LOCAL)[2]
    assert modes.count("train") == modes.count("eval") == 1


@pytest.mark.parametrize(
    ("place", "runtime"),
    [
        ("in the evaluation of step 8, the last", LOCAL),
        *(pytest.param(p, LOCAL, marks=pytest.mark.slow) for p in PLACES),
        *(pytest.param(p, CORES, marks=pytest.mark.slow) for p in PLACES),
    ],
    ids=lambda value: value if isinstance(value, str) else value.get("tpu_name", "local"),
)
def test_a_killed_run_ends_as_one_that_was_not(request, data, whole, tmp_path, place, runtime):
    if runtime is CORES:
        request.getfixturevalue("xla_runtime")
    expected, variables, _, copies = whole(runtime)
    shutil.copytree(copies[place], tmp_path / "run")
    assert not (tmp_path / "run" / "test_results.tsv").exists()
    shutil.rmtree(tmp_path / "run" / "export", ignore_errors=True)
    run(data, tmp_path / "run", runtime)
    assert left_by(tmp_path / "run") == expected
    np.testing.assert_equal(variables_of(tmp_path / "run", 8), variables)
