"""A fine-tuned run answers from its checkpoint, with its task's head, as its export does."""

import asyncio
import json
import shutil
import types

import pytest
import tensorflow.compat.v1 as tf
from task_runs import KINDS, PAIRS, train, write_data

from bert_estimator.command_line import run_directory
from bert_estimator.interchange import conversion, network_files, open_source
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.serving import checkpoint_model, exported_model
from bert_estimator.serving import predictor as predictor_module
from bert_estimator.serving.embedder import Embedder
from bert_estimator.serving.predictor import open_predictor
from bert_estimator.serving.server import models
from bert_estimator.tpu import errors


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_data(path)
    return path


def check_equal(answer, expected):
    if isinstance(expected, dict):
        assert answer.keys() == expected.keys()
        for name in expected:
            check_equal(answer[name], expected[name])
    elif isinstance(expected, list | tuple):
        assert len(answer) == len(expected)
        for part, other in zip(answer, expected, strict=True):
            check_equal(part, other)
    elif isinstance(expected, float):
        assert answer == pytest.approx(expected, abs=1e-6)
    else:
        assert answer == expected


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        *(pytest.param(kind, [], marks=pytest.mark.slow) for kind in KINDS),
        ("classification", ["--precision=bfloat16", "--vocab_file={}/p.model"]),
        ("question_answering", ["--precision=bfloat16"]),
    ],
)
def test_it_answers_as_its_export(data, tmp_path, kind, flags):
    flags = [flag.format(data) for flag in flags]
    run, texts = train(data, tmp_path / "run", kind, *flags), KINDS[kind][2]
    of_run, served = open_predictor(run, batch_size=2), models.open_model(run, batch_size=2)
    assert of_run.export_dir == served.directory == tf.train.latest_checkpoint(run)
    assert (served.kind, served.version) == (kind, served.directory.rpartition("-")[2])
    script = KINDS[kind][0]
    assert script.main([script.__name__, "--do_export", f"--output_dir={run}"]) == 0
    export = open_predictor(run, batch_size=2)
    assert export.export_dir == exported_model.find(run)
    expected = models.open_model(run, batch_size=2)
    check_equal(of_run(texts), export(texts))
    check_equal(served.answer(texts), expected.answer(texts))
    assert served[:5] == expected[:5]


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Makes a run with the checkpoints of steps 1 to 4."""
    flags = ["--num_train_epochs=2", "--save_checkpoints_steps=1", "--iterations_per_loop=1"]
    return train(data, tmp_path_factory.mktemp("trained") / "run", "classification", *flags)


@pytest.fixture
def run(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def move(run, step, target):
    """Moves the files of a checkpoint, the index last."""
    names = sorted(run.glob(f"model.ckpt-{step}.*"), key=lambda path: path.name.endswith("index"))
    target.mkdir(exist_ok=True)
    for path in names:
        path.rename(target / path.name)


def keep_best(run, step):
    """Makes a checkpoint the best one, which the run has kept."""
    config = json.loads((run / "config.json").read_text())
    config["flags"]["keep_best_checkpoint"]["value"] = True
    (run / "config.json").write_text(json.dumps(config))
    move(run, step, run / "best")
    for name in run_directory.NETWORK_FILES:
        if (run / name).exists():
            shutil.copy(run / name, run / "best")
    run_directory.write_evaluations(str(run / "best"), {step: 1.0})


def test_the_best_checkpoint_answers_or_else_the_newest(run):
    assert open_predictor(str(run)).export_dir == f"{run}/model.ckpt-4"
    assert open_predictor(f"{run}/model.ckpt-3").export_dir == f"{run}/model.ckpt-3"
    keep_best(run, 2)
    assert open_predictor(str(run)).export_dir == f"{run}/best/model.ckpt-2"
    assert models.open_model(str(run), 2).version == "2"


def test_a_remote_run(run):
    keep_best(run, 2)
    expected = open_predictor(str(run))(PAIRS)
    assert open_predictor(f"file://{run}")(PAIRS) == expected
    model = models.open_model(f"file://{run}", 2)
    assert (model.kind, model.version) == ("classification", "2")


def test_a_damaged_checkpoint_is_said(run, capsys):
    (run / "model.ckpt-4.data-00000-of-00001").write_bytes(b"x")
    assert open_predictor(str(run)).export_dir == f"{run}/model.ckpt-3"
    assert (
        f"{run}/model.ckpt-4 is damaged; {run}/model.ckpt-3 is used.\n" in capsys.readouterr().err
    )
    with pytest.raises(ValueError, match=r"model\.ckpt-4.* cannot be read"):
        open_predictor(f"{run}/model.ckpt-4")
    for step in (0, 1, 2, 3):
        (run / f"model.ckpt-{step}.data-00000-of-00001").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"No checkpoint in .* is whole"):
        models.open_model(str(run), 2)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("task.json", lambda text: text[:20], "task.json"),
        ("task.json", lambda text: text.replace('"low"', '"low", "mid"'), "is not of the task"),
        (
            "task.json",
            lambda text: json.dumps(
                json.loads(text) | {"kind": "question_answering", "max_seq_length": 90}
            ),
            "is not of the task",
        ),
        ("bert_config.json", None, "there is no bert_config.json beside it"),
        ("vocab.txt", None, "the vocabulary is missing"),
        ("vocab.txt", lambda text: text + "more\nand more\n", "has 37 tokens"),
    ],
)
def test_damaged_files_beside_a_checkpoint(run, file, change, message):
    text = (run / file).read_text()
    (run / file).unlink()
    if change is not None:
        assert change(text) != text
        (run / file).write_text(change(text))
    with pytest.raises(ValueError, match=message):
        models.open_model(str(run), 2)


def test_a_run_that_trains_meanwhile_is_followed(run, tmp_path, capsys):
    for step in (3, 4):
        move(run, step, tmp_path / "later")

    async def body():
        model = models.ServedModel("m", str(run), lambda path: models.open_model(path, 2), 4, 9)
        await model.look()
        assert model.opened.version == "2"
        for name in ("model.ckpt-3.data-00000-of-00001", "model.ckpt-3.index"):
            assert model.opened.version == "2"
            (tmp_path / "later" / name).rename(run / name)
            await model.look()
        assert model.opened.version == "3"
        for path in run.glob("model.ckpt-1.*"):  # as the saver does
            path.unlink()
        await model.look()
        move(tmp_path / "later", 4, run)
        (run / "model.ckpt-4.data-00000-of-00001").write_bytes(b"x")
        for _ in range(3):
            await model.look()
        assert model.opened.version == "3" and len(await model.batcher(PAIRS)) == len(PAIRS)
        await model.close()

    asyncio.run(body())
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("serve: ")]
    assert said[0] == "serve: m: version 3 is served now."
    assert len(said) == 2 and said[1].endswith("Version 3 is still served.")


READERS = {
    "predict": open_predictor,
    "serve": lambda path: models.open_model(path, 2),
    "embed": Embedder,
    "convert": lambda path: conversion.convert(open_source(path), f"{path}-hf", "hf"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_checkpoint_that_goes_is_named(run, monkeypatch, reader):
    """The training that writes it deletes it between the opening and the reading of the weights."""

    def remove(folder):
        for path in run.glob("model.ckpt-*"):
            path.unlink()
        return network_files.read(folder)

    monkeypatch.setattr(tf1_checkpoint, "network_files", types.SimpleNamespace(read=remove))
    with pytest.raises(errors.CheckpointGoneError, match="ckpt-4 was removed while it was"):
        READERS[reader](str(run))


def test_a_pretraining_run_gives_vectors(run, capsys):
    task = json.loads((run / "task.json").read_text())
    (run / "task.json").write_text(json.dumps({**task, "kind": "pretraining"}))
    assert checkpoint_model.find(str(run)) is None
    model = models.open_model(str(run), 2)
    assert model.kind == "vectors"
    assert predictor_module.main(["bert-predict", str(run)]) == 2
    assert "Nor is it a run that was fine-tuned for a task" in capsys.readouterr().err


def test_vectors_of_a_fine_tuned_run_are_still_to_be_had(run):
    assert Embedder(str(run))(["w1"]).shape == (1, 16)
