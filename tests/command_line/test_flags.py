"""The shared flags' definitions and checks. The scripts' own are in their tests."""

import types

import pytest
from absl import flags as absl_flags

from bert_estimator.command_line import flags

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
    sources={"eval_batch_size": "flag"},
)


def defined():
    values = absl_flags.FlagValues()
    flags.define(values, output_dir="runs/here")
    return values


def test_defaults_are_those_of_google_research_bert():
    values = defined()
    assert flags.parse(values, ["script"]) == set()
    assert {name: values[name].value for name in values} == {
        "output_dir": "runs/here",
        "bert_config_file": None,
        "init_checkpoint": None,
        "allow_partial_init": False,
        "do_train": None,
        "do_eval": None,
        "train_batch_size": 32,
        "eval_batch_size": 8,
        "learning_rate": 5e-5,
        "save_checkpoints_steps": 1000,
        "iterations_per_loop": 1000,
        "use_tpu": False,
        "tpu_name": None,
        "num_tpu_cores": None,
        "num_cores_per_replica": 1,
        "precision": "float32",
        "optimizer": None,
        "micro_batch_size": None,
        "recompute": False,
        "use_one_hot_embeddings": False,
        "random_seed": 12345,
    }


def test_parse_returns_the_flags_given():
    values = defined()
    given = flags.parse(values, ["script", "--learning_rate=1e-3", "--nouse_tpu", "--do_eval"])
    assert given == {"learning_rate", "use_tpu", "do_eval"}
    assert values["learning_rate"].value == 1e-3
    assert values["use_tpu"].value is False


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--learning_rat=1", r"^--learning_rat: no such flag; did you mean --learning_rate\?$"),
        ("--train_batch_size=8.5", r"^--train_batch_size=8.5: must be a whole number$"),
        ("--train_batch_size=", r"^--train_batch_size=: must be a whole number$"),
        ("--learning_rate=1: 2", r"^--learning_rate=1: must be a number$"),
        ("--use_tpu=maybe", r"^--use_tpu=maybe: must be true or false$"),
        ("--learning_rate", r"Missing value for flag --learning_rate"),
        ("data", r"^'data' is no flag: flags are written --name=value$"),
    ],
)
def test_what_cannot_be_parsed(argument, message):
    with pytest.raises(flags.FlagError, match=message):
        flags.parse(defined(), ["script", argument])


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
        # Cores are asked for only where there are some.
        {"use_tpu": False, "num_tpu_cores": 3},
    ):
        flags.check_common(types.SimpleNamespace(**{**GOOD, **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_batch_size": 0}, "--train_batch_size=0: must be positive"),
        ({"eval_batch_size": -1}, "--eval_batch_size=-1: must be positive"),
        ({"save_checkpoints_steps": 0}, "--save_checkpoints_steps=0: must be positive"),
        ({"iterations_per_loop": -5}, "--iterations_per_loop=-5: must be positive"),
        ({"micro_batch_size": 0}, "--micro_batch_size=0: must be positive"),
        ({"num_tpu_cores": -8}, "--num_tpu_cores=-8: must be positive"),
        ({"learning_rate": 0.0}, "--learning_rate=0.0: must be a positive number"),
        ({"learning_rate": float("nan")}, "--learning_rate=nan: must be a positive number"),
        ({"learning_rate": float("inf")}, "--learning_rate=inf: must be a positive number"),
        (
            {"precision": "bfloat"},
            "--precision=bfloat: must be one of float32, bfloat16; did you mean bfloat16?",
        ),
        ({"optimizer": "sgd"}, "--optimizer=sgd: must be one of lamb, adamw, lars, adafactor"),
        ({"random_seed": -1}, "--random_seed=-1: must be from 0 to 2147483647"),
        ({"random_seed": 2**31}, "--random_seed=2147483648: must be from 0 to 2147483647"),
        ({"micro_batch_size": 5}, "--micro_batch_size=5: must divide --train_batch_size=32"),
        (
            {"micro_batch_size": 6, "num_tpu_cores": 4},
            "--micro_batch_size=6: must divide 8, a core's share of --train_batch_size=32",
        ),
        ({"num_cores_per_replica": 0}, "--num_cores_per_replica=0: must be positive"),
        (
            {"num_tpu_cores": 8, "num_cores_per_replica": 3},
            "--num_cores_per_replica=3: must divide --num_tpu_cores=8",
        ),
        (
            {"num_tpu_cores": 32, "num_cores_per_replica": 2},
            "--eval_batch_size=8: must be a multiple of --num_tpu_cores=32 over "
            "--num_cores_per_replica=2",
        ),
        (
            {"num_tpu_cores": 3},
            "--train_batch_size=32: must be a multiple of --num_tpu_cores=3",
        ),
        (
            {"num_tpu_cores": 16},
            "--eval_batch_size=8: must be a multiple of --num_tpu_cores=16",
        ),
        ({"bert_config_file": "no.json"}, "--bert_config_file=no.json: there is no such file"),
        (
            {"init_checkpoint": "no.ckpt"},
            "--init_checkpoint=no.ckpt: there is no such checkpoint. Give the path without .index",
        ),
        (
            {"tpu_name": "pod", "use_tpu": False},
            "--tpu_name=pod: names a TPU, but --use_tpu is not given; add it",
        ),
    ],
)
def test_bad_values(changes, message):
    with pytest.raises(flags.FlagError) as error:
        flags.check_common(types.SimpleNamespace(**{**GOOD, **changes}))
    assert str(error.value).startswith(message)


def test_batches_that_no_flag_gives_become_multiples_of_the_cores():
    sizes = dict(eval_batch_size=8, predict_batch_size=24)
    config = types.SimpleNamespace(**sizes, sources={"eval_batch_size": "default"})
    assert flags.whole_batches(config, 8) == sizes
    assert flags.whole_batches(config, 3) == {"eval_batch_size": 9, "predict_batch_size": 24}
    config.sources["predict_batch_size"] = "flag"
    assert flags.whole_batches(config, 2048) == {"eval_batch_size": 2048}


def test_patterns(tmp_path):
    for name in ("train-0", "train-1"):
        (tmp_path / name).write_text("")
    flags.check_patterns("input_file", None)
    flags.check_patterns("input_file", f"{tmp_path}/train-*,{tmp_path}/train-0,gs://bucket/x*")
    message = rf"--input_file=.*: no file matches '{tmp_path}/eval-\*'; give record files"
    with pytest.raises(flags.FlagError, match=message):
        flags.check_patterns("input_file", f"{tmp_path}/train-*,{tmp_path}/eval-*")
    with pytest.raises(flags.FlagError, match="no file matches"):
        flags.check_patterns("input_file", str(tmp_path))


def test_writable_directory(tmp_path, monkeypatch):
    made = tmp_path / "a" / "b"
    flags.check_writable_directory("output_dir", str(made))
    assert made.is_dir()
    with pytest.raises(flags.FlagError, match="gs://bucket/run: must be a directory of this"):
        flags.check_writable_directory("output_dir", "gs://bucket/run")
    (made / "file").write_text("")
    for path in (made / "file", made / "file" / "below"):
        with pytest.raises(flags.FlagError, match=f"--output_dir={path}: is a file, or below one"):
            flags.check_writable_directory("output_dir", str(path))
    with pytest.raises(flags.FlagError, match="--output_dir=: cannot be made"):
        flags.check_writable_directory("output_dir", "")
    # Modes do not stop the superuser, whom tests may run as.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    message = f"--output_dir={made}: is not writable by this user; choose another directory"
    with pytest.raises(flags.FlagError, match=message):
        flags.check_writable_directory("output_dir", str(made))


def test_hosts_are_those_of_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert flags.find_hosts().number == 1
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"ps": ["a:1"]}}')
    with pytest.raises(flags.FlagError, match=r"TF_CONFIG: the cluster .* must have one chief"):
        flags.find_hosts()
