"""Tests what the flags of run_pretraining.py come to, with a recipe and without."""

import json
import os
import pathlib

import pytest

from bert_estimator.command_line import provenance
from bert_estimator.command_line.flags import FlagError
from bert_estimator.command_line.provenance import Origin, Provenance
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs.pretraining.pretraining_config import resolve


def stages(tmp_path, *flags):
    return resolve(["run_pretraining.py", f"--output_dir={tmp_path}", *flags])


def test_a_recipe_s_stages_follow_each_other(tmp_path):
    first, second = stages(tmp_path, "--recipe=lamb_76min")
    assert (first.output_dir, second.output_dir) == (f"{tmp_path}/stage_1", f"{tmp_path}/stage_2")
    assert (first.stage, second.stage) == (1, 2)
    assert first.network.init_checkpoint is None
    assert second.network.init_checkpoint == f"{tmp_path}/stage_1/model.ckpt-7037"
    assert (first.training.train_batch_size, second.training.train_batch_size) == (65536, 32768)
    assert first.do_train and first.do_eval and first.training.optimizer == "lamb"


def test_every_value_says_where_it_came_from(tmp_path):
    first, second = stages(tmp_path, "--recipe=lamb_76min", "--scale=smoke", "--random_seed=3")
    recipe = "lamb_76min"
    assert first.sources["train_batch_size"] == Provenance(Origin.PAPER, recipe, scaled_from=65536)
    scaled = Provenance(Origin.ASSUMED, recipe, scaled_from=77)
    assert second.sources["max_predictions_per_seq"] == scaled
    assert first.sources["optimizer"] == Provenance(Origin.PAPER, recipe)
    assert first.sources["bert_config"] == Provenance(Origin.SCALED, recipe)
    assert second.sources["init_checkpoint"] == Provenance(Origin.STAGE, recipe, stage=1)
    assert first.sources["random_seed"] == provenance.FLAG
    assert first.sources["eval_batch_size"] == provenance.DEFAULT
    described = first.described()
    assert "  --train_batch_size=64  (lamb_76min: paper, scaled from 65536)" in described
    assert "random_seed" not in described


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("train_batch_size", 1024), ("learning_rate", 0.25), ("num_train_steps", 4000),
        ("num_warmup_steps", 7), ("optimizer", "adamw"), ("precision", "float32"),
        ("max_seq_length", 256), ("max_predictions_per_seq", 9), ("micro_batch_size", 8),
        ("learning_rate_decay_power", 2.0), ("legacy_schedule_jump", True),
        ("save_checkpoints_steps", 11), ("iterations_per_loop", 5), ("weight_decay", 0.05),
        ("trainable", "last:4"), ("layerwise_lr_decay", 0.5),
    ],
)  # fmt: skip
def test_flags_override_the_recipe_in_every_stage(tmp_path, flag, value):
    for config in stages(tmp_path, "--recipe=lamb_76min", f"--{flag}={value}"):
        assert config.settings()[flag] == value
        assert config.sources[flag] == provenance.FLAG


def test_the_weight_decay_of_a_recipe_is_left_out_for_an_optimizer_without_it(tmp_path):
    first, _ = stages(tmp_path, "--recipe=lamb_76min")
    assert "  --weight_decay=0.01  (lamb_76min: paper)" in first.described()
    assert first.training.optimizer_options()["weight_decay_rate"] == 0.01
    first, _ = stages(tmp_path, "--recipe=lamb_76min", "--optimizer=adafactor")
    assert "weight_decay_rate" not in first.training.optimizer_options()


def test_a_flag_can_be_for_one_stage(tmp_path):
    (config,) = stages(tmp_path, "--recipe=lamb_76min", "--stage=1", "--learning_rate=5e-3")
    assert config.stage == 1 and config.training.learning_rate == 5e-3


def test_the_config_of_a_stage_repeats_this_stage(tmp_path):
    (alone,) = stages(tmp_path, "--recipe=lamb_76min", "--stage=2", "--init_checkpoint=")
    _, of_all = stages(tmp_path, "--recipe=lamb_76min")
    for stage in (alone, of_all):
        RunDirectory(str(tmp_path)).write_config(stage.settings(), stage.sources, "digest")
        (again,) = stages(tmp_path, f"--config={tmp_path}/config.json", "--init_checkpoint=")
        assert again.stage == 2


def finished(tmp_path, num_train_steps):
    """As a run of stage 1 with so many steps leaves it."""
    first = tmp_path / "stage_1"
    first.mkdir()
    flags = {"num_train_steps": {"value": num_train_steps, "from": "flag"}}
    (first / "config.json").write_text(json.dumps({"flags": flags}))
    (first / f"model.ckpt-{num_train_steps}.index").write_text("")
    return f"{first}/model.ckpt-{num_train_steps}"


def test_a_stage_alone_starts_from_where_the_one_before_it_ended(tmp_path):
    checkpoint = finished(tmp_path, 5000)
    (config,) = stages(tmp_path, "--recipe=lamb_76min", "--stage=2", "--num_train_steps=1000")
    assert config.network.init_checkpoint == checkpoint
    assert config.sources["init_checkpoint"] == Provenance(Origin.STAGE, "lamb_76min", stage=1)


def test_a_given_checkpoint_is_what_the_first_stage_of_a_run_starts_from(tmp_path):
    (tmp_path / "own.index").write_text("")
    given = ["--recipe=lamb_76min", f"--init_checkpoint={tmp_path}/own"]
    first, second = stages(tmp_path / "run", *given)
    assert first.network.init_checkpoint == f"{tmp_path}/own"
    assert second.network.init_checkpoint == f"{tmp_path}/run/stage_1/model.ckpt-7037"
    (config,) = stages(tmp_path / "run", *given, "--stage=2")
    assert config.network.init_checkpoint == f"{tmp_path}/own"
    assert config.sources["init_checkpoint"] == provenance.FLAG
    (config,) = stages(tmp_path / "run", "--recipe=lamb_76min", "--stage=2", "--init_checkpoint=")
    assert config.network.init_checkpoint is None


