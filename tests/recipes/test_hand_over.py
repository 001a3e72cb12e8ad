"""Runs both stages of a recipe, and tests how the second starts, also after kills."""

import json
import os
import signal
import subprocess
import sys
import time

import forked
import numpy as np
import pytest
from kills import Killed, kill_at_transfer
from tiny_run import bert_config, metrics_of, variables_of, words, write_records

import run_pretraining
from bert_estimator.storage import remote

SLOTS = ("adam_m", "adam_v")
STEPS, WARMUP = 6, 2


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """Returns the command line of a recipe with two stages of six steps on records of 16 tokens."""
    path = tmp_path_factory.mktemp("data")
    vocabulary = words(40)
    write_records(path, "16.tfrecord", vocabulary, num_sentences=9, max_predictions_per_seq=3)
    (path / "bert_config.json").write_text(json.dumps(bert_config(len(vocabulary))))
    return [
        "--recipe=lamb_76min",
        "--scale=smoke",
        f"--input_file={path}/{{max_seq_length}}.tfrecord",
        f"--bert_config_file={path}/bert_config.json",
        "--max_seq_length=16",
        "--max_predictions_per_seq=3",
        "--train_batch_size=8",
        "--micro_batch_size=4",
        f"--num_train_steps={STEPS}",
        f"--num_warmup_steps={WARMUP}",
        "--save_checkpoints_steps=2",
        "--iterations_per_loop=1",
        "--do_train",
        "--use_tpu",
    ]


def run(flags, output_dir):
    argv = ["run_pretraining.py", *flags, f"--output_dir={output_dir}"]
    assert run_pretraining.main(argv) == 0


def variables(output_dir, stage, step):
    return variables_of(output_dir / f"stage_{stage}", step)


@pytest.fixture(scope="module")
def finished(flags, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("finished")
    run(flags, output_dir)
    return output_dir


def test_the_second_stage_starts_from_the_weights_alone(finished):
    last, first = variables(finished, 1, STEPS), variables(finished, 2, 0)
    assert set(last) == set(first)
    assert (last["global_step"], first["global_step"]) == (STEPS, 0)
    for name, value in first.items():
        if name.rsplit("/", 1)[-1] in SLOTS:
            assert not np.any(value) and np.any(last[name]), name
        elif name != "global_step":
            np.testing.assert_array_equal(value, last[name], err_msg=name)


@pytest.mark.parametrize("stage", [1, 2])
def test_each_stage_has_its_own_schedule(finished, stage):
    records = metrics_of(finished / f"stage_{stage}")
    rates = {r["step"]: r["learning_rate"] for r in records if "learning_rate" in r}
    # The plan's peaks are 6e-3 and 4e-3 at batches of 65536 and 32768; here they are scaled to the
    # batches 64 and 32.
    peak = {1: 6e-3, 2: 4e-3}[stage] / 32
    expected = [0.0, peak / 2, peak, peak * 3 / 4, peak / 2, peak / 4]
    assert [rates[step] for step in range(1, STEPS + 1)] == pytest.approx(expected, rel=1e-5)


def test_config_json_says_where_values_came_from(finished):
    config = json.loads((finished / "stage_2" / "config.json").read_text())["flags"]
    assert config["optimizer"] == {"value": "lamb", "from": "lamb_76min: paper"}
    assert config["learning_rate"]["from"] == "lamb_76min: assumed, scaled from 0.004"
    assert config["train_batch_size"] == {"value": 8, "from": "flag"}
    assert config["init_checkpoint"]["value"].endswith(f"stage_1/model.ckpt-{STEPS}")


def test_run_again_nothing_is_left_to_do(finished, flags, capsys):
    before = variables(finished, 2, STEPS)
    run(flags, finished)
    assert capsys.readouterr().out.count("Nothing left to train") == 2
    after = variables(finished, 2, STEPS)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_what_is_wrong_with_the_second_stage_is_found_before_the_first_trains(tmp_path, capsys):
    vocabulary = words(40)
    for length, predictions in ((32, 5), (128, 4)):  # stage 2 would have 19
        write_records(tmp_path, f"{length}", vocabulary, 9, predictions, length)
    config = bert_config(len(vocabulary), max_position_embeddings=128)
    (tmp_path / "bert_config.json").write_text(json.dumps(config))
    argv = ["run_pretraining.py", "--recipe=lamb_76min", "--scale=smoke", "--do_train"]
    argv += [f"--input_file={tmp_path}/{{max_seq_length}}", f"--output_dir={tmp_path}/run"]
    argv += [f"--bert_config_file={tmp_path}/bert_config.json"]
    assert run_pretraining.main(argv) == 2
    assert "--input_file: " in (printed := capsys.readouterr().err) and "19" in printed
    assert not list(tmp_path.glob("run/stage_1/model.ckpt*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "there",
    [
        "stage_1/model.ckpt-2.index",
        f"stage_1/model.ckpt-{STEPS}.index",
        "stage_2/model.ckpt-2.index",
    ],
)
def test_killed_it_goes_on_to_the_same_weights(finished, flags, tmp_path, there):
    """SIGKILL arrives within the first stage, at the hand-over, and within the second stage."""
    script = os.path.abspath(run_pretraining.__file__)
    process = forked.start(
        [sys.executable, script, *flags, f"--output_dir={tmp_path}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 300
    while not (tmp_path / there).exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / f"stage_2/model.ckpt-{STEPS}.index").exists()
    forked.run(
        [sys.executable, script, *flags, f"--output_dir={tmp_path}"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    expected, found = variables(finished, 2, STEPS), variables(tmp_path, 2, STEPS)
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.fixture(scope="module")
def num_uploads(flags, tmp_path_factory):
    """Returns how many uploads a recipe has that is not killed."""
    with pytest.MonkeyPatch.context() as patched:
        calls = kill_at_transfer(patched)
        run(flags, f"ram:/{tmp_path_factory.mktemp('not_killed')}/run")
        return len(calls)


@pytest.mark.slow
@pytest.mark.parametrize("percent", [25, 62, 80, 98])
def test_killed_in_remote_storage_it_goes_on_to_the_same_weights(
    finished, flags, num_uploads, tmp_path, monkeypatch, percent
):
    url = f"ram:/{tmp_path}/run"
    with monkeypatch.context() as patched:
        kill_at_transfer(patched, num_uploads * percent // 100)
        with pytest.raises(Killed):
            run(flags, url)
    run([*flags, "--take_over"], url)
    for name in remote.files(url):
        remote.download(f"{url}/{name}", str(tmp_path / "copy" / name))
    for stage in (1, 2):
        expected = variables(finished, stage, STEPS)
        found = variables(tmp_path / "copy", stage, STEPS)
        assert found.keys() == expected.keys()
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])
