"""The main job from its command line: flags, whole runs, failures in the middle, exact resume."""

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tiny_run import bert_config, metrics_of, variables_of, words, write_records

import run_pretraining
from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import __main__ as interchange
from bert_estimator.recipes import embedded
from bert_estimator.tpu import checkpoints
from input_pipelines.order import record_order
from input_pipelines.record_reader import RecordFiles, record_offsets

SCRIPT = os.path.abspath(run_pretraining.__file__)
SEED = 12345  # the default of --random_seed
BATCH = 8
WORDS = words(40)
BERT_CONFIG = bert_config(len(WORDS))
PROMPTLY_SECS = 30  # on a busy machine; nothing here takes a second


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A directory with records, vocabulary and a network's configuration."""
    path = tmp_path_factory.mktemp("data")
    write_records(path, "train.tfrecord", WORDS)
    (path / "bert_config.json").write_text(json.dumps(BERT_CONFIG))
    (path / "gelu.json").write_text(json.dumps({**BERT_CONFIG, "hidden_act": "gelu"}))
    return path


def command(data, output_dir, **changes):
    """Flags of a short run on the data; a change to None leaves the flag out."""
    values = {
        "input_file": data / "train.tfrecord",
        "bert_config_file": data / "bert_config.json",
        "output_dir": output_dir,
        "max_seq_length": 16,
        "max_predictions_per_seq": 4,
        "train_batch_size": BATCH,
        "learning_rate": 1e-2,
        "num_train_steps": 10,
        "num_warmup_steps": 2,
        "save_checkpoints_steps": 4,
        "iterations_per_loop": 2,
        "use_tpu": True,
        "optimizer": "lamb",
        **changes,
    }
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def main(flags):
    """Runs the script in this process."""
    return run_pretraining.main(["run_pretraining.py", *flags])


def steps_of(output_dir):
    """The steps of the checkpoints in a directory."""
    names = os.listdir(output_dir)
    found = [name[len("model.ckpt-") : -len(".index")] for name in names if name.endswith(".index")]
    return sorted(map(int, found))


def training_metrics(output_dir):
    """The logged steps of training, without how fast they were."""
    timed = ("per_sec", "input_wait", "eta_secs")
    return [
        {name: value for name, value in record.items() if not name.endswith(timed)}
        for record in metrics_of(output_dir)
        if "loss" in record
    ]


def assert_identical(found, expected):
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


