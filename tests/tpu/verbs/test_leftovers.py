"""Tests what a start removes of checkpoints that a kill left half written or half deleted."""

import os
import shutil
import types

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.lib.io import file_io
from toy import input_fn, make_estimator, make_model_fn

from bert_estimator.tpu.verbs import checkpoint_saver, checkpoints

DATA = ".data-00000-of-00001"


@pytest.fixture
def folder(tmp_path):
    """Returns the directory of a training with checkpoints of the steps 0, 2 and 4."""
    make_estimator(tmp_path, save_checkpoints_steps=2).train(input_fn, steps=4)
    tf.summary.FileWriterCache.clear()
    return str(tmp_path)


def test_leftovers_of_a_killed_save_are_removed_and_nothing_else(folder):
    kept = set(os.listdir(folder))
    os.mkdir(f"{folder}/model.ckpt-6_temp")
    files = [
        "model.ckpt-6_temp/part-00000-of-00001.data-00000-of-00001",
        "model.ckpt-6.data-00000-of-00001.tempstate123456789",
        "model.ckpt-6.index.tempstate123",
        "checkpoint.tmp0123456789abcdef",
        "graph.pbtxt.tmp0123456789abcdef",
        "model.ckpt-6.meta.tmp0123456789abcdef",
        "model.ckpt-0.deleting.tmp",
    ]
    for name in files:
        open(f"{folder}/{name}", "w").close()
    os.mkdir(f"{folder}/mine_temp")
    open(f"{folder}/mine.pbtxt.tmp0123", "w").close()
    checkpoint_saver.remove_unwritten(folder)
    assert set(os.listdir(folder)) == kept | {"mine_temp", "mine.pbtxt.tmp0123"}
    checkpoint_saver.remove_unwritten(f"{folder}/absent")


def model_fn_of(keep):
    """Returns a model_fn, with a saver of its own if `keep` is not None."""

    def fields(features, loss):
        return {"scaffold_fn": lambda: tf.train.Scaffold(saver=tf.train.Saver(max_to_keep=keep))}

    return make_model_fn(fields if keep else None)


def checkpoint_files(folder):
    return sorted(name for name in os.listdir(folder) if name.startswith("model.ckpt-"))


def estimator_of(folder, own_saver, keep, **config):
    return make_estimator(
        folder,
        model_fn_of(keep if own_saver else None),
        save_checkpoints_steps=2,
        keep_checkpoint_max=keep,
        **{"checkpoint_save_graph_def": True, **config},
    )


@pytest.mark.parametrize(("own_saver", "keep"), [(False, 1), (False, 2), (True, 2)])
def test_a_kill_between_any_two_calls_of_a_deletion(tmp_path, monkeypatch, own_saver, keep):
    run, copies = tmp_path / "run", []
    estimator = estimator_of(run, own_saver, keep)
    estimator.train(input_fn, max_steps=2 * keep)

    def copy(function):
        def copied_around(*args, **kwargs):
            for call in (None, lambda: function(*args, **kwargs)):
                result = call and call()
                copies.append(tmp_path / str(len(copies)))
                shutil.copytree(run, copies[-1])
            return result

        return copied_around

    with monkeypatch.context() as patched:
        patched.setattr(file_io, "delete_file", copy(file_io.delete_file))
        patched.setattr(checkpoints, "write_state", copy(checkpoints.write_state))
        estimator.train(input_fn, max_steps=2 * keep + 2)
    assert len(copies) == 2 * 3 + 2  # three files, and the state file
    for steps in (2 * keep + 2, 2 * keep + 4):  # The training goes on for no step, or for two.
        estimator.train(input_fn, max_steps=steps)
        for number, copied in enumerate(copies):
            killed = shutil.copytree(copied, tmp_path / f"{number}-{steps}")
            estimator_of(killed, own_saver, keep).train(input_fn, max_steps=steps)
            assert checkpoint_files(killed) == checkpoint_files(run), number
            assert (killed / "checkpoint").read_text() == (run / "checkpoint").read_text(), number
            assert len(checkpoint_files(killed)) == 3 * keep


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_what_a_saver_of_tensorflow_was_deleting(folder, lost):
    """What can be restored stays; a saver deletes the .meta file first, then the .index file."""
    data = [f"{folder}/model.ckpt-2.data-0000{number}-of-00002" for number in (0, 1)]
    for path in data:
        shutil.copy(f"{folder}/model.ckpt-2{DATA}", path)
    os.remove(f"{folder}/model.ckpt-2{DATA}")
    for path in [f"{folder}/model.ckpt-2.index", *data][:lost]:
        os.remove(path)
    checkpoint_management.update_checkpoint_state_internal(folder, f"{folder}/model.ckpt-4")
    before = checkpoint_files(folder)
    checkpoint_saver.remove_half_deleted(folder, f"{folder}/model.ckpt-4")
    left = before if lost == 0 else [name for name in before if "ckpt-2." not in name]
    assert checkpoint_files(folder) == left


