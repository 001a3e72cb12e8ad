"""Which checkpoint training starts from, and which one is never replaced by a worse one."""

import contextlib
import os
import pathlib
import shutil

import pytest
import tensorflow.compat.v1 as tf
from toy import (
    Visits,
    checkpoint_steps,
    ending_at,
    input_fn,
    make_estimator,
    make_model_fn,
    weight_at,
)

from bert_estimator import tpu
from bert_estimator.tpu.verbs import checkpoints


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns a folder with the checkpoints of steps 0, 2 and 4."""
    folder = tmp_path_factory.mktemp("trained")
    make_estimator(folder, save_checkpoints_steps=2).train(input_fn, steps=4)
    assert checkpoint_steps(folder) == [0, 2, 4]
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    """Returns a copy of the folder, for the test to damage."""
    return str(shutil.copytree(trained, tmp_path / "model"))


def file_times(folder, step):
    return os.stat(f"{folder}/model.ckpt-{step}.index").st_mtime_ns


def cut(suffix, length):
    def damage(folder):
        with open(f"{folder}/model.ckpt-4{suffix}", "r+b") as file:
            file.truncate(length if length >= 0 else os.path.getsize(file.name) + length)

    return damage


def overwrite(suffix, place):
    def damage(folder):
        path = f"{folder}/model.ckpt-4{suffix}"
        with open(path, "r+b") as file:
            data = bytearray(file.read())
            data[place] ^= 0xFF
            file.seek(0)
            file.write(data)

    return damage


def garbage(suffix):
    def damage(folder):
        with open(f"{folder}/model.ckpt-4{suffix}", "wb") as file:
            file.write(b"no checkpoint" * 50)

    return damage


def remove(*suffixes):
    def damage(folder):
        for suffix in suffixes:
            os.remove(f"{folder}/model.ckpt-4{suffix}")

    return damage


DATA, INDEX = ".data-00000-of-00001", ".index"


@pytest.mark.parametrize(
    "damage",
    [
        cut(DATA, -1),
        cut(DATA, 4),
        cut(DATA, 0),
        cut(INDEX, -1),
        cut(INDEX, 40),
        cut(INDEX, 0),
        overwrite(DATA, 0),
        overwrite(DATA, -1),
        overwrite(INDEX, 3),
        garbage(DATA),
        garbage(INDEX),
        remove(DATA),
        remove(INDEX),
    ],
    ids=lambda damage: damage.__qualname__.split(".")[0],
)
def test_a_checkpoint_that_is_not_whole_is_passed_over(folder, warned, damage):
    assert checkpoints.newest_whole(folder) == f"{folder}/model.ckpt-4"
    assert warned() == []
    damage(folder)
    assert checkpoints.newest_whole(folder) == f"{folder}/model.ckpt-2"
    (warning,) = warned()
    start = f"Checkpoint {folder}/model.ckpt-4 is not complete and is skipped; "
    assert warning.startswith(f"{start}{folder}/model.ckpt-2 is used: ")
    for _ in range(2):
        make_estimator(folder).evaluate(input_fn, steps=1)
    about = [text for text in warned() if "model.ckpt" in text]
    assert about == [warning]  # of all verbs together


def test_a_whole_checkpoint_is_read_once_until_it_changes(folder, monkeypatch):
    read = []
    load = tf.train.load_checkpoint
    monkeypatch.setattr(
        tf.train, "load_checkpoint", lambda prefix: read.append(prefix) or load(prefix)
    )
    monkeypatch.setattr(checkpoints, "_damages", {})
    for _ in range(3):
        assert checkpoints.newest_whole(folder) == f"{folder}/model.ckpt-4"
    assert read == [f"{folder}/model.ckpt-4"]
    os.utime(f"{folder}/model.ckpt-4{DATA}", (1, 1))
    assert checkpoints.newest_whole(folder) == f"{folder}/model.ckpt-4"
    assert len(read) == 2
    overwrite(DATA, -1)(folder)
    assert checkpoints.newest_whole(folder) == f"{folder}/model.ckpt-2"


def test_what_there_is_to_go_on_from(folder, warned):
    """Whatever the state file says of it."""
    os.truncate(f"{folder}/model.ckpt-4{DATA}", 1)
    expected = f"The last checkpoint, {folder}/model.ckpt-2, was written before."
    for change in (lambda path: None, lambda path: os.truncate(path, 0), os.remove):
        change(f"{folder}/checkpoint")
        assert checkpoints.last_written(folder) == expected


def test_several_may_be_damaged_but_not_all(folder, warned):
    for step in (4, 2):
        os.truncate(f"{folder}/model.ckpt-{step}{DATA}", 1)
    assert checkpoints.newest_whole(folder) == f"{folder}/model.ckpt-0"
    assert len(warned()) == 2
    os.truncate(f"{folder}/model.ckpt-0{INDEX}", 1)
    estimator = make_estimator(folder, predict_batch_size=4)
    listed = "".join(rf"\n  {folder}/model\.ckpt-{step}: .+" for step in (4, 2, 0))
    message = rf"^No checkpoint in {folder} is whole:{listed}\nPut back a copy of one, or remove"
    before = sorted(os.listdir(folder))
    for call in (
        estimator.global_step,
        lambda: estimator.train(input_fn, steps=1),
        lambda: estimator.evaluate(input_fn, steps=1),
        lambda: next(estimator.predict(input_fn)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert sorted(os.listdir(folder)) == before
    assert len(warned()) == 2 + 1  # the other: that no TPU was found


def test_the_only_one_cut_at_step_0_is_written_again(tmp_path, warned):
    with pytest.raises(tf.errors.OutOfRangeError):
        make_estimator(tmp_path, save_checkpoints_steps=2).train(ending_at(0), steps=2)
    assert checkpoint_steps(tmp_path) == [0]
    os.truncate(tmp_path / f"model.ckpt-0{DATA}", 1)
    make_estimator(tmp_path, save_checkpoints_steps=2).train(input_fn, steps=2)
    assert any(
        "ckpt-0 is not complete and is skipped; there is no other, so initial val" in w
        for w in warned()
    )
    assert checkpoints.damage(f"{tmp_path}/model.ckpt-0") is None
    assert weight_at(tmp_path, 2) == 2.0


def test_a_state_file_of_checkpoints_that_were_removed_starts_over(folder, warned):
    for step in (0, 2, 4):
        for suffix in (DATA, INDEX):
            os.remove(f"{folder}/model.ckpt-{step}{suffix}")
    assert checkpoints.newest_whole(folder) is None
    assert warned() == [
        f"The state file {folder}/checkpoint names model.ckpt-4, which is not there. No complete "
        "checkpoint lies beside it: variables have their initial values"
    ]


def state(folder, text):
    with open(f"{folder}/checkpoint", "w", encoding="utf-8") as file:
        file.write(text)


USED = "The newest complete checkpoint beside it is used: "


@pytest.mark.parametrize(
    ("content", "doubt"),
    [
        (b'model_checkpoint_path: "model.ckpt-2"\n', "names model.ckpt-2, but model.ckpt-4 is lat"),
        (b'model_checkpoint_path: "model.ckpt-6"\n', "names model.ckpt-6, which is not there"),
        (b'model_checkpoint_path: "/elsewhere/x"\n', "names x, which is not there"),
        (b'model_checkpoint_path: "a\\000b"\n', "names a\0b, which is not there"),
        (b'model_checkpoint_path: "gs:x://y"\n', "names y, which is not there"),
        (b"", "cannot be read"),
        (b"garbage {", "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"\0" * 1000, "cannot be read"),
    ],
)
def test_the_newest_complete_checkpoint_counts_whatever_the_state_file_says(
    folder, warned, content, doubt
):
    (pathlib.Path(folder) / "checkpoint").write_bytes(content)
    assert checkpoints.newest_whole(folder) == f"{folder}/model.ckpt-4"
    ours = [text for text in warned() if text.startswith("The state file")]
    assert len(ours) == 1
    assert ours[0].startswith(f"The state file {folder}/checkpoint {doubt}")
    assert ours[0].endswith(f". {USED}{folder}/model.ckpt-4")
    assert checkpoints.newest_whole(folder, quiet=True) == f"{folder}/model.ckpt-4"
    estimator = make_estimator(folder, save_checkpoints_steps=2, keep_checkpoint_max=3)
    assert estimator.latest_checkpoint() == f"{folder}/model.ckpt-4"
    before = file_times(folder, 4)
    estimator.train(input_fn, steps=2)
    assert weight_at(folder, 6) == 6.0
    assert file_times(folder, 4) == before
    # What it does not list is not deleted, but for a file that lists nothing at all.
    assert set(checkpoint_steps(folder)) >= {2, 4, 6}


def test_no_flipped_bit_of_the_state_file_goes_back(folder):
    """Nor does it start over; what was not chosen by the file is said."""
    path = pathlib.Path(folder) / "checkpoint"
    content = path.read_bytes()
    assert len(content) > 100
    chosen, silent = [], 0
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        chosen.append(checkpoints.newest_whole(folder))
        state = checkpoints._state(folder)
        is_as_it_was = state is not None and state.model_checkpoint_path == chosen[-1]
        silent += is_as_it_was
        prefixes, doubt = checkpoints._candidates(folder)
        assert (doubt is None) == is_as_it_was
        assert prefixes[0] == chosen[-1]
    assert set(chosen) == {f"{folder}/model.ckpt-4"}
    assert 0 < silent < len(chosen) / 2


def test_the_state_file_of_a_directory_that_was_moved(folder, tmp_path, warned):
    """Its paths may be absolute, as TF1's savers write them."""
    state(folder, f'model_checkpoint_path: "{folder}/model.ckpt-4"\n')
    moved = str(shutil.copytree(folder, tmp_path / "moved"))
    assert checkpoints.newest_whole(moved) == f"{moved}/model.ckpt-4"
    shutil.rmtree(folder)
    assert checkpoints.newest_whole(moved) == f"{moved}/model.ckpt-4"
    assert warned() == []