# Flags


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num_train_step=3"], "--num_train_step: no such flag; did you mean --num_train_steps?"),
        (["--num_train_steps=ten"], "--num_train_steps=ten: must be a whole number"),
        (["--learning_rate=x"], "--learning_rate=x: must be a number"),
        (["--use_tpu=perhaps"], "--use_tpu=perhaps: must be true or false"),
        (["data.tfrecord"], "'data.tfrecord' is no flag: flags are written --name=value"),
        (["--train_batch_size=-8"], "--train_batch_size=-8: must be positive"),
        (["--max_seq_length=0"], "--max_seq_length=0: must be positive"),
        (["--max_predictions_per_seq=0"], "--max_predictions_per_seq=0: must be positive"),
        (["--num_train_steps=0"], "--num_train_steps=0: must be positive"),
        (["--max_eval_steps=0"], "--max_eval_steps=0: must be positive"),
        (
            ["--num_train_steps=20", "--num_warmup_steps=20"],
            "--num_warmup_steps=20: must be from 0 to --num_train_steps=20 exclusive",
        ),
        (["--num_warmup_steps=-1"], "--num_warmup_steps=-1: must be from 0 to"),
        (
            ["--train_batch_size=32", "--micro_batch_size=5"],
            "--micro_batch_size=5: must divide --train_batch_size=32",
        ),
        (["--precision=fp16"], "--precision=fp16: must be one of float32, bfloat16"),
        (
            ["--optimizer=lam"],
            "--optimizer=lam: must be one of lamb, adamw, lars, adafactor; did you mean lamb?",
        ),
        (
            ["--optimizer=lars", "--bfloat16_first_moments"],
            "--bfloat16_first_moments=True: needs --optimizer=lamb or adamw, not lars",
        ),
        (
            ["--optimizer=adamw", "--lamb_bias_correction"],
            "--lamb_bias_correction=True: needs --optimizer=lamb, not adamw",
        ),
        (["--init_checkpoint=no/model.ckpt"], "--init_checkpoint=no/model.ckpt: there is no such"),
        (["--tpu_name=pod"], "--tpu_name=pod: names a TPU, but --use_tpu is not given; add it"),
        (
            ["--max_seq_length=8", "--max_predictions_per_seq=9"],
            "--max_predictions_per_seq=9: cannot be more than --max_seq_length=8",
        ),
        (["--nodo_train", "--nodo_eval"], "--do_train=False: nothing to do: --do_eval is off too"),
        (["--input_file=x"], "--bert_config_file=None: is needed: --input_file and --bert_config"),
        (["--bert_config_file={here}"], "--input_file=None: is needed: --input_file and --bert_co"),
        (["--bert_config_file=no.json"], "--bert_config_file=no.json: there is no such file"),
        (
            ["--bert_config_file={here}", "--input_file=no/*.tfrecord"],
            "--input_file=no/*.tfrecord: no file matches 'no/*.tfrecord'",
        ),
        (["--eval_input_file={here}"], "--eval_input_file={here}: needs --input_file and"),
        (["--output_dir={here}"], "--output_dir={here}: is a file"),
    ],
)
def test_bad_flags(capsys, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path / "a_file")
    (tmp_path / "a_file").write_text("{}")
    flags, message = [[flag.format(here=here) for flag in flags], message.format(here=here)]
    assert main(["--num_train_steps=20000", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"run_pretraining.py: {message}")
    assert err.count("\n") == 1
    assert not os.path.exists("runs")


def test_flags_are_checked_before_tensorflow_is_loaded(tmp_path):
    program = (
        "import sys, run_pretraining\n"
        "codes = [run_pretraining.main(['x', f]) for f in ('--precision=half', '--help')]\n"
        "print(codes, sorted(m for m in sys.modules if m in ('tensorflow', 'numpy', 'jax')))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.path.dirname(SCRIPT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines()[-1] == "[2, 0] []"
    assert ended.stderr.startswith("run_pretraining.py: --precision=half: must be one of")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("flag", ["--help", "-h", "--helpfull"])
def test_help_names_every_flag(capsys, flag):
    assert main([flag]) == 0
    out = capsys.readouterr().out
    assert "python run_pretraining.py --use_tpu --precision=bfloat16" in out
    for name in run_pretraining.define_flags():
        assert f"--{name}" in out or f"--[no]{name}" in out


def resolve(tmp_path, *flags):
    argv = ["run_pretraining.py", f"--output_dir={tmp_path}", *flags]
    (config,) = run_pretraining.resolve(argv)
    return config


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], (True, True)),
        (["--do_train"], (True, False)),
        (["--do_eval"], (False, True)),
        (["--do_train", "--do_eval"], (True, True)),
        (["--nodo_train"], (False, True)),
        (["--nodo_eval"], (True, False)),
        (["--do_train=false", "--do_eval=true"], (False, True)),
    ],
)
def test_defaults_of_do_train_and_do_eval(tmp_path, flags, expected):
    config = resolve(tmp_path, *flags)
    assert (config.do_train, config.do_eval) == expected


def test_without_data_the_embedded_plan_is_the_default(tmp_path):
    config = resolve(tmp_path, "--learning_rate=0.5")
    assert config.embedded
    expected = {**embedded.FLAGS, "learning_rate": 0.5}
    assert {name: getattr(config, name) for name in expected} == expected
    assert config.optimizer == "lamb"
    assert config.precision == "float32"
    assert config.sources["learning_rate"] == "flag"
    assert config.sources["optimizer"] == "embedded default"
    assert config.sources["precision"] == "default"


