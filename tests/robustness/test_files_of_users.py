"""Directories of what a command has not written: it refuses them before it writes anything."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import commands
import pytest
from fixtures import DATA
from scripts import CLASSIFIER, PRETRAINING, SQUAD, TAGGER

from bert_estimator.command_line import own_directory
from bert_estimator.command_line.flags import FlagError
from bert_estimator.storage import remote


def files_of(folder):
    """Returns path -> bytes of all files in and below a directory, and its directories -> None."""
    paths = sorted(pathlib.Path(folder).rglob("*"))
    return {str(p.relative_to(folder)): None if p.is_dir() else p.read_bytes() for p in paths}


def write(folder, *names):
    """Writes files, which hold their names; a name that ends in "/" is a directory."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_text(name)


HUB = ("saved_model.pb", "variables/variables.index", "assets/vocab.txt", "tfhub_module.pb")
SENTENCES = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json")
CHECKPOINT = ("model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001", "model.ckpt-7.meta")

# What a directory holds -> a file in it that the message names.
OF_USERS = {
    "hf": "config.json",
    "sentence_transformers": "config.json",
    "google": "bert_config.json",
    "converted": "bert_config.json",
    "hub": "assets, saved_model.pb",
    "electra": "electra_small.index",
    "biobert": "bert_config.json",
    "task": "dev.tsv",
    "records": "manifest.train.tfrecord.json",
    "embedded data": "default_data.json",
    "data of a user": "data",
    "prepared": "bert_config.json, vocab.txt",
    "vocabulary": "vocab.txt",
    "checkout": "README.md, setup.py, src",
    "runs": "mine, other",
    "root": "is the root of the file system",
    "home": "is the home directory",
}


def write_kind(folder, kind):
    """Writes a directory of a user."""
    if kind in ("hf", "google"):
        shutil.copytree(DATA / {"hf": "hf_classifier", "google": "tf1"}[kind], folder)
        return
    folder.mkdir()
    if kind == "sentence_transformers":
        shutil.copytree(DATA / "hf_encoder", folder, dirs_exist_ok=True)
    names = {
        "sentence_transformers": SENTENCES,
        "converted": ("bert_config.json", "bert_model.ckpt.index", "task.json", "vocab.txt"),
        "hub": HUB,
        "electra": ("checkpoint", "electra_small.index", "vocab.txt"),
        "biobert": (*CHECKPOINT, "bert_config.json", "vocab.txt"),
        "task": ("train.tsv", "dev.tsv", "train.log"),
        "records": ("train.tfrecord", "manifest.train.tfrecord.json"),
        "embedded data": ("default_data.json", "vocab.txt", "train-00000-of-00001.tfrecord"),
        "data of a user": ("data/train.tfrecord",),
        "prepared": ("bert_config.json", "vocab.txt"),
        "vocabulary": ("vocab.txt",),
        "checkout": (".git/HEAD", "README.md", "setup.py", "src/a.py"),
        "runs": ("mine/config.json", "other/config.json"),
        "home": (".profile",),
    }
    write(folder, *names[kind])