def test_a_run_may_be_moved_and_its_directory_be_written_otherwise(tmp_path, monkeypatch):
    _, second = stages(tmp_path / "run", "--recipe=lamb_76min")
    second.open_directory().write_config(second.settings(), second.sources, None)
    os.rename(tmp_path / "run", tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    _, second = stages("moved", "--recipe=lamb_76min")
    pathlib.Path("moved/stage_2/model.ckpt-0.index").touch()
    RunDirectory(second.output_dir).check_config(second.settings_to_go_on())
    assert "--init_checkpoint=moved/stage_1/model.ckpt-7037 " in second.described()


def test_a_program_is_of_one_stage(tmp_path):
    program = f"--export_program={tmp_path}/program"
    with pytest.raises(FlagError, match=r"^--export_program=.*: needs --stage: each stage of a"):
        stages(tmp_path, "--recipe=lamb_76min", "--use_tpu", program)
    (config,) = stages(tmp_path, "--recipe=lamb_76min", "--use_tpu", program, "--stage=1")
    assert config.export_program == f"{tmp_path}/program"


def test_the_recipe_goes_on_the_paper_s_pod(tmp_path):
    """Its evaluation batch is not given, and grows with the cores."""
    pod = ["--recipe=lamb_76min", "--use_tpu", "--num_tpu_cores=2048"]
    assert [config.devices.num_tpu_cores for config in stages(tmp_path, *pod)] == [2048, 2048]
    with pytest.raises(FlagError, match="--eval_batch_size=64: must be a multiple of --num_tpu_c"):
        stages(tmp_path, *pod, "--eval_batch_size=64")


def test_the_network_is_large_with_a_published_vocabulary_unless_trained_on_the_embedded_corpus(
    tmp_path,
):
    compiled = stages(
        tmp_path / "run",
        "--recipe=lamb_76min",
        "--use_tpu",
        "--compile_only",
        "--tpu_topology=v3:32x32",
    )
    for config in compiled:
        assert config.bert_config["vocab_size"] == 30522
        assert config.bert_config["num_hidden_layers"] == 24
        assert not config.embedded
        assert config.network.init_checkpoint is None
    assert stages(tmp_path / "run", "--recipe=lamb_76min")[0].bert_config["vocab_size"] == 2000
    (tmp_path / "c.json").write_text("{}")
    own = stages(tmp_path / "run", "--recipe=lamb_76min", f"--bert_config_file={tmp_path}/c.json")
    assert own[0].bert_config is None


def test_each_stage_has_records_of_its_length(tmp_path):
    for length in (128, 512):
        (tmp_path / f"{length}.tfrecord").write_text("")
    first, second = stages(
        tmp_path / "run",
        "--recipe=lamb_76min",
        f"--input_file={tmp_path}/{{max_seq_length}}.tfrecord",
    )
    assert first.data.input_file == f"{tmp_path}/128.tfrecord"
    assert second.data.input_file == f"{tmp_path}/512.tfrecord"
    assert not first.embedded and first.bert_config["vocab_size"] == 30522


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--recipe=lamb_67min"], "--recipe=lamb_67min: must be one of .*did you mean lamb_76min"),
        (["--recipe=lamb_76min", "--scale=2"], "--scale=2: must be smoke, or a number above 0"),
        (["--recipe=lamb_76min", "--stage=3"], "--stage=3: lamb_76min has the stages 1, 2"),
        (
            ["--recipe=lamb_76min", "--stage=2"],
            "--stage=2: starts from .*stage_1/model.ckpt-7037, which is not there; run --stage=1 "
            r"first, or give --init_checkpoint \(empty: from scratch\)",
        ),
        (
            ["--recipe=lamb_76min", "--num_train_steps=100"],
            "--num_warmup_steps=2000: must be from 0 to --num_train_steps=100",
        ),
        (
            ["--recipe=lamb_76min", "--input_file=no/{max_seq_length}.tfrecord"],
            "--input_file=no/128.tfrecord: no file matches",
        ),
        (
            ["--recipe=lamb_76min", "--early_stopping_patience=2"],
            "--early_stopping_patience=2: cannot go with --recipe",
        ),
    ],
)
def test_refuses(tmp_path, flags, message):
    with pytest.raises(FlagError, match=message):
        stages(tmp_path, *flags)


@pytest.mark.parametrize(
    ("given", "warmup", "source"),
    [
        ([], 60, "embedded default"),
        (["--num_train_steps=61"], 60, "embedded default"),
        (["--num_train_steps=60"], 3, "embedded default, scaled from 60"),
        (["--num_train_steps=8"], 0, "embedded default, scaled from 60"),
        (["--num_train_steps=8", "--num_warmup_steps=7"], 7, "flag"),
        (["--bert_config_file=FILE"], 10000, "default"),
        (["--bert_config_file=FILE", "--num_train_steps=50"], 5, "default, scaled from 10000"),
    ],
)
def test_a_default_warm_up_fits_into_a_short_training(tmp_path, given, warmup, source):
    network = tmp_path / "bert_config.json"
    network.write_text("{}")
    if given[:1] == ["--bert_config_file=FILE"]:
        given = [f"--bert_config_file={network}", f"--input_file={network}", *given[1:]]
    (config,) = resolve(["script", f"--output_dir={tmp_path / 'run'}", *given])
    assert config.training.num_warmup_steps == warmup
    assert str(config.sources["num_warmup_steps"]) == source