def test_with_data_the_defaults_are_those_of_google_research_bert(tmp_path, data):
    flags = [f"--input_file={data}/train.tfrecord", f"--bert_config_file={data}/bert_config.json"]
    config = resolve(tmp_path, *flags)
    assert not config.embedded
    assert config.optimizer == "adamw"
    assert config.settings() == {
        "output_dir": str(tmp_path),
        "input_file": f"{data}/train.tfrecord",
        "eval_input_file": None,
        "bert_config_file": f"{data}/bert_config.json",
        "init_checkpoint": None,
        "allow_partial_init": False,
        "max_seq_length": 128,
        "max_predictions_per_seq": 20,
        "do_train": True,
        "do_eval": True,
        "train_batch_size": 32,
        "eval_batch_size": 8,
        "learning_rate": 5e-5,
        "learning_rate_decay_power": 1.0,
        "num_train_steps": 100000,
        "num_warmup_steps": 10000,
        "save_checkpoints_steps": 1000,
        "iterations_per_loop": 1000,
        "max_eval_steps": 100,
        "use_tpu": False,
        "tpu_name": None,
        "num_tpu_cores": None,
        "num_cores_per_replica": 1,
        "precision": "float32",
        "optimizer": "adamw",
        "micro_batch_size": None,
        "random_seed": SEED,
        "legacy_schedule_jump": False,
        "lamb_bias_correction": False,
        "bfloat16_first_moments": False,
        "recompute": False,
        "use_one_hot_embeddings": False,
        "recipe": None,
        "scale": None,
        "stage": None,
        "bert_config": None,
    }
    assert resolve(tmp_path, *flags, "--optimizer=lamb").optimizer == "lamb"


# Whole runs


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """A finished run of ten steps, by a process of its own: its directory, what it printed."""
    output_dir = str(tmp_path_factory.mktemp("finished") / "run")
    ended = subprocess.run(
        [sys.executable, SCRIPT, *command(data, output_dir, precision="bfloat16")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return output_dir, ended


@pytest.fixture
def rerun(data, finished, tmp_path):
    """Runs the command again on a copy of the finished run's directory, with changed flags."""
    output_dir = str(tmp_path / "run")
    shutil.copytree(finished[0], output_dir)

    def run(**changes):
        return main(command(data, output_dir, **{"precision": "bfloat16", **changes}))

    return output_dir, run


def test_a_run_leaves_checkpoints_events_metrics_and_curves(data, finished):
    output_dir, ended = finished
    assert steps_of(output_dir) == [0, 4, 8, 10]
    state = tf.train.get_checkpoint_state(output_dir)
    assert state.model_checkpoint_path == f"{output_dir}/model.ckpt-10"
    assert any(name.endswith(".v2") for name in os.listdir(output_dir))
    assert any(name.startswith("events.") for name in os.listdir(f"{output_dir}/eval"))
    with open(f"{output_dir}/config.json", encoding="utf-8") as reader:
        config = json.load(reader)
    assert config["flags"]["precision"] == {"value": "bfloat16", "from": "flag"}
    assert config["flags"]["eval_batch_size"] == {"value": 8, "from": "default"}
    assert config["command"][1:] == [SCRIPT, *command(data, output_dir, precision="bfloat16")]
    records = metrics_of(output_dir)
    assert [r["step"] for r in records if "loss" in r] == [2, 4, 6, 8, 10]
    assert [r["step"] for r in records if "eval_loss" in r] == [0, 10]
    assert records[-1]["eval_masked_lm_loss"] < records[0]["eval_masked_lm_loss"]
    root = xml.etree.ElementTree.parse(f"{output_dir}/curves.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    lines = ended.stdout.splitlines()
    assert lines[-1] == (
        f"Checkpoint: {output_dir}/model.ckpt-10  summaries: {output_dir}  "
        f"metrics: {output_dir}/metrics.jsonl  curves: {output_dir}/curves.svg"
    )
    assert any(line.startswith("Held-out text at step 10: masked-LM loss ") for line in lines)
    assert "step 4/10  loss " in ended.stderr
    assert "tokens/s" in ended.stderr and "input wait" in ended.stderr and "ETA" in ended.stderr


def test_a_second_run_says_that_nothing_is_left(rerun, capsys):
    output_dir, run = rerun
    before = training_metrics(output_dir)
    assert run() == 0
    out = capsys.readouterr().out
    assert f"Nothing left to train: {output_dir} is at step 10. Give a larger --num_train_" in out
    assert "Training took" not in out
    assert "Held-out text at step 10" in out
    assert steps_of(output_dir) == [0, 4, 8, 10]
    assert training_metrics(output_dir) == before


def test_a_longer_run_goes_on(rerun, capsys):
    output_dir, run = rerun
    assert run(num_train_steps=14, max_eval_steps=2, iterations_per_loop=1) == 0
    assert steps_of(output_dir) == [0, 4, 8, 10, 14]
    assert [r["step"] for r in training_metrics(output_dir)] == [2, 4, 6, 8, 10, 11, 12, 13, 14]
    assert [r["step"] for r in metrics_of(output_dir) if "eval_loss" in r] == [0, 10, 14]
    assert f"Checkpoint: {output_dir}/model.ckpt-14" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.5}, "--learning_rate=0.5: {0} holds a run with --learning_rate=0.01."),
        ({"precision": "float32"}, "--precision=float32: {0} holds a run with --precision=bf"),
        ({"random_seed": 1}, "--random_seed=1: {0} holds a run with --random_seed=12345."),
    ],
)
def test_a_directory_of_another_run_is_refused(rerun, capsys, changes, message):
    output_dir, run = rerun
    assert run(num_train_steps=20, **changes) == 2
    assert message.format(output_dir) in capsys.readouterr().err
    assert steps_of(output_dir) == [0, 4, 8, 10]