# What runs -> (the command, function of (inputs, output) that returns its arguments).
RUNS = {
    "pretraining": ("pretraining", lambda i, o: PRETRAINING.flags(i / "run_pretraining", o)),
    "pretraining, evaluated": (
        "pretraining",
        lambda i, o: PRETRAINING.flags(i / "run_pretraining", o, do_eval=True),
    ),
    "embedded pretraining": ("pretraining", lambda i, o: [f"--output_dir={o}"]),
    "recipe": ("pretraining", lambda i, o: ["--recipe=lamb_76min", f"--output_dir={o}"]),
    "compiled": (
        "pretraining",
        lambda i, o: [
            *PRETRAINING.flags(i / "run_pretraining", o), "--compile_only", "--tpu_topology=v3:2x2"
        ],
    ),
    "exported program": (
        "pretraining",
        lambda i, o: PRETRAINING.flags(
            i / "run_pretraining", i / "none", export_program=o, use_tpu=True
        ),
    ),
    "classifier": ("classifier", lambda i, o: CLASSIFIER.flags(i / "run_classifier", o)),
    "classifier, from there": (
        "classifier",
        lambda i, o: CLASSIFIER.flags(
            i / "run_classifier", o, init_checkpoint=o, bert_config_file=None, vocab_file=None
        ),
    ),
    "classifier, predicting": (
        "classifier",
        lambda i, o: CLASSIFIER.flags(
            i / "run_classifier", o, init_checkpoint=i / "hf_classifier", do_predict=True,
            predict_file=i / "run_classifier" / "dev.tsv",
        ),
    ),
    "seeds": ("classifier", lambda i, o: CLASSIFIER.flags(i / "run_classifier", o, num_seeds=2)),
    "embedded classifier": ("classifier", lambda i, o: [f"--output_dir={o}"]),
    "remote classifier": (
        "classifier", lambda i, o: CLASSIFIER.flags(i / "run_classifier", f"file://{o}")
    ),
    "tagger": ("classifier", lambda i, o: TAGGER.flags(i / "run_classifier", o)),
    "squad": ("squad", lambda i, o: SQUAD.flags(i / "run_squad", o)),
    "squad, exporting": (
        "squad",
        lambda i, o: SQUAD.flags(i / "run_squad", o, init_checkpoint=i / "tf1", do_export=True),
    ),
    "convert": ("convert", lambda i, o: [f"{i}/hf_classifier", str(o)]),
}  # fmt: skip


@pytest.mark.parametrize("kind", OF_USERS)
@pytest.mark.parametrize("run", RUNS)
def test_files_of_users_are_left_as_they_are(inputs, tmp_path, monkeypatch, run, kind):
    folder = tmp_path / "folder"
    if kind == "root":
        folder = pathlib.Path("/")
        before = sorted(os.listdir(folder))
    else:
        write_kind(folder, kind)
        before = files_of(tmp_path)
    if kind == "home":
        monkeypatch.setenv("HOME", str(folder))
    command, arguments = RUNS[run]
    code, err = commands.call(command, arguments(inputs, folder))
    assert code == 2, err
    assert (sorted(os.listdir(folder)) if kind == "root" else files_of(tmp_path)) == before
    assert not (inputs / "none").exists()
    message = err.splitlines()[-1]
    if command == "convert":
        assert message.endswith(f"{folder}: exists already; choose another target, or remove it")
        return
    flag = "export_program" if run == "exported program" else "output_dir"
    named = f"file://{folder}" if run == "remote classifier" else folder
    assert f": --{flag}={named}: " in message
    assert OF_USERS[kind].split(", ")[0] in message
    assert f"give the {'program' if flag == 'export_program' else 'run'} a directory of" in message


LOGS = (
    "train.log",
    "slurm-7.out",
    "nohup.out",
    "logs/a",
    "train_log.txt",
    ".hidden/a",
    ".nfs0001",
    "lost+found/",
)
EVENTS = "events.out.tfevents.1.host"
CONFIG = json.dumps({"flags": {}})