def test_a_directory_without_checkpoints_may_name_another_directory_s(folder, tmp_path, warned):
    pointing = str(tmp_path / "pointing")
    os.mkdir(pointing)
    state(pointing, f'model_checkpoint_path: "{folder}/model.ckpt-2"\n')
    assert checkpoints.newest_whole(pointing) == f"{folder}/model.ckpt-2"
    assert warned() == []


@pytest.mark.parametrize("named", ["my.ckpt-4", "mz.ckpt-4"])
def test_checkpoints_may_have_another_name(folder, named):
    for step in (0, 2, 4):
        for suffix in (DATA, INDEX):
            os.rename(f"{folder}/model.ckpt-{step}{suffix}", f"{folder}/my.ckpt-{step}{suffix}")
    state(folder, f'model_checkpoint_path: "{named}"\n')
    assert checkpoints.newest_whole(folder) == f"{folder}/my.ckpt-4"


def test_one_goes_back_by_removing_the_later_checkpoints(folder, warned):
    remove(DATA, INDEX)(folder)
    assert checkpoints.newest_whole(folder) == f"{folder}/model.ckpt-2"
    assert warned() == [
        f"The state file {folder}/checkpoint names model.ckpt-4, which is not there. "
        f"{USED}{folder}/model.ckpt-2"
    ]
    estimator = make_estimator(folder, save_checkpoints_steps=10)
    estimator.train(input_fn, steps=1)
    assert weight_at(folder, 3) == 3.0
    assert estimator.latest_checkpoint() == f"{folder}/model.ckpt-3"


