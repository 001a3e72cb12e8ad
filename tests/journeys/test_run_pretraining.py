"""The main job from its command line: flags and whole runs."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import xml.etree.ElementTree

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from scripts import PRETRAINING, end, start
from tiny_run import metrics_of, steps_of, variables_of, words
from tiny_run import pretraining_flags as command
from toy import scalars

import run_pretraining
from bert_estimator.command_line import provenance
from bert_estimator.interchange import __main__ as interchange
from bert_estimator.jobs.pretraining import pretraining_config
from bert_estimator.recipes import embedded
from bert_estimator.tokenization import SPECIAL_TOKENS

SCRIPT = os.path.abspath(run_pretraining.__file__)
WORDS = words(40)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Makes a directory with records, vocabulary and a network's configuration."""
    path = tmp_path_factory.mktemp("data")
    PRETRAINING.write_data(path)
    return path


def main(arguments):
    """Runs the script in this process."""
    return run_pretraining.main(["run_pretraining.py", *arguments])


# Flags


def test_flags_are_checked_before_tensorflow_is_loaded(tmp_path):
    program = (
        "import sys, run_pretraining\n"
        "codes = [run_pretraining.main(['x', f]) for f in ('--precision=half', '--help')]\n"
        "heavy = {'tensorflow', 'numpy', 'jax', 'matplotlib'}\n"
        "print(codes, sorted(heavy & {*sys.modules}))"
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
def test_help_has_a_command(capsys, flag):
    assert main([flag]) == 0
    assert "python run_pretraining.py --use_tpu --precision=bfloat16" in capsys.readouterr().out


def resolve(tmp_path, *arguments):
    argv = ["run_pretraining.py", f"--output_dir={tmp_path}", *arguments]
    (config,) = pretraining_config.resolve(argv)
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
    expected = {**embedded.PRETRAINING_FLAGS, "learning_rate": 0.5}
    assert {name: config.settings()[name] for name in expected} == expected
    assert config.training.optimizer == "lamb"
    assert config.network.precision == "float32"
    assert config.sources["learning_rate"] == provenance.FLAG
    assert config.sources["optimizer"] == provenance.EMBEDDED
    assert config.sources["precision"] == provenance.DEFAULT


def test_with_data_the_defaults_are_those_of_google_research_bert(tmp_path, data):
    flags = [f"--input_file={data}/train.tfrecord", f"--bert_config_file={data}/bert_config.json"]
    config = resolve(tmp_path, *flags)
    # The flags that the scripts share are in tests/jobs/test_job_config.py.
    expected = {
        "max_predictions_per_seq": 20,
        "num_train_steps": 100000,
        "num_warmup_steps": 10000,
        "max_eval_steps": 100,
        "learning_rate_decay_power": 1.0,
        "adam_bias_correction": False,
        "lamb_bias_correction": False,
        "legacy_schedule_jump": False,
        "bfloat16_first_moments": False,
        "pack": None,
    }
    assert {name: config.settings()[name] for name in expected} == expected
    assert not config.embedded and config.training.optimizer == "adamw"
    assert resolve(tmp_path, *flags, "--optimizer=lamb").training.optimizer == "lamb"


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
    assert [r["step"] for r in records if "loss" in r] == [1, 2, 4, 6, 8, 10]
    assert [r["step"] for r in records if "eval_loss" in r] == [0, 10]
    assert records[-1]["eval_masked_lm_loss"] < records[0]["eval_masked_lm_loss"]
    root = xml.etree.ElementTree.parse(f"{output_dir}/curves.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    lines = ended.stdout.splitlines()
    assert lines[-1] == (
        f"Checkpoint: {output_dir}/model.ckpt-10  summaries: {output_dir}  "
        f"metrics: {output_dir}/metrics.jsonl  curves: {output_dir}/curves.svg"
    )
    assert any(line.startswith("Training text at step 10: masked-LM loss ") for line in lines)
    assert "step 4/10  loss " in ended.stderr
    assert "tokens/s" in ended.stderr and "input wait" in ended.stderr and "ETA" in ended.stderr


def test_the_vocabulary_of_records_without_one_is_given_by_a_flag(data, tmp_path, capsys):
    """Records of google-research/bert have no vocabulary; a resumed run may get one, too."""
    there, run = tmp_path / "data", tmp_path / "run"
    there.mkdir()
    for name in ("train.tfrecord", "bert_config.json"):
        shutil.copy(data / name, there)
    changes = {"num_warmup_steps": 1, "do_train": True, "optimizer": "lars"}  # the smallest graph
    assert main(command(there, run, num_train_steps=2, **changes)) == 0
    assert not (run / "vocab.txt").exists()
    assert interchange.main(["interchange", str(run), str(tmp_path / "hf")]) == 2
    assert f"{run}: there is no vocabulary" in capsys.readouterr().err
    changes["vocab_file"] = data / "vocab.txt"
    assert main(command(there, run, num_train_steps=3, **changes)) == 0
    assert (run / "vocab.txt").read_text() == (data / "vocab.txt").read_text()
    assert interchange.main(["interchange", str(run), str(tmp_path / "hf")]) == 0


def test_a_vocabulary_that_does_not_fit_is_refused(data, tmp_path, capsys):
    for name in ("train.tfrecord", "manifest.train.tfrecord.json", "bert_config.json"):
        shutil.copy(data / name, tmp_path)
    flags = [*command(tmp_path, tmp_path / "run"), "--do_train"]
    (tmp_path / "other.txt").write_text("\n".join([*SPECIAL_TOKENS, *reversed(WORDS)]) + "\n")
    (tmp_path / "longer.txt").write_text("\n".join([*SPECIAL_TOKENS, *WORDS, "one_more"]) + "\n")
    (tmp_path / "words.txt").write_text("a\n")
    for name, message in (
        ("other.txt", "is not the vocabulary that the records were made with; give that one"),
        ("longer.txt", "has 46 tokens, but the network only 45; give the vocabulary"),
        ("words.txt", "A BERT vocabulary must have [PAD] [UNK]"),
    ):
        assert main([*flags, f"--vocab_file={tmp_path / name}"]) == 2
        error = capsys.readouterr().err
        assert "run_pretraining.py: --vocab_file" in error and message in error
    assert main(flags) == 2
    error = capsys.readouterr().err
    assert re.search(r"--input_file: .*/vocab\.[0-9a-f]{64}\.txt: is missing, but .* says", error)
    assert not (tmp_path / "run" / "vocab.txt").exists()


@pytest.mark.usefixtures("rewritten_graphs")
def test_initial_weights_come_from_a_checkpoint(data, finished, tmp_path, capsys):
    flags = {"init_checkpoint": f"{finished[0]}/model.ckpt-10", "precision": "bfloat16"}
    assert main([*command(data, tmp_path / "new", **flags), "--do_eval"]) == 0
    # The checkpoint of another run is evaluated where it is, at its own step.
    assert "Training text at step 10: masked-LM loss" in capsys.readouterr().out
    (evaluated,) = metrics_of(tmp_path / "new")
    (at_end,) = [r for r in metrics_of(finished[0]) if "eval_loss" in r and r["step"] == 10]
    assert evaluated == at_end
    # The same through a training: after its first step, whose rate is 0, the weights are the same.
    assert main([*command(data, tmp_path / "new", **flags, num_train_steps=3), "--do_train"]) == 0
    trained, initial = variables_of(tmp_path / "new", 0), variables_of(finished[0], 10)
    for name, value in initial.items():
        expected = np.zeros_like(value) if "/adam_" in name or name == "global_step" else value
        np.testing.assert_array_equal(trained[name], expected, err_msg=name)


@pytest.mark.slow
def test_the_embedded_default_from_text_to_curves(tmp_path, capsys):
    flags = [f"--output_dir={tmp_path}", "--num_train_steps=20", "--num_warmup_steps=2"]
    assert main([*flags, "--use_tpu", "--precision=bfloat16", "--max_eval_steps=2"]) == 0
    out = capsys.readouterr().out
    for text in ("Held-out text at step 20", "at the start: ", "unigram baseline of the same"):
        assert text in out
    assert (tmp_path / "vocab.txt").read_text() == (tmp_path / "data/vocab.txt").read_text()


RUNTIMES = {"session": {}, "rehearse:2": {"tpu_name": "rehearse:2"}, "local": {"use_tpu": None}}
# All steps are one loop. LARS has the smallest graph.
SHORT = {"num_train_steps": 4, "iterations_per_loop": 1000, "do_train": True, "optimizer": "lars"}


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Returns the directory of a short training on a runtime."""
    paths = {}

    def on(runtime):
        if runtime not in paths:
            paths[runtime] = tmp_path_factory.mktemp("trained") / "run"
            assert main(command(data, paths[runtime], **SHORT, **RUNTIMES[runtime])) == 0
            tf.summary.FileWriterCache.clear()
        return paths[runtime]

    return on


@pytest.mark.usefixtures("xla_runtime")
def test_the_step_leaves_for_where_tensorflow_is_not(data, trained, tmp_path, capsys):
    program, out = tmp_path / "program", tmp_path / "out"
    flags = {**SHORT, "do_train": None, "export_program": program}
    assert main(command(data, out, **flags)) == 0
    assert f"run_program {program}" in capsys.readouterr().out
    assert main(command(data, out, export_program=program, use_tpu=None)) == 2
    assert f"--export_program={program}: needs --use_tpu" in capsys.readouterr().err
    from bert_estimator.tpu import run_program

    assert (
        run_program.main(["run_program", str(program), "--steps=2", "--tpu_name=rehearse:1"]) == 0
    )
    first = float(re.search(r"loss: (\S+) at the first step", capsys.readouterr().out).group(1))
    assert first == pytest.approx(metrics_of(trained("session"))[0]["loss"], rel=1e-5)


@pytest.mark.usefixtures("xla_runtime")
@pytest.mark.parametrize(
    "runtime", ["session", pytest.param("rehearse:2", marks=pytest.mark.slow), "local"]
)
def test_curves_of_a_short_training_are_lines(trained, runtime):
    """The first and the last step are logged, even if all steps are one loop."""
    first, *_, last = metrics_of(trained(runtime))
    assert (first["step"], last["step"]) == (1, 4)
    assert "steps_per_sec" in last and "steps_per_sec" not in first
    for name in ("loss", "learning_rate", "gradient_norm"):
        events = dict(scalars(trained(runtime), name))
        assert list(events) == [1, 2, 3, 4]
        assert (events[1], events[4]) == (np.float32(first[name]), np.float32(last[name]))


@pytest.mark.slow
@pytest.mark.usefixtures("xla_runtime")
def test_two_hosts_equal_one(data, tmp_path):
    """The chief writes the run; the other host keeps its own log; both train and evaluate."""
    flags = {"tpu_name": "rehearse:2", "save_checkpoints_steps": 10}
    assert main(command(data, tmp_path / "alone", **flags)) == 0
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        port = listening.getsockname()[1]
    cluster = {"chief": [f"localhost:{port}"], "worker": ["localhost:1"]}
    hosts = [
        start(
            PRETRAINING, command(data, tmp_path / "two", **flags),
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


def test_evaluations_while_training_keep_the_best_checkpoint_and_patience_ends_it(
    data, tmp_path, capsys, logged
):
    flags = {"num_train_steps": 16, "save_checkpoints_steps": 2, "learning_rate": 2.0}
    flags |= {"eval_steps": 4, "keep_best_checkpoint": True, "do_train": True, "do_eval": True}
    flags |= {"early_stopping_patience": 2}
    assert main(command(data, tmp_path, **flags)) == 0
    losses = {r["step"]: r["eval_loss"] for r in metrics_of(tmp_path) if "eval_loss" in r}
    assert list(losses) == [0, 4, 8, 12]
    best = min((4, 8, 12), key=losses.get)
    assert best != 12  # a rate of 2 leads nowhere
    assert steps_of(tmp_path)[-1] == 12  # and so patience has ended the training
    out = capsys.readouterr().out
    assert f"Checkpoint: {tmp_path}/best/model.ckpt-{best}" in out
    assert f"Training text at step {best}: " in out
    said = [line.split()[3] for _, line in logged if line.startswith("Evaluation at step ")]
    assert said == ["0:", "4:", "8:", "12:"]  # each once
    assert main(command(data, tmp_path, **{**flags, "do_eval": None})) == 0
    assert "Give a larger --early_stopping_patience to go on" in capsys.readouterr().out
    assert main(command(data, tmp_path, **{**flags, "early_stopping_patience": 9})) == 0
    losses = {r["step"]: r["eval_loss"] for r in metrics_of(tmp_path) if "eval_loss" in r}
    assert sorted(losses) == [0, 4, 8, 12, 16]
    # One training: each step was logged once, and the evaluations are in between.
    steps = [r["step"] for r in metrics_of(tmp_path) if "loss" in r]
    assert steps == sorted(set(steps)) and steps[-1] == 16
    # Without them none is kept, and what was kept is older than the end of the training.
    capsys.readouterr()
    changes = {"early_stopping_patience": None, "keep_best_checkpoint": None}
    assert main(command(data, tmp_path, **{**flags, **changes, "num_train_steps": 18})) == 0
    assert f"Checkpoint: {tmp_path}/model.ckpt-18 " in capsys.readouterr().out
