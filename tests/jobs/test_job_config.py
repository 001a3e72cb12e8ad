"""The flags that scripts share: defaults, checks, and what they come to."""

import inspect

import pytest
from scripts import CLASSIFIER, PRETRAINING, SQUAD

from bert_estimator import optimization
from bert_estimator.command_line import flags, provenance
from bert_estimator.command_line.choices import OPTIMIZER_NAMES
from bert_estimator.command_line.flags import FlagError
from bert_estimator.command_line.provenance import read_command_line
from bert_estimator.jobs.fine_tuning import classification_config, question_answering_config
from bert_estimator.jobs.fine_tuning.classification_config import ClassificationConfig
from bert_estimator.jobs.groups import Cores, TrainingFlags
from bert_estimator.jobs.job_config import JobConfig
from bert_estimator.jobs.pretraining import pretraining_config

GOOD = dict(
    train_batch_size=32,
    eval_batch_size=8,
    save_checkpoints_steps=1000,
    iterations_per_loop=100,
    micro_batch_size=None,
    num_tpu_cores=None,
    num_cores_per_replica=1,
    learning_rate=1e-4,
    precision="bfloat16",
    optimizer="lamb",
    random_seed=0,
    bert_config_file=None,
    init_checkpoint=None,
    tpu_name=None,
    use_tpu=True,
    do_train=True,
    do_eval=True,
    sources={"eval_batch_size": provenance.FLAG},
)


def job_config(sources=None, **values):
    return flags.build(JobConfig, values, sources=sources or {})


@pytest.mark.parametrize(
    ("script", "resolve"),
    [
        (PRETRAINING, pretraining_config.resolve),
        (CLASSIFIER, classification_config.resolve),
        (SQUAD, question_answering_config.resolve),
    ],
    ids=["run_pretraining", "run_classifier", "run_squad"],
)
def test_a_file_of_flags_is_a_command_line(tmp_path, script, resolve):
    script.write_data(tmp_path)
    arguments = script.flags(tmp_path, tmp_path / "run", train_batch_size=24)
    file = tmp_path / "flags.txt"
    file.write_text("# a run\n" + "\n".join(arguments) + "\n")
    (config,) = resolve([script.name, *arguments])
    (from_file,) = resolve([script.name, f"--flagfile={file}"])
    assert from_file == config
    assert (config.training.train_batch_size, config.sources["use_tpu"]) == (24, provenance.FLAG)
    file.write_text(file.read_text() + "--precision=fp16\n")
    with pytest.raises(FlagError, match=r"^--precision=fp16: must be one of float32, bfloat16$"):
        resolve([script.name, f"--flagfile={file}"])


def test_defaults_are_those_of_google_research_bert():
    settings, sources = read_command_line(JobConfig, ["script"])
    assert set(sources.values()) == {provenance.DEFAULT}
    expected = {
        "output_dir": "runs/here",
        "train_batch_size": 32,
        "eval_batch_size": 8,
        "learning_rate": 5e-5,
        "save_checkpoints_steps": 1000,
        "iterations_per_loop": 1000,
        "use_tpu": False,
        "precision": "float32",
        "random_seed": 12345,
        "max_seq_length": 128,
    }
    assert {name: settings[name] for name in expected} == expected


def test_settings_leave_out_flags_that_ask_for_something_else_than_a_run():
    settings, _ = read_command_line(JobConfig, ["script", "--learning_rate=1"])
    kept = job_config(**settings).settings()
    others = {"config": None, "compile_only": False, "tpu_topology": None, "take_over": False}
    assert settings == {**kept, **others}
    assert kept["learning_rate"] == 1.0


def test_a_resumed_run_may_differ_in_what_does_not_change_a_step():
    config = job_config(**GOOD)
    assert config.settings().keys() - config.settings_to_go_on().keys() == {
        "output_dir", "do_train", "do_eval", "eval_batch_size", "save_checkpoints_steps",
        "iterations_per_loop", "log_every_secs", "use_tpu", "tpu_name", "num_tpu_cores",
        "num_cores_per_replica", "host_wait_secs", "report_to", "max_rollbacks", "eval_steps",
        "keep_best_checkpoint", "early_stopping_patience",
    }  # fmt: skip
    assert config.settings_to_go_on()["learning_rate"] == 1e-4