def test_data_without_an_index_is_a_training_lost_not_one_to_start_over(folder):
    for step in (0, 2, 4):
        os.remove(f"{folder}/model.ckpt-{step}{INDEX}")
    for change in (lambda path: None, lambda path: os.truncate(path, 0), os.remove):
        change(f"{folder}/checkpoint")
        with pytest.raises(tpu.errors.NoWholeCheckpointError, match="No checkpoint in"):
            checkpoints.newest_whole(folder)


def test_what_names_the_newest_never_names_a_damaged_one(folder):
    overwrite(DATA, -1)(folder)
    estimator = make_estimator(folder, save_checkpoints_steps=10)
    assert estimator.latest_checkpoint() == f"{folder}/model.ckpt-2"
    assert estimator.get_variable_value("w") == 2.0


def test_a_checkpoint_that_the_state_file_does_not_list_can_stand_in(folder):
    state(folder, 'model_checkpoint_path: "model.ckpt-4"\n')
    os.truncate(f"{folder}/model.ckpt-4{DATA}", 1)
    assert checkpoints.newest_whole(folder) == f"{folder}/model.ckpt-2"


def test_without_a_state_file_the_highest_step_counts(folder, warned):
    os.remove(f"{folder}/checkpoint")
    for suffix in (DATA, INDEX):
        shutil.copy(f"{folder}/model.ckpt-4{suffix}", f"{folder}/model.ckpt-10{suffix}")
    open(f"{folder}/model.ckpt-best.index", "w").close()  # not ours: no step
    assert checkpoints.newest_whole(folder) == f"{folder}/model.ckpt-10"
    assert warned() == []