def test_the_directory_of_a_run_converts(data, finished, tmp_path, capsys):
    assert interchange.main(["interchange", finished[0], str(tmp_path / "hf")]) == 0
    out = capsys.readouterr().out
    assert "Weights read back bit for bit" in out and "no vocab.txt beside the source" in out
    with open(f"{finished[0]}/bert_config.json", encoding="utf-8") as reader:
        assert BertConfig(**json.load(reader)) == BertConfig(**BERT_CONFIG)


def test_initial_weights_come_from_a_checkpoint(data, finished, tmp_path, capsys):
    flags = {"init_checkpoint": f"{finished[0]}/model.ckpt-10", "precision": "bfloat16"}
    assert main([*command(data, tmp_path / "new", **flags), "--do_eval"]) == 0
    assert "Held-out text at step 0: masked-LM loss" in capsys.readouterr().out
    (at_start,) = metrics_of(tmp_path / "new")
    (at_end,) = [r for r in metrics_of(finished[0]) if "eval_loss" in r and r["step"] == 10]
    assert at_start == {**at_end, "step": 0}
    # The same through a training: after its first step, whose rate is 0, the weights are the same.
    assert main([*command(data, tmp_path / "new", **flags, num_train_steps=3), "--do_train"]) == 0
    trained, initial = variables_of(tmp_path / "new", 0), variables_of(finished[0], 10)
    for name, value in initial.items():
        expected = np.zeros_like(value) if "/adam_" in name or name == "global_step" else value
        np.testing.assert_array_equal(trained[name], expected, err_msg=name)


def test_initial_weights_of_another_network_are_refused(data, finished, tmp_path, capsys):
    (tmp_path / "wider.json").write_text(json.dumps({**BERT_CONFIG, "intermediate_size": 48}))
    changes = {
        "init_checkpoint": f"{finished[0]}/model.ckpt-10",
        "bert_config_file": tmp_path / "wider.json",
    }
    assert main(command(data, tmp_path / "new", **changes)) == 2
    err = capsys.readouterr().err
    assert f"--init_checkpoint={finished[0]}/model.ckpt-10 does not fit --bert_config_file:" in err
    assert "intermediate/dense/kernel: [16, 48] in the model, [16, 32] in the checkpoint" in err


@pytest.mark.slow
def test_the_embedded_default_from_text_to_curves(tmp_path, capsys):
    flags = [f"--output_dir={tmp_path}", "--num_train_steps=20", "--num_warmup_steps=2"]
    assert main([*flags, "--use_tpu", "--precision=bfloat16", "--max_eval_steps=2"]) == 0
    out = capsys.readouterr().out
    for text in ("Held-out text at step 20", "at the start: ", "unigram baseline of the same"):
        assert text in out
    assert (tmp_path / "vocab.txt").read_text() == (tmp_path / "data/vocab.txt").read_text()


# Data that cannot be trained on


def copy_records(data, tmp_path, with_manifest=False):
    """A copy of the records, without their manifest unless it is asked for."""
    for name in os.listdir(data) if with_manifest else ["train.tfrecord"]:
        shutil.copy(data / name, tmp_path / name)
    return tmp_path / "train.tfrecord"


def assert_fails_before_step_0(capsys, flags, *messages):
    output_dir = next(f.removeprefix("--output_dir=") for f in flags if "output_dir" in f)
    assert main(flags) == 2
    err = capsys.readouterr().err
    for message in messages:
        assert message in err
    # Nothing stands in the way of the right command.
    assert os.listdir(output_dir) == []