def test_good_values_pass(tmp_path):
    (tmp_path / "bert_config.json").write_text("{}")
    (tmp_path / "model.ckpt.index").write_text("")
    for changes in (
        {},
        {"micro_batch_size": 8, "num_tpu_cores": 4},
        {"micro_batch_size": 16, "num_tpu_cores": 4},
        {"num_tpu_cores": 16, "num_cores_per_replica": 2},
        {"bert_config_file": str(tmp_path / "bert_config.json")},
        {"bert_config_file": "gs://bucket/bert_config.json"},
        {"init_checkpoint": str(tmp_path / "model.ckpt")},
        {"init_checkpoint": str(tmp_path)},
        {"init_checkpoint": str(tmp_path / "bert_config.json")},
        {"init_checkpoint": "gs://bucket/model.ckpt"},
        {"tpu_name": "pod"},
        # What no flag gives is made to fit, and a batch that is not drawn need not.
        {"num_tpu_cores": 16, "sources": {}},
        {"num_tpu_cores": 8, "train_batch_size": 31, "do_train": False},
        {"num_tpu_cores": 4, "micro_batch_size": 5, "do_train": False},
        # The cores of a name are found later: 5 may be a core's whole share.
        {"tpu_name": "rehearse:8", "micro_batch_size": 5},
        {"micro_batch_size": 5},
        # Cores are asked for only on a TPU.
        {"use_tpu": False, "num_tpu_cores": 3},
    ):
        job_config(**{**GOOD, **changes}).check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eval_batch_size": -1}, "--eval_batch_size=-1: must be positive"),
        ({"eval_steps": 0}, "--eval_steps=0: must be positive"),
        ({"log_every_secs": -1.0}, "--log_every_secs=-1.0: must be 0 or a positive number"),
        ({"log_every_secs": float("inf")}, "--log_every_secs=inf: must be 0 or a positive number"),
        (
            {"micro_batch_size": 6, "num_tpu_cores": 4},
            "--micro_batch_size=6: must divide 8, a core's share of --train_batch_size=32",
        ),
        (
            {"num_tpu_cores": 8, "num_cores_per_replica": 3},
            "--num_cores_per_replica=3: must be one of 1, 2, 4, 8",
        ),
        (
            {"num_tpu_cores": 32, "num_cores_per_replica": 2},
            "--eval_batch_size=8: must be a multiple of --num_tpu_cores=32 over "
            "--num_cores_per_replica=2",
        ),
        (
            {"num_tpu_cores": 16},
            "--eval_batch_size=8: must be a multiple of --num_tpu_cores=16",
        ),
        (
            {"tpu_name": "pod", "use_tpu": False},
            "--tpu_name=pod: names a TPU, but --use_tpu is not given; add it",
        ),
    ],
)
def test_bad_values(changes, message):
    with pytest.raises(FlagError) as error:
        job_config(**{**GOOD, **changes}).check()
    assert str(error.value).startswith(message)


def test_batches_that_no_flag_gives_become_multiples_of_the_cores():
    sizes = dict(eval_batch_size=8, predict_batch_size=24)
    config = flags.build(ClassificationConfig, sizes)
    given = flags.changed(config, sources={"predict_batch_size": provenance.FLAG})
    for before, replicas, expected in (
        (config, 8, (8, 24)),
        (config, 3, (9, 24)),
        (given, 2048, (2048, 24)),
    ):
        fitted = before.fitted(Cores("", replicas, "some cores"))
        assert fitted.batch_sizes() == dict(zip(config.batch_sizes(), (32, *expected), strict=True))
    assert (config.fixed_batches(), given.fixed_batches()) == ((), ("predict_batch_size",))
    training = flags.changed(given, do_train=True)
    assert training.fixed_batches() == ("train_batch_size", "predict_batch_size")


@pytest.mark.parametrize("name", OPTIMIZER_NAMES)
def test_weight_decay_is_of_optimizers_that_have_it(name):
    """The default is what they have without the flag; 0 turns it off."""
    has_it = name != "adafactor"
    options = [
        TrainingFlags(optimizer=name, **decay).optimizer_options()
        for decay in ({}, {"weight_decay": 0.0})
    ]
    assert options == [{"weight_decay_rate": rate} if has_it else {} for rate in (0.01, 0.0)]
    signature = inspect.signature(optimization.OPTIMIZERS[name])
    assert not has_it or signature.parameters["weight_decay_rate"].default == 0.01
    given = {"weight_decay": provenance.FLAG}
    asked = job_config(**{**GOOD, "optimizer": name, "weight_decay": 0.01, "sources": given})
    if has_it:
        asked.check()
    else:
        rule = "--weight_decay=0.01: needs --optimizer=lamb or adamw or lars, not adafactor"
        with pytest.raises(FlagError, match=rule):
            asked.check()