# What a directory holds in which a run may go on, or begin.
ALLOWED = {
    "nothing": (),
    "logs": LOGS,
    "run": ("config.json", *CHECKPOINT),
    "run with notes": ("config.json", "README.md", "model.safetensors", "train.tsv"),
    "run of another program": ("checkpoint", *CHECKPOINT, "graph.pbtxt", EVENTS, "train.tf_record"),
    "run of another program, made a model": (
        "checkpoint", *CHECKPOINT, "bert_config.json", "vocab.txt", "run.sh",
    ),
    "run of another program, killed": ("graph.pbtxt", EVENTS, "model.ckpt-0_temp/part-0", *LOGS),
    "results": (
        "metrics.jsonl", "curves.svg", "eval_results.txt", "eval_report.tsv", "test_results.conll",
        "eval/" + EVENTS, "export/1700000000/saved_model.pb",
    ),
    "answers": ("predictions.json", "nbest_predictions.json", "null_odds.json", "metrics.jsonl"),
    "results of two sets": ("eval_report_matched.tsv", "eval_matched/" + EVENTS),
    "report": ("compile_report.json",),
    "plan of a recipe": ("stage_1/compile_report.json", "stage_2/compile_report.json"),
    "seeds": ("seed-1/config.json", "seed-1/vocab.txt", "seed-2/.lock"),
    "hosts": ("host-1/config.json", "config.json"),
    "embedded data, killed": (".data.lock", "data.incomplete/vocab.txt"),
    "embedded data": ("data/default_data.json", "data/vocab.txt", "record_lengths.npz"),
    "killed at config.json": (".lock", "config.json.tmp", "record_lengths.npz.tmp"),
    "remote run, killed": ("owner.json", "metrics.jsonl", "config.json.unfinished"),
}  # fmt: skip


@pytest.mark.parametrize("held", ALLOWED)
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_runs_may_go_on_and_begin(tmp_path, held, scheme):
    write(tmp_path, *ALLOWED[held])
    for path in tmp_path.rglob("config.json"):
        path.write_text(CONFIG)
    own_directory.check_run(f"{scheme}{tmp_path}")
    own_directory.check_run(f"{scheme}{tmp_path / 'new'}")


def test_a_damaged_config_is_the_run_s_to_explain(tmp_path, inputs):
    write(tmp_path, "checkpoint", *CHECKPOINT)
    (tmp_path / "config.json").write_text("{")
    own_directory.check_run(str(tmp_path))
    code, err = commands.call(
        "classifier", CLASSIFIER.flags(inputs / "run_classifier", tmp_path, do_eval=True)
    )
    assert code == 2
    assert "its config.json cannot be read" in err
    shutil.rmtree(tmp_path)
    write(tmp_path, "config.json")
    with pytest.raises(FlagError, match=r"holds config\.json, which this command has not written"):
        own_directory.check_run(str(tmp_path))


# What is checked at every file -> (the command, function of (inputs, output)).
WATCHED = {
    "pretraining": (
        "pretraining",
        lambda i, o: PRETRAINING.flags(i / "run_pretraining", o, do_train=True, do_eval=True),
    ),
    "seeds": RUNS["seeds"],
    "classifier, evaluating": (
        "classifier",
        lambda i, o: CLASSIFIER.flags(
            i / "run_classifier", o, do_eval=True, init_checkpoint=i / "trained"
        ),
    ),
    "tagger": (
        "classifier",
        lambda i, o: TAGGER.flags(
            i / "run_classifier", o, do_train=True, do_predict=True, do_export=True,
            keep_best_checkpoint=True, predict_file=i / "run_classifier" / "dev.conll",
        ),
    ),
    "squad": (
        "squad",
        lambda i, o: SQUAD.flags(
            i / "run_squad", o, do_train=True, do_predict=True,
            predict_file=i / "run_squad" / "dev.json",
        ),
    ),
    "remote": (
        "classifier", lambda i, o: CLASSIFIER.flags(i / "run_classifier", f"file://{o}"),
    ),
    "embedded pretraining": (
        "pretraining", lambda i, o: [f"--output_dir={o}", "--num_train_steps=1", "--do_train"],
    ),
    "embedded classifier": (
        "classifier", lambda i, o: [f"--output_dir={o}", "--num_train_epochs=0.01"],
    ),
}  # fmt: skip


_SLOW = ("embedded pretraining", "embedded classifier", "seeds", "squad", "tagger")