def test_a_saver_learns_which_checkpoints_are_there(folder):
    """The saver deletes the oldest checkpoints, and keeps checkpoints that are not listed."""
    saver = tf.train.Saver([tf.Variable(0)])

    def remembered():
        checkpoints.remember(saver, checkpoints.earlier(folder))
        return [int(path.rsplit("-", 1)[1]) for path in saver.last_checkpoints]

    assert remembered() == [0, 2, 4]
    listed = "".join(f'all_model_checkpoint_paths: "model.ckpt-{n}"\n' for n in (2, 2))
    state(folder, 'model_checkpoint_path: "model.ckpt-2"\n' + listed)
    assert remembered() == [2, 4]  # the last one was written, and then the process killed
    for change in (lambda path: os.truncate(path, 0), os.remove):
        change(f"{folder}/checkpoint")
        assert remembered() == [0, 2, 4]


def test_nothing_is_found_where_nothing_is(tmp_path):
    assert checkpoints.newest_whole(str(tmp_path)) is None
    assert checkpoints.newest_whole(str(tmp_path / "absent")) is None
    assert checkpoints.global_step_of(None) == 0


def test_the_global_step_is_read_from_the_checkpoint(folder, tmp_path):
    assert checkpoints.global_step_of(f"{folder}/model.ckpt-4") == 4
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("only", initializer=1.0)
        session.run(variable.initializer)
        path = tf.train.Saver().save(session, str(tmp_path / "without_step"))
    assert checkpoints.global_step_of(path) == 0


def test_training_goes_on_from_the_one_before_and_replaces_the_damaged_one(folder):
    os.truncate(f"{folder}/model.ckpt-4{DATA}", 1)
    visits = Visits()
    estimator = make_estimator(folder, save_checkpoints_steps=2, iterations_per_loop=1)
    estimator.train(input_fn, max_steps=4, hooks=[visits])
    assert visits.fetched == [(3, 3.0), (4, 4.0)]
    assert checkpoints.newest_whole(folder) == f"{folder}/model.ckpt-4"
    assert weight_at(folder, 4) == 4.0


# What fits.