# Names beside the checkpoints of the steps 0, 2 and 4, which the state file lists.
KEPT = {
    "a graph that somebody keeps": ["model.ckpt-1.meta"],
    "an index whose data is elsewhere": ["model.ckpt-1.index"],
    "a checkpoint of tf.train.Checkpoint": ["model.ckpt-1.index", f"model.ckpt-1{DATA}"],
    "one of V1": ["model.ckpt-1", "model.ckpt-1.meta"],
    "one of V1 in shards": ["model.ckpt-1-00000-of-00002", "model.ckpt-1-00001-of-00002"],
    "another name": [f"mine.ckpt-1{DATA}", f"ckpt-1{DATA}", f"model.ckpt{DATA}"],
    "a copy": [f"model.ckpt-1{DATA}.bak", f"model.ckpt-1{DATA}.tmp", f"old-model.ckpt-1{DATA}"],
    "the data of a later step": [f"model.ckpt-6{DATA}"],
    "other folders": [f"best/model.ckpt-1{DATA}", f"export/1/variables/model.ckpt-1{DATA}"],
}


@pytest.mark.parametrize("names", KEPT.values(), ids=KEPT)
def test_what_may_still_be_restored_or_is_not_a_saver_s_stays(folder, names):
    for name in names:
        os.makedirs(os.path.dirname(f"{folder}/{name}"), exist_ok=True)
        open(f"{folder}/{name}", "w").close()
    before = sorted(os.walk(folder))
    checkpoint_saver.remove_half_deleted(folder, f"{folder}/model.ckpt-4")
    assert sorted(os.walk(folder)) == before


@pytest.mark.parametrize("newest", [None, "model.ckpt-0", "other", "ckpt-4"])
def test_damaged_checkpoints_stay_if_no_later_one_is_complete(folder, newest):
    """All indexes are lost: the data must be there for the error that says so."""
    for step in (0, 2, 4):
        os.remove(f"{folder}/model.ckpt-{step}.index")
    before = checkpoint_files(folder)
    checkpoint_saver.remove_half_deleted(folder, newest and f"{folder}/{newest}")
    assert checkpoint_files(folder) == before


def test_evaluations_and_predictions_remove_nothing(folder):
    open(f"{folder}/model.ckpt-1{DATA}", "w").close()
    before = checkpoint_files(folder)
    estimator = make_estimator(
        folder, make_model_fn(lambda features, loss: {"predictions": features})
    )
    estimator.evaluate(input_fn, steps=1)
    assert checkpoint_files(folder) == before


def steps_in(folder):
    return [name[11:-6] for name in checkpoint_files(folder) if name.endswith(".index")]


def test_a_checkpoint_is_kept_every_few_hours(tmp_path, monkeypatch):
    """A checkpoint an hour is written, from the start on, and one in two hours is kept."""
    clock = types.SimpleNamespace(now=0.0)

    class Hours(tf.train.CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            clock.now = 60 + 1800.0 * int(global_step_value)

    monkeypatch.setattr(checkpoint_saver, "time", types.SimpleNamespace(time=lambda: clock.now))
    estimator = estimator_of(tmp_path, False, 1, keep_checkpoint_every_n_hours=2)
    estimator.train(input_fn, steps=12, saving_listeners=[Hours()])
    assert sorted(steps_in(tmp_path), key=int) == ["4", "8", "12"]
    clock.now = 10**6  # What an earlier process has written is not kept for that.
    estimator.train(input_fn, steps=2)
    assert sorted(steps_in(tmp_path), key=int) == ["4", "8", "14"]


def test_an_old_checkpoint_that_cannot_be_deleted_does_not_end_training(
    tmp_path, monkeypatch, warned
):
    def fail(path):
        raise tf.errors.PermissionDeniedError(None, None, f"{path}; Operation not permitted")

    monkeypatch.setattr(file_io, "delete_file", fail)
    estimator_of(tmp_path, False, 1).train(input_fn, steps=4)
    assert steps_in(tmp_path) == ["0", "2", "4"]
    (text,) = [text for text in warned() if "model.ckpt-2:" in text]
    assert text.startswith(f"Could not delete the checkpoint {tmp_path}/model.ckpt-2: ")


def test_a_checkpoint_that_somebody_has_removed_is_forgotten(tmp_path):
    class Removes(tf.train.CheckpointSaverListener):
        def before_save(self, session, global_step_value):
            if global_step_value == 6:
                tf.train.remove_checkpoint(f"{tmp_path}/model.ckpt-4")

    estimator = estimator_of(tmp_path, False, 2)
    estimator.train(input_fn, steps=8, saving_listeners=[Removes()])
    assert steps_in(tmp_path) == ["6", "8"]


def test_a_checkpoint_of_another_directory_is_never_deleted(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    text = f'model_checkpoint_path: "{folder}/model.ckpt-4"\n'
    (other / "checkpoint").write_text(text, encoding="utf-8")
    before = checkpoint_files(folder)
    estimator_of(other, False, 1).train(input_fn, steps=4)
    assert steps_in(other) == ["8"]
    assert checkpoint_files(folder) == before
