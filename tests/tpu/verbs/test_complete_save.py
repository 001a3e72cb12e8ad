"""What a training that is at its end does for a save that a kill cut short."""

import os
import shutil

import pytest
import tensorflow.compat.v1 as tf
from toy import checkpoint_steps, input_fn, make_estimator, make_model_fn


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "run")


def trained(folder, model_fn=None, **config):
    config = {"checkpoint_save_graph_def": True, **config}
    return make_estimator(
        folder,
        model_fn or make_model_fn(lambda features, loss: {"predictions": features}),
        predict_batch_size=4,
        save_checkpoints_steps=2,
        keep_checkpoint_max=2,
        **config,
    )


def state(folder):
    """Returns the names of the newest checkpoint, and of all, which the state file has."""
    found = tf.train.get_checkpoint_state(folder)
    paths = [found.model_checkpoint_path, *found.all_model_checkpoint_paths]
    newest, *listed = map(os.path.basename, paths)
    return newest, listed


def named(steps):
    names = [f"model.ckpt-{step}" for step in steps]
    return names[-1], names


def killed_before_naming_step_6(folder, estimator, before=(2, 4), files=None):
    """Leaves what a kill leaves between the two last things that a saver does."""
    estimator.train(input_fn, max_steps=4)
    shutil.copytree(folder, f"{folder}_4")
    estimator.train(input_fn, max_steps=6)
    shutil.copytree(f"{folder}_4", folder, dirs_exist_ok=True)
    assert state(folder) == named(before)
    assert checkpoint_steps(folder) == [*(files or before), 6]


def test_the_checkpoint_is_named_and_the_oldest_is_deleted(folder, warned):
    """And a later training goes on from there."""
    estimator = trained(folder)
    killed_before_naming_step_6(folder, estimator)
    estimator.train(input_fn, max_steps=6)
    assert state(folder) == named([4, 6])
    with open(f"{folder}/checkpoint", encoding="utf-8") as file:
        assert file.readline() == 'model_checkpoint_path: "model.ckpt-6"\n'
    assert sorted(
        {name.partition(".data")[0] for name in os.listdir(folder) if "ckpt" in name}
    ) == [
        *(f"model.ckpt-{step}{part}" for step in (4, 6) for part in ("", ".index", ".meta")),
    ]
    (doubt,) = [text for text in warned() if "state file" in text]
    assert "names model.ckpt-4, but model.ckpt-6 is later" in doubt
    estimator.train(input_fn, max_steps=6)
    assert len([text for text in warned() if "state file" in text]) == 1
    estimator.train(input_fn, max_steps=8)
    assert state(folder) == named([6, 8])
    assert checkpoint_steps(folder) == [6, 8]


def test_the_model_s_own_saver_keeps_as_many_as_it_says(folder):
    def fields(features, loss):
        return {"scaffold_fn": lambda: tf.train.Scaffold(saver=tf.train.Saver(max_to_keep=3))}

    estimator = trained(folder, make_model_fn(fields))
    killed_before_naming_step_6(folder, estimator, [0, 2, 4])
    estimator.train(input_fn, max_steps=6)
    assert state(folder) == named([2, 4, 6])
    assert checkpoint_steps(folder) == [2, 4, 6]


def test_nothing_is_deleted_if_the_saver_s_settings_are_not_known(folder):
    estimator = trained(folder, checkpoint_save_graph_def=False)
    killed_before_naming_step_6(folder, estimator)
    estimator.train(input_fn, max_steps=6)
    assert state(folder) == named([2, 4, 6])
    assert checkpoint_steps(folder) == [2, 4, 6]


def test_the_user_went_back_to_an_earlier_checkpoint(folder):
    estimator = trained(folder)
    estimator.train(input_fn, max_steps=6)
    tf.train.remove_checkpoint(f"{folder}/model.ckpt-6")
    estimator.train(input_fn, max_steps=4)
    assert state(folder) == named([4])


@pytest.mark.parametrize("meta", ["other hours", "torn", "empty"])
def test_nothing_is_deleted_that_may_be_kept_for_good(folder, meta):
    hours = 1e-9 if meta == "other hours" else 10_000
    estimator = trained(folder, keep_checkpoint_every_n_hours=hours)
    killed_before_naming_step_6(folder, estimator, files=[0, 2, 4] if hours < 1 else [2, 4])
    if meta != "other hours":
        os.truncate(f"{folder}/model.ckpt-6.meta", 0 if meta == "empty" else 1001)
    before = checkpoint_steps(folder)
    estimator.train(input_fn, max_steps=6)
    assert state(folder)[0] == "model.ckpt-6"
    assert checkpoint_steps(folder) == before


@pytest.mark.parametrize("content", [None, "", 'model_checkpoint_path: "mo'])
def test_a_state_file_that_is_lost_or_damaged_is_written_again(folder, content):
    estimator = trained(folder)
    estimator.train(input_fn, max_steps=4)
    os.remove(f"{folder}/checkpoint")
    if content is not None:
        with open(f"{folder}/checkpoint", "w", encoding="utf-8") as file:
            file.write(content)
    estimator.train(input_fn, max_steps=4)
    assert state(folder) == named([2, 4])
    assert checkpoint_steps(folder) == [2, 4]


def test_what_does_not_train_leaves_the_state_file_alone(folder):
    estimator = trained(folder)
    killed_before_naming_step_6(folder, estimator)
    estimator.evaluate(input_fn, steps=1)
    next(estimator.predict(input_fn))
    assert estimator.latest_checkpoint() == f"{folder}/model.ckpt-6"
    assert state(folder) == named([2, 4])


def test_a_checkpoint_in_another_directory_is_left_there(folder, tmp_path):
    trained(folder).train(input_fn, max_steps=4)
    before = sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(folder))
    other = tmp_path / "other"
    other.mkdir()
    text = f'model_checkpoint_path: "{folder}/model.ckpt-4"\n'
    (other / "checkpoint").write_text(text, encoding="utf-8")
    trained(str(other)).train(input_fn, max_steps=4)
    assert (other / "checkpoint").read_text(encoding="utf-8") == text
    assert sorted((e.name, e.stat().st_mtime_ns) for e in os.scandir(folder)) == before
