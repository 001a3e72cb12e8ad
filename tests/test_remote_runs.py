"""Runs in remote storage: killed, stopped and resumed on a machine that has nothing of them.

Quick tests use TensorFlow's file system in memory, ram://, and kills within the process. Slow ones
use TensorFlow's client of gs:// with a stand-in for the service, and `kill -9`.
"""

import contextlib
import json
import os
import tempfile

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from kills import Killed
from scripts import CLASSIFIER, PRETRAINING, SQUAD, TAGGER
from tiny_run import metrics_of, without_timing

from bert_estimator import storage

REWRITES_GRAPHS = False  # see tests/conftest.py

LAST, SAVED_EVERY = 8, 2
WHILE_TRAINING = {"do_train": True, "do_eval": True, "keep_best_checkpoint": True}
SCRIPTS = {"pretraining": PRETRAINING, "labels": CLASSIFIER, "tags": TAGGER, "answers": SQUAD}


@pytest.fixture(scope="module")
def data_of(tmp_path_factory):
    """Makes the data of a script, and a run in a local directory that was not stopped, once."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            SCRIPTS[name].write_data(made[name])
            assert run(SCRIPTS[name], flags(name, made[name], made[name] / "whole")) == 0
        return made[name]

    return of


@pytest.fixture(autouse=True)
def local(tmp_path, monkeypatch):
    """Returns the directory of local copies."""
    os.makedirs(tmp_path / "local")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "local"))
    return tmp_path / "local"


def flags(name, data, output_dir, **changes):
    script = SCRIPTS[name]
    own = {} if script is PRETRAINING else {"do_export": True}
    return script.flags(
        data,
        output_dir,
        **script.steps(LAST),
        save_checkpoints_steps=SAVED_EVERY,
        **{**WHILE_TRAINING, **own, **changes},
    )


def run(script, flags):
    tf.summary.FileWriterCache.clear()
    code = script.main(flags)
    tf.summary.FileWriterCache.clear()
    return code


def kill_at(monkeypatch, number):
    """Has the process end at an upload or removal of this number, from 0; nothing follows it."""
    calls = []

    def killed_before(function):
        def call(*args):
            calls.append(args)
            if len(calls) > number:
                raise Killed
            function(*args)

        return call

    for name in ("upload", "remove"):
        monkeypatch.setattr(storage, name, killed_before(getattr(storage, name)))
    return calls


def check_same(folder, whole):
    """Checks that two directories hold the same run."""
    steps = [int(name.split("-")[1].split(".")[0]) for name in os.listdir(whole) if "index" in name]
    for prefix in (f"model.ckpt-{max(steps)}", *best_of(whole), *exported(whole)):
        expected = tf.train.load_checkpoint(str(whole / prefix))
        # The time is a part of an exported model's path.
        found = prefix if "export" not in prefix else exported(folder)[0]
        found = tf.train.load_checkpoint(str(folder / found))
        shapes = expected.get_variable_to_shape_map()
        assert found.get_variable_to_shape_map() == shapes
        for name in shapes:
            np.testing.assert_array_equal(
                found.get_tensor(name), expected.get_tensor(name), err_msg=f"{prefix}: {name}"
            )
    assert best_of(folder) == best_of(whole)
    assert metrics(folder) == metrics(whole)
    best = [(each / "best" / "best.json").read_text() for each in (folder, whole)]
    assert best[0] == best[1]
    for name in ("bert_config.json", "task.json", "vocab.txt", "eval_results.txt"):
        if (whole / name).exists():
            assert (folder / name).read_text() == (whole / name).read_text()
    names = [
        {n for n in os.listdir(each) if n.startswith("model.ckpt")} for each in (folder, whole)
    ]
    assert names[0] == names[1]


def checkpoints(folder):
    return {name for name in os.listdir(folder) if name.startswith("model.ckpt")}


def best_of(folder):
    indices = [name for name in os.listdir(folder / "best") if name.endswith(".index")]
    return [f"best/{name.removesuffix('.index')}" for name in indices]


def exported(folder):
    if not (folder / "export").exists():
        return []
    return [f"export/{number}/variables/variables" for number in os.listdir(folder / "export")]


def metrics(folder):
    records = map(without_timing, metrics_of(folder))
    return sorted(sorted((name, str(v)) for name, v in record.items()) for record in records)


def copied(url, folder):
    for name in storage.files(url):
        storage.download(f"{url}/{name}", str(folder / name))
    return folder


# The first checkpoint has about 13 files, the others about 20, and ends with removals.
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("pretraining", 24),
        *(
            pytest.param(name, number, marks=pytest.mark.slow)
            for name in SCRIPTS
            for number in (3, 11, 17, 22, 31, 38, 45, 52, 66)
        ),
    ],
)
def test_a_run_that_was_killed_between_uploads_ends_as_a_whole_one(
    data_of, tmp_path, monkeypatch, capsys, name, number
):
    data, url = data_of(name), f"ram:/{tmp_path}/run"
    with monkeypatch.context() as patched:
        calls = kill_at(patched, number)
        with contextlib.suppress(Killed):
            run(SCRIPTS[name], flags(name, data, url))
        assert len(calls) > number
    # This process still runs, so its owner's name is still there; a fresh machine could not tell.
    capsys.readouterr()
    assert run(SCRIPTS[name], flags(name, data, url)) == 2
    assert "has ended, as after a crash of its machine, add --take_over" in capsys.readouterr().err
    assert run(SCRIPTS[name], flags(name, data, url, take_over=True)) == 0
    printed = capsys.readouterr()
    assert f"{tempfile.gettempdir()}" not in printed.out + printed.err
    assert f"metrics: {url}/metrics.jsonl" in printed.out
    check_same(copied(url, tmp_path / "copy"), data / "whole")
    settings = json.loads(storage.read(f"{url}/config.json"))["flags"]
    assert settings["output_dir"]["value"] == url