@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=pytest.mark.slow if run in _SLOW else ()) for run in WATCHED]
)
def test_a_run_may_go_on_wherever_it_was_killed(inputs, tmp_path, monkeypatch, run):
    """Its directory is checked whenever Python is about to change a file, or has changed one."""
    output, states, refused = tmp_path / "run", set(), set()
    command, arguments = WATCHED[run]
    if run == "classifier, evaluating":
        trained = CLASSIFIER.flags(inputs / "run_classifier", inputs / "trained", do_train=True)
        assert CLASSIFIER.main(trained) == 0

    def check():
        state = tuple(sorted(str(path) for path in output.rglob("*")))
        if state not in states:
            states.add(state)
            try:
                own_directory.check_run(str(output))
            except FlagError as error:
                refused.add(str(error))

    def checked(function):
        def call(*args, **kwargs):
            check()
            try:
                return function(*args, **kwargs)
            finally:
                check()

        return call

    for name in ("fsync", "replace", "rename", "remove", "makedirs"):
        monkeypatch.setattr(os, name, checked(getattr(os, name)))
    for name in ("upload", "write", "remove"):
        monkeypatch.setattr(remote, name, checked(getattr(remote, name)))
    code, err = commands.call(command, arguments(inputs, output))
    assert code == 0, err
    assert len(states) > 5
    assert not refused


@pytest.mark.parametrize("name", ["", "model.ckpt-7", "model.ckpt-3"])
def test_a_training_does_not_start_from_another_program_s_run_in_its_directory(
    inputs, tmp_path, name
):
    """It would go on from the newest checkpoint, whatever --init_checkpoint names."""
    write(tmp_path, "checkpoint", *CHECKPOINT, "model.ckpt-3.index", "bert_config.json")
    before, data = files_of(tmp_path), inputs / "run_classifier"
    start = tmp_path / name
    code, err = commands.call(
        "classifier", CLASSIFIER.flags(data, tmp_path, init_checkpoint=start, do_train=True)
    )
    assert code == 2
    assert f"--init_checkpoint={start}: is in --output_dir, whose training goes on from" in err
    assert files_of(tmp_path) == before


def test_a_run_of_another_program_keeps_what_the_user_has_put_beside_it(inputs, tmp_path):
    """google-research/bert's bert_config.json has keys that this project does not read."""
    data, run = inputs / "run_classifier", tmp_path / "run"
    assert CLASSIFIER.main(CLASSIFIER.flags(data, run, do_train=True)) == 0
    for name in ("config.json", "task.json", "metrics.jsonl"):
        (run / name).unlink()
    config = {"directionality": "bidi", **json.loads((data / "bert_config.json").read_text())}
    (run / "bert_config.json").write_text(json.dumps(config))
    vocabulary = (data / "vocab.txt").read_text().replace("w29", "w30")
    for own in ((data / "vocab.txt").read_text().rstrip(), vocabulary):
        (run / "vocab.txt").write_text(own)
        before = {name: (run / name).read_text() for name in ("bert_config.json", "vocab.txt")}
        flags = CLASSIFIER.flags(data, run, do_train=True, num_train_epochs=2)
        code, err = commands.call("classifier", flags)
        assert code == (0 if own != vocabulary else 2), err
        assert {name: (run / name).read_text() for name in before} == before
    assert "is 'w30', not 'w29'. Give the run's, or another --output_dir" in err


# Files that are read and written


# How an output is named that is among the input -> function of the input's path.
NAMES = {
    "the same": lambda path: path,
    "relative": lambda path: os.path.relpath(path),
    "around": lambda path: f"{path.parent}/../{path.parent.name}/{path.name}",
    "file://": lambda path: f"file://{path}",
    "link": lambda path: _link(path),
    "link to the folder": lambda path: f"{_link(path.parent)}/{path.name}",
}