@pytest.mark.parametrize("with_manifest", [True, False])
def test_wrong_lengths(data, tmp_path, capsys, with_manifest):
    records = copy_records(data, tmp_path, with_manifest)
    flags = command(data, tmp_path / "run", input_file=records)
    for name, right, wrong in (("max_seq_length", 16, 12), ("max_predictions_per_seq", 4, 5)):
        messages = (f"{name} is {right} in {records}", f"--{name} is {wrong}. Use {right}")
        assert_fails_before_step_0(capsys, [*flags, f"--{name}={wrong}"], *messages)


def test_a_file_cut_short_before_the_run(data, tmp_path, capsys):
    records = copy_records(data, tmp_path)
    offset = int(record_offsets(str(records))[-2])
    os.truncate(records, os.path.getsize(records) - 5)
    for name in ("input_file", "eval_input_file"):
        flags = command(data, tmp_path / "run", **{name: records})
        message = f"--{name}: {records}: record 90 (byte {offset}) goes on beyond the end"
        assert_fails_before_step_0(capsys, flags, message)


def test_another_vocabulary(data, tmp_path, capsys):
    records = copy_records(data, tmp_path, with_manifest=True)
    (tmp_path / "small.json").write_text(json.dumps({**BERT_CONFIG, "vocab_size": 20}))
    flags = {"input_file": records, "bert_config_file": tmp_path / "small.json"}
    message = f"vocab_size is 45 in {records}"
    assert_fails_before_step_0(capsys, command(data, tmp_path / "run", **flags), message)


def test_a_wrong_network(data, tmp_path, capsys):
    path = tmp_path / "bert_config.json"
    flags = command(data, tmp_path / "run", bert_config_file=path)
    for text, message in (
        ("{", f"--bert_config_file: {path}: not JSON"),
        ("{}", f"--bert_config_file: {path}: the key 'vocab_size' is missing; add it."),
        (
            json.dumps({**BERT_CONFIG, "max_position_embeddings": 8}),
            "--max_seq_length=16: cannot be more than the network's max_position_embeddings, which",
        ),
    ):
        path.write_text(text)
        assert_fails_before_step_0(capsys, flags, message)


def test_ids_beyond_the_vocabulary(data, tmp_path, capsys):
    records = copy_records(data, tmp_path)
    (tmp_path / "small.json").write_text(json.dumps({**BERT_CONFIG, "vocab_size": 20}))
    flags = {"input_file": records, "bert_config_file": tmp_path / "small.json"}
    assert main([*command(data, tmp_path / "run", **flags), "--do_train"]) == 1
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith(f"run_pretraining.py: error: {records}: record ")
    assert "input_ids holds the id " in line


def flip_bit(path, record):
    """Damages a record of a file; returns its offset."""
    offset = int(record_offsets(str(path))[record])
    with open(path, "r+b") as file:
        file.seek(offset + 50)
        byte = file.read(1)[0]
        file.seek(offset + 50)
        file.write(bytes([byte ^ 4]))
    return offset


def record_of_step(step):
    """Number of a record that training step `step` (from 1) reads, of the data's 91."""
    return int(record_order(np.arange((step - 1) * BATCH, step * BATCH), 91, SEED)[3])


@pytest.mark.parametrize("use_tpu", [True, False])
def test_a_damaged_record(data, tmp_path, capsys, use_tpu):
    records = copy_records(data, tmp_path)
    record = record_of_step(7)
    offset = flip_bit(records, record)
    flags = command(data, tmp_path / "run", input_file=records, use_tpu=use_tpu)
    assert main([*flags, "--do_train"]) == 1
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line == (
        f"run_pretraining.py: error: {records}: record {record} (byte {offset}) is damaged: its "
        "checksum does not fit its data. Create the file again."
    )
    assert steps_of(tmp_path / "run") == [0, 4]
    assert checkpoints.damage(str(tmp_path / "run" / "model.ckpt-4")) is None


# Failures in the middle: processes of their own

# Does something when a step has been logged, on the way through main().
AT_A_STEP = """
import os, signal, sys
import run_pretraining
from bert_estimator.run_directory import RunDirectory
from input_pipelines.record_reader import RecordFiles

def fail(*args):
    raise RuntimeError("the disk has gone")

def add_metrics(self, record, add_metrics=RunDirectory.add_metrics):
    add_metrics(self, record)
    if record["step"] == {step}:
        {action}

RunDirectory.add_metrics = add_metrics
sys.exit(run_pretraining.main(["run_pretraining.py", *sys.argv[1:]]))
"""