def variables_of_another_model():
    return [
        tf.get_variable("w", [2]),
        tf.get_variable("new", [1]),
        tf.train.create_global_step(),
    ]


def test_what_does_not_fit_is_named_before_any_restore(folder):
    with tf.Graph().as_default(), pytest.raises(tf.errors.NotFoundError) as raised:
        checkpoints.check_restorable(f"{folder}/model.ckpt-4", variables_of_another_model())
    assert isinstance(raised.value, ValueError)
    assert str(raised.value) == (
        f"Checkpoint {folder}/model.ckpt-4 does not fit this model:\n"
        "  w: [2] in the model, [] in the checkpoint\n"
        "  new: not in the checkpoint\n"
        "Use the configuration it was written with, or another model_dir."
    )


def test_another_type_does_not_fit(folder):
    with tf.Graph().as_default(), pytest.raises(tf.errors.InvalidArgumentError) as raised:
        variables = [tf.get_variable("w", [], tf.bfloat16), tf.train.create_global_step()]
        checkpoints.check_restorable(f"{folder}/model.ckpt-4", variables)
    assert isinstance(raised.value, ValueError)
    assert "\n  w: bfloat16 in the model, float32 in the checkpoint\n" in str(raised.value)


@pytest.mark.parametrize(("dtype", "fits"), [(tf.bfloat16, True), (tf.float16, False)])
def test_only_bfloat16_may_be_rounded(folder, dtype, fits):
    with tf.Graph().as_default():
        variables = [tf.get_variable("w", [], dtype), tf.train.create_global_step()]
        with contextlib.nullcontext() if fits else pytest.raises(ValueError, match="w: float16 in"):
            checkpoints.check_restorable(f"{folder}/model.ckpt-4", variables, rounds=True)


@pytest.mark.parametrize("error", [ValueError, tf.errors.NotFoundError])  # the second is upstream's
@pytest.mark.parametrize("verb", ["train", "evaluate"])
def test_both_verbs_check(folder, verb, error):
    def model_fn(features, mode, params):
        spec = make_model_fn()(features, mode, params)
        tf.get_variable("new", [1])
        return spec

    estimator = make_estimator(folder, model_fn)
    with pytest.raises(error, match=r"does not fit this model:\n  new: not in the checkp"):
        getattr(estimator, verb)(input_fn, steps=1)


def test_a_saver_of_the_user_restores_what_it_saves(folder):
    def model_fn(features, mode, params):
        spec = make_model_fn()(features, mode, params)
        new = tf.get_variable("new", initializer=7.0)
        saved = [v for v in tf.global_variables() if v.op.name != "new"]

        def scaffold_fn():
            return tf.train.Scaffold(
                saver=tf.train.Saver(saved, save_relative_paths=True),
                ready_for_local_init_op=tf.zeros([0], tf.string),
                local_init_op=new.initializer,
            )

        return spec._replace(scaffold_fn=scaffold_fn)

    make_estimator(folder, model_fn).train(input_fn, steps=2)
    assert weight_at(folder, 6) == 6.0
    assert "new" not in dict(tf.train.list_variables(folder))


def test_the_parts_of_a_partitioned_variable_fit_the_whole(tmp_path):
    def model_fn(features, mode, params):
        with tf.variable_scope("", partitioner=params["partitioner"]):
            tf.get_variable("table", [4, 3])
        return make_model_fn()(features, mode, params)

    values = []
    for partitioner in (tf.fixed_size_partitioner(2), tf.fixed_size_partitioner(2), None):
        params = {"partitioner": partitioner}
        estimator = make_estimator(tmp_path, model_fn, params=params)
        estimator.train(input_fn, steps=2)
        values.append(estimator.get_variable_value("table").tolist())
    assert dict(tf.train.list_variables(str(tmp_path)))["table"] == [4, 3]
    assert checkpoint_steps(tmp_path) == [0, 2, 4, 6]
    assert values[0] == values[1] == values[2]