def _link(path):
    link = path.with_name(f"link-{path.name}")
    link.symlink_to(path)
    return link


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", ["text", "vocabulary", "records", "records, vocabulary"])
def test_what_a_command_reads_is_not_replaced(inputs, tmp_path, monkeypatch, command, name):
    folder = tmp_path / "folder"
    folder.mkdir()
    read = folder / "read.txt"
    source = inputs / ("vocab.txt" if command == "records, vocabulary" else "text.txt")
    shutil.copy(source, read)
    monkeypatch.chdir(folder)
    output = NAMES[name](read)
    if name == "link":  # the link is what is read, and what is written stays a file
        read, output = output, read
    command, _, is_vocabulary = command.partition(", ")
    arguments = commands.arguments(command, inputs, output)
    flag = "vocab_file" if is_vocabulary else "input_file"
    before = files_of(tmp_path)
    code, err = commands.call(command, [*arguments, f"--{flag}={read}"])
    assert code == 2, err
    assert f"={output}: would replace {read}, which this command reads" in err
    assert files_of(tmp_path) == before


def test_held_out_records_do_not_replace_a_text(inputs, tmp_path):
    for name in ("a.txt", "heldout.b.txt"):
        shutil.copy(inputs / "text.txt", tmp_path / name)
    arguments = commands.arguments("records", inputs, tmp_path / "b.txt")
    arguments += [f"--input_file={tmp_path}/*.txt", "--eval_fraction=0.4"]
    before = files_of(tmp_path)
    code, err = commands.call("records", arguments)
    assert code == 2
    path = tmp_path / "heldout.b.txt"
    assert f"--output_file={path}: would replace {path}, which this command reads" in err
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("within", ["", "seed-1/"])
@pytest.mark.parametrize(
    ("script", "name", "flag"),
    [
        (TAGGER, "test_results.conll", "predict_file"),
        (CLASSIFIER, "test_results.tsv", "eval_file"),
        (SQUAD, "predictions.json", "train_file"),
    ],
)
def test_predictions_do_not_replace_what_they_are_made_of(
    inputs, tmp_path, script, name, flag, within
):
    write(tmp_path, "config.json", within + name)
    (tmp_path / "config.json").write_text(CONFIG)
    before, data = files_of(tmp_path), inputs / script.module.__name__
    files = {"predict_file": data / "vocab.txt", flag: tmp_path / within / name}
    code, err = commands.call(
        script.module.__name__.removeprefix("run_"),
        script.flags(data, tmp_path, do_predict=True, **files),
    )
    assert code == 2
    assert f"--{flag}={files[flag]}: would be replaced by what --do_predict writes" in err
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("command", ["predict", "embed", "fill"])
@pytest.mark.parametrize("way", ["file", "standard input"])
def test_answers_are_not_added_to_what_is_read(inputs, tmp_path, command, way):
    """`>>` would go on for ever, as `cat f >> f` would."""
    texts = tmp_path / "texts.txt"
    texts.write_text("w1 w2\n")
    program = CONSOLE_PROGRAM.format(*commands.CONSOLE[command].split(":"))
    arguments = [sys.executable, "-c", program, str(inputs / "hf_classifier")]
    named_file = f"--input_file={texts}" if command == "fill" else texts
    with open(texts) as reader, open(texts, "a") as writer:
        ended = subprocess.run(
            [*arguments, *([named_file] if way == "file" else [])],
            stdin=reader, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=100,
        )  # fmt: skip
    assert ended.returncode == 2
    named = texts if way == "file" else way
    assert f"{named}: is standard output, too; write to another file" in ended.stderr
    assert texts.read_text() == "w1 w2\n"


CONSOLE_PROGRAM = "import {0}; {0}.{1}()"


def test_a_model_is_not_converted_into_a_directory_named_like_a_url(inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, err = commands.call("convert", [f"{inputs}/hf_classifier", "gs://bucket/model"])
    assert code == 2
    assert "gs://bucket/model: must be a directory of this machine" in err
    assert not list(tmp_path.iterdir())