def start(*arguments, environment=()):
    """Starts Python with arguments; what it prints is for `end`."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.path.dirname(SCRIPT), **dict(environment)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_until(step, action, flags):
    """Starts the script with a line of Python that is executed when a step has been logged."""
    return start("-c", AT_A_STEP.format(step=step, action=action), *flags)


def end(process, timeout_secs=240):
    """Waits for a process; returns (exit code, what it printed on stderr)."""
    try:
        _, err = process.communicate(timeout=timeout_secs)
    finally:
        process.kill()
    return process.returncode, err


def assert_last_checkpoint(output_dir, step):
    assert checkpoints.newest_whole(str(output_dir)) == f"{output_dir}/model.ckpt-{step}"
    for number in steps_of(output_dir):
        assert checkpoints.damage(f"{output_dir}/model.ckpt-{number}") is None


@pytest.fixture(scope="module")
def failing(data, tmp_path_factory):
    """Runs that fail, by name: (directory, process). Started together: each keeps one core busy."""
    started = {}

    def begin(name, make_arguments):
        path = tmp_path_factory.mktemp(name)
        records = copy_records(data, path)
        flags = command(data, path / "run", input_file=records, num_train_steps=100000)
        started[name] = path, make_arguments([*flags, "--do_train"], records)

    def with_a_nan(flags, records):
        """A weight that is NaN, in a record of step 7."""
        source = RecordFiles([str(data / "train.tfrecord")])
        with tf.io.TFRecordWriter(str(records)) as writer:
            for number in range(source.num_records):
                example = tf.train.Example.FromString(source.read(number))
                if number == record_of_step(7):
                    example.features.feature["masked_lm_weights"].float_list.value[0] = math.nan
                writer.write(example.SerializeToString())
        return start(SCRIPT, *flags)

    begin("input_fn", lambda flags, _: start_until(6, "RecordFiles.read = fail", flags))
    begin("cut", lambda flags, path: start_until(6, f"os.truncate({str(path)!r}, 0)", flags))
    begin("nan", with_a_nan)
    yield started
    for _, process in started.values():
        process.kill()


def assert_ended_after_step_6(path, code):
    """After a failure of the infeed: some steps after the sixth, before it was noticed."""
    assert code == 1
    assert 4 in steps_of(path / "run")
    assert 6 <= training_metrics(path / "run")[-1]["step"] < 100
    assert_last_checkpoint(path / "run", steps_of(path / "run")[-1])


def test_an_exception_inside_input_fn(failing):
    path, process = failing["input_fn"]
    code, err = end(process)
    assert "RuntimeError: the disk has gone" in err[err.index("Traceback") :]
    assert "CancelledError" not in err
    assert_ended_after_step_6(path, code)


def test_a_file_cut_short_while_it_is_read(failing):
    path, process = failing["cut"]
    code, err = end(process)
    last = err.splitlines()[-1]
    assert last.startswith(f"run_pretraining.py: error: {path}/train.tfrecord: record ")
    assert last.endswith("is damaged: its checksum does not fit its data. Create the file again.")
    assert_ended_after_step_6(path, code)


def test_a_loss_that_is_not_a_number(failing):
    path, process = failing["nan"]
    code, err = end(process)
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith("run_pretraining.py: error: The loss of step 7 is nan")
    assert "Lower the learning rate" in last
    assert_last_checkpoint(path / "run", 4)
    assert [r["step"] for r in training_metrics(path / "run")] == [2, 4, 6]


def test_a_signal_saves_and_ends_with_its_own_code(data, tmp_path):
    codes = {signal.SIGINT: 130, signal.SIGTERM: 143}
    changes = {"num_train_steps": 10**6, "save_checkpoints_steps": 10**6}
    processes = {
        number: start(SCRIPT, *command(data, tmp_path / number.name, **changes), "--do_train")
        for number in codes
    }
    try:
        for number, process in processes.items():
            output_dir = tmp_path / number.name
            deadline = time.monotonic() + 120
            while not (output_dir / "metrics.jsonl").exists() or len(metrics_of(output_dir)) < 3:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(number)
            code, err = end(process, PROMPTLY_SECS)
            assert code == codes[number]
            assert f"{number.name}: finishing the current step, then saving." in err
            assert "Traceback" not in err
            step = steps_of(output_dir)[-1]
            assert step == training_metrics(output_dir)[-1]["step"] >= 6
            assert_last_checkpoint(output_dir, step)
    finally:
        for process in processes.values():
            process.kill()


# Exact resume


@pytest.mark.parametrize(
    ("use_tpu", "precision"), [(True, "bfloat16"), (False, "float32")], ids=["tpu", "local"]
)
def test_a_killed_run_resumed_equals_an_uninterrupted_one(
    data, tmp_path, use_tpu, precision, capsys
):
    changes = {
        "use_tpu": use_tpu,
        "precision": precision,
        "num_train_steps": 18,
        "save_checkpoints_steps": 6,
        "iterations_per_loop": 3,
        "bert_config_file": data / ("gelu.json" if use_tpu else "bert_config.json"),
    }

    def flags(name):
        return [*command(data, tmp_path / name, **changes), "--do_train"]

    process = start_until(15, "os.kill(os.getpid(), signal.SIGKILL)", flags("killed"))
    assert main(flags("whole")) == 0
    assert end(process)[0] == -signal.SIGKILL
    expected = variables_of(tmp_path / "whole", 18)
    assert len([name for name in expected if "/adam_" in name]) > 40
    assert steps_of(tmp_path / "killed") == [0, 6, 12]
    assert [r["step"] for r in training_metrics(tmp_path / "killed")] == [3, 6, 9, 12, 15]

    # As if the kill had come while the newest checkpoint was written.
    shutil.copytree(tmp_path / "killed", tmp_path / "cut")
    cut = tmp_path / "cut" / "model.ckpt-12.data-00000-of-00001"
    os.truncate(cut, os.path.getsize(cut) // 2)
    assert checkpoints.newest_whole(str(tmp_path / "cut")).endswith("-6")

    for name in ("killed", "cut") if use_tpu else ("killed",):
        assert main(flags(name)) == 0
        assert_identical(variables_of(tmp_path / name, 18), expected)
        assert training_metrics(tmp_path / name) == training_metrics(tmp_path / "whole")
        assert_last_checkpoint(tmp_path / name, 18)


@pytest.mark.usefixtures("xla_runtime")
def test_the_step_leaves_for_where_tensorflow_is_not(data, tmp_path, capsys):
    program, out = tmp_path / "program", tmp_path / "out"
    assert main(command(data, out, export_program=program)) == 0
    assert f"run_program {program}" in capsys.readouterr().out
    assert main(command(data, out, export_program=program, use_tpu=None)) == 2
    assert f"--export_program={program}: needs --use_tpu" in capsys.readouterr().err
    from bert_estimator.tpu import run_program

    assert run_program.main([str(program), "--steps=2", "--tpu_name=rehearse:1"]) == 0
    first = float(re.search(r"loss: (\S+) at the first step", capsys.readouterr().out).group(1))
    assert main(command(data, out, num_train_steps=3, do_train=True, iterations_per_loop=1)) == 0
    assert first == pytest.approx(metrics_of(out)[0]["loss"], rel=1e-5)


@pytest.mark.slow
def test_two_hosts_equal_one(data, tmp_path):
    """The chief writes the run; the other host keeps its own log; both train and evaluate."""
    pytest.importorskip("jax", minversion="0.8")
    flags = {"tpu_name": "rehearse:2", "save_checkpoints_steps": 10}
    assert main(command(data, tmp_path / "alone", **flags)) == 0
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        port = listening.getsockname()[1]
    cluster = {"chief": [f"localhost:{port}"], "worker": ["localhost:1"]}
    hosts = [
        start(
            SCRIPT, *command(data, tmp_path / "two", **flags),
            environment={"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})},
        )
        for task in ({"type": "chief", "index": 0}, {"type": "worker", "index": 0})
    ]  # fmt: skip
    for code, err in map(end, hosts):
        assert code == 0, err
    found, expected = (variables_of(tmp_path / name, 10) for name in ("two", "alone"))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
    assert steps_of(tmp_path / "two") == [0, 10]
    for path in (tmp_path / "two", tmp_path / "two" / "host-1"):
        assert [record["step"] for record in metrics_of(path) if "eval_loss" in record] == [0, 10]
